//! What rules need to speak of a database without reaching one.
//!
//! Owns: statements by id ([`Sql`]), values and rows, what an error means ([`Class`]), and transactions as values
//! ([`Script`]): straight async code that says which statement comes next and is told the answer.
//! Never: opens a connection, knows a driver, reads a clock.
//!
//! The same script is carried out by three drivers: on PostgreSQL, on SQLite's writer thread, and by the simulated
//! database of the tests, which knows each statement by its id.
//!
//! ```
//! use database_core::{Script, Sql, Step, Value, Verdict};
//!
//! static COUNT: Sql = Sql::same("demo.count", "SELECT count(*) FROM job WHERE tube = $1");
//!
//! let mut script = Script::transaction(|mut tx| async move {
//!     let count = tx.query(&COUNT, [Value::from("mail")]).await?[0].int(0)?;
//!     Ok(Verdict::Commit(count))
//! });
//! let Step::Query(sql, values) = script.step(None) else { panic!() };
//! assert_eq!((sql.id, &values[..]), ("demo.count", &[Value::from("mail")][..]));
//! let answer = Ok(vec![vec![Value::Int(3)].into()].into());
//! assert_eq!(script.step(Some(answer)), Step::Done(Ok(Verdict::Commit(3))));
//! ```

pub mod batch;
mod error;
mod migration;
mod script;
mod sql;
mod value;

pub use error::{Class, DbError};
pub use migration::{Fit, Migration, Schema};
pub use script::{Script, Step, Tx, Verdict};
pub use sql::Sql;
pub use value::{Answer, Row, Value};
