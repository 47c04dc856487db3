//! Nothing of a password or a parameter is printed, whatever happens: not by a Debug, an error or any log, the driver's
//! own included. Alone in its program, because logs belong to the whole of it.

use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use database::postgres::{Connector, Dsn, Postgres, Settings, Timeouts};
use database::{Class, Database, DbError, Script, Sql, Value, Verdict};
use testing::postgres::{Server, TcpProxy};

const PASSWORD: &str = "canary-in-the-address";
const PARAMETER: &str = "canary-in-a-parameter";

static TEXT: Sql = Sql::same("test.text", "SELECT $1::text");
static NUMBER: Sql = Sql::same("test.number", "SELECT $1::bigint");
static LIST: Sql = Sql::same("test.list", "SELECT $1::text[] IS NULL, $2::bytea IS NULL");

/// All that any log was told.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<String>>);

impl Said {
    fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

impl io::Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl log::Log for Said {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        writeln!(self.0.lock().unwrap(), "{}: {}", record.target(), record.args()).unwrap();
    }

    fn flush(&self) {}
}

fn values() -> Vec<Value> {
    let list = vec![PARAMETER.to_owned()];
    vec![Value::Texts(list), Value::Bytes(PARAMETER.into())]
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_printed() {
    // The harness has no secrets and logs them.
    let server = Server::new();
    server.sql(&format!("ALTER ROLE tenure PASSWORD '{PASSWORD}'"));
    let said = Said::default();
    log::set_boxed_logger(Box::new(said.clone())).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let writer = said.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .init();
    let mut shown = String::new();
    let mut show = |what: &dyn std::fmt::Debug| writeln!(shown, "{what:?} {what:#?}").unwrap();

    std::fs::write(server.folder().join("data/pg_hba.conf"), "local all all trust\nhost all all all scram-sha-256\n")
        .unwrap();
    server.sql("SELECT pg_reload_conf()");
    let proxy = TcpProxy::new(server.address());
    let text =
        |password: &str| server.dsn_at(proxy.address(), "tenure").replace("tenure@", &format!("tenure:{password}@"));
    let timeouts = Timeouts { grace: Duration::from_millis(300), ..Timeouts::default() };
    let dsn = |password: &str| text(password).parse::<Dsn>().unwrap();
    show(&dsn(PASSWORD));

    // The server takes up its rules a moment after it was told to, so the refusal is waited for.
    let wrong = Connector::new(dsn(&format!("{PASSWORD}-wrong")), timeouts).unwrap();
    let error = loop {
        if let Err(error) = wrong.connect().await {
            break error;
        }
    };
    assert_eq!((error.class, error.code.as_deref()), (Class::Broken, Some("28P01")));
    show(&(&wrong, &error, error.to_string()));

    let settings = Settings { timeouts, ..Settings::new(dsn(PASSWORD)) };
    show(&settings);
    let pool = Postgres::new(settings).unwrap();
    show(&pool);
    show(&pool.direct().connect().await.unwrap());
    let pool = Database::Postgres(pool);
    show(&pool);
    assert!(pool.notices().wait_listening(Duration::from_secs(30)).await);

    let run = async |sql: &'static Sql, values: Vec<Value>| -> Result<(), DbError> {
        pool.run_once(Script::statement(sql, values, |_| Ok(()))).await
    };
    run(&TEXT, vec![PARAMETER.into()]).await.unwrap();
    run(&LIST, values()).await.unwrap();
    let refused = run(&NUMBER, vec![PARAMETER.into()]).await.unwrap_err();
    assert_eq!(refused.class, Class::Refused);
    show(&(&refused, refused.to_string()));
    let script = Script::transaction(|mut tx| async move {
        tx.query(&LIST, values()).await?;
        Ok(Verdict::Commit(()))
    });
    show(&script);
    pool.run_once(script).await.unwrap();
    proxy.refuse();
    proxy.cut();
    let error = run(&TEXT, vec![PARAMETER.into()]).await.unwrap_err();
    show(&(&error, error.to_string()));
    let error = run(&TEXT, vec![PARAMETER.into()]).await.unwrap_err();
    assert_eq!(error.class, Class::Unavailable);
    show(&(&error, error.to_string()));
    drop(pool);

    let logged = said.text();
    for (name, text) in [("shown", &shown), ("logged", &logged)] {
        for canary in [PASSWORD, PARAMETER, "canary"] {
            assert!(!text.contains(canary), "{name}:\n{text}");
        }
    }
    assert!(
        logged.contains("executing statement") && logged.contains("tokio_postgres"),
        "the logs were heard:\n{logged}"
    );
    assert!(shown.contains("tenure:***@"), "{shown}");
}
