//! One SQLite file.

use std::convert::Infallible;

use database_core::{DbError, Script};

use crate::{Limits, Notices};

/// An SQLite file. There is no way to have one yet.
#[derive(Debug, Clone)]
pub struct Sqlite(Infallible);

#[expect(clippy::unused_async, reason = "the interface that the driver will have")]
impl Sqlite {
    pub(crate) async fn run_with<T: Send + 'static>(&self, _: Limits, _: Script<T>) -> Result<T, DbError> {
        match self.0 {}
    }

    pub(crate) async fn read<T: Send + 'static>(&self, _: Script<T>) -> Result<T, DbError> {
        match self.0 {}
    }

    pub(crate) fn notices(&self) -> &Notices {
        match self.0 {}
    }
}
