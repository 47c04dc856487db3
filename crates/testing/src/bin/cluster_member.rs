//! A process that is a member of a cluster and works: the demonstration executor of `testing::demo_work`.
//!
//!     cluster_member --name a --pool DSN --folder DIR --times 300,300,300,300,1500
//!     cluster_member --name a --sqlite FILE --folder DIR
//!
//! `--times` are renew, statement timeout, margin, beat and lease in ms. `--direct DSN` and `--listen DSN` are other
//! addresses for lease and requests, and for notices; `--pool-size N`; `--idle` does no work. It says what it does on
//! standard output, and takes orders on standard input: `stop`, `hog MS`, `block MS`. At the end of its input, or of the
//! thread that started it, it dies at once.

use std::io::BufRead as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cluster_core::Times;
use rustix::process::{Signal, set_parent_process_death_signal};
use testing::demo_work::history::say;
use testing::demo_work::member::{Member, Options, Order, Place};
use tokio::sync::mpsc;

/// Orders that may wait.
const ORDERS_MAX: usize = 16;
/// Threads of the runtime, as many as the daemon has on a small machine.
const THREADS: usize = 2;

fn main() -> ExitCode {
    // A member that is frozen could not see the end of its input.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("cluster_member: cannot be tied to its parent: {error}");
        return ExitCode::FAILURE;
    }
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(what) => {
            eprintln!("cluster_member: {what}");
            return ExitCode::from(5);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    let result = runtime.map_err(|error| error.to_string()).and_then(|runtime| runtime.block_on(live(options)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("cluster_member: {what}");
            ExitCode::FAILURE
        }
    }
}

async fn live(options: Options) -> Result<(), String> {
    let mut orders = orders();
    say(format_args!("started {}", std::process::id()));
    let starting = Member::start(options);
    tokio::pin!(starting);
    let member = loop {
        tokio::select! {
            member = &mut starting => break member?,
            // Not a member yet: nothing is to be stopped.
            order = orders.recv() => if order == Some(Order::Stop) { return Ok(()) },
        }
    };
    while let Some(order) = orders.recv().await {
        if order == Order::Stop {
            member.stop().await;
            return Ok(());
        }
        member.obey(order);
    }
    Ok(())
}

/// What comes on standard input. Its end ends the process, without any order.
fn orders() -> mpsc::Receiver<Order> {
    let (sender, receiver) = mpsc::channel(ORDERS_MAX);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let (word, ms) = line.split_once(' ').unwrap_or((&line, "0"));
            let length = Duration::from_millis(ms.parse().unwrap_or(0));
            let order = match word {
                "stop" => Order::Stop,
                "hog" => Order::Hog(length),
                "block" => Order::Block(length),
                _ => continue,
            };
            if sender.blocking_send(order).is_err() {
                return;
            }
        }
        std::process::exit(9);
    });
    receiver
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut times = Times::default();
    let (mut name, mut folder, mut sqlite) = (String::new(), PathBuf::new(), None);
    let (mut pool, mut direct, mut listen) = (None, None, None);
    let (mut pool_size, mut is_idle) = (8, false);
    while let Some(option) = words.next() {
        if option == "--idle" {
            is_idle = true;
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
        match option.as_str() {
            "--name" => name = value,
            "--folder" => folder = value.into(),
            "--sqlite" => sqlite = Some(PathBuf::from(value)),
            "--pool" => pool = Some(value),
            "--direct" => direct = Some(value),
            "--listen" => listen = Some(value),
            "--pool-size" => pool_size = value.parse().map_err(|_| format!("{value} is no number"))?,
            "--times" => times = of_list(&value).ok_or_else(|| format!("{value} are not five numbers of ms"))?,
            _ => return Err(format!("there is no option {option}")),
        }
    }
    times.check().map_err(|error| error.to_string())?;
    let place = match (sqlite, pool) {
        (Some(path), None) => Place::Sqlite(path),
        (None, Some(pool)) => {
            let direct = direct.unwrap_or_else(|| pool.clone());
            Place::Postgres { listen: listen.unwrap_or_else(|| direct.clone()), direct, pool }
        }
        _ => return Err("either --sqlite or --pool is needed".into()),
    };
    Ok(Options { name, place, times, folder, pool: pool_size, is_idle })
}

fn of_list(text: &str) -> Option<Times> {
    let lengths: Vec<Duration> =
        text.split(',').map(|ms| ms.parse().map(Duration::from_millis)).collect::<Result<_, _>>().ok()?;
    let [renew, statement_timeout, margin, beat, lease] = lengths.try_into().ok()?;
    Some(Times { renew, statement_timeout, margin, beat, lease })
}
