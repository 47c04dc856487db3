//! `tenure serve`: everything that the configuration turns on, under one supervisor.

use crate::cli::{ServeCall, TubesCall, TubesFlags};
use crate::exit::{self, Failure};
use crate::{daemon, logging, tubes};
use std::path::{Path, PathBuf};
use supervisor::{Plan, Signals, Topology, generations_in_memory};
use tenure_config::{Config, LoadOptions, LogLevel, Sources};
use tubes_server::{Account, ServeError, Sockets, Supervised, Supervision, restart_policy};

/// The account of all processes where a server is started as root and none is named.
const DEFAULT_USER: &str = "tenure";

/// Serves until told to stop.
pub(crate) fn serve(call: &ServeCall) -> Result<(), Failure> {
    let (config, sources) = load(call)?;
    let level = call.level.unwrap_or(config.log.level);
    logging::start(level);
    if !config.serve.tubes && !config.serve.daemon {
        let nothing = "serve.tubes and serve.daemon are both false: there is nothing to serve";
        return Err(Failure::new(tenure_config::EXIT_CODE, nothing));
    }
    if let Some(file) = sources.file() {
        tracing::info!("configuration in {}", file.display());
    }
    let account = account(&config)?;
    // What may need the account of the start comes first; then nobody can know of the server before it hears signals.
    let queue = Queue::open(&config, level)?;
    let of_daemon = if config.serve.daemon { Some(daemon::open(&config)?) } else { None };
    let signals =
        Signals::install().and_then(Signals::with_reload).map_err(|error| system("install signal handlers", &error))?;
    make_data_directory(&config.data.dir, account.as_ref())?;
    if let Some(account) = account {
        account.switch()?;
    }
    let supervision = tubes::supervision(&config, level);
    let (call, level_given) = (call.clone(), call.level.is_some());
    let complete = |plan: &mut Plan| match of_daemon {
        Some(listeners) => {
            plan.on_reload = daemon::on_reload(move || load(&call));
            daemon::add_to(plan, &sources, listeners, level, level_given)
        }
        None => Ok(()),
    };
    match queue {
        Some(queue) => {
            let mut supervised = queue.prepare(&supervision, &config.data.dir)?;
            complete(supervised.plan())?;
            supervised.serve(signals)?;
        }
        None => {
            let mut plan = without_tubes(&supervision, &config.data.dir)?;
            complete(&mut plan)?;
            plan.signals = Some(signals);
            supervisor::supervise(plan).map_err(ServeError::from)?;
        }
    }
    Ok(())
}

fn load(call: &ServeCall) -> Result<(Config, Sources), Failure> {
    let (mut config, sources) = tenure_config::load_with_sources(LoadOptions::of_process(call.config.clone()))?;
    if let Some(user) = &call.user {
        config.set_by_flag("user", user, "-u").map_err(|error| Failure::new(exit::USAGE, error))?;
    }
    Ok((config, sources))
}

/// Whom all processes become: whoever is named; started as root and without a name, [`DEFAULT_USER`], never root.
fn account(config: &Config) -> Result<Option<Account>, Failure> {
    let is_root = rustix::process::geteuid().is_root();
    match &config.user {
        Some(name) => {
            let account = Account::find(name)?;
            if !is_root && !account.is_current() {
                let what = format!(
                    "user is {name:?} ({}), but only root can become another account; leave it out, or start as root",
                    config.origin("user")
                );
                return Err(Failure::new(exit::SYSTEM, what));
            }
            Ok(Some(account))
        }
        None if is_root => Account::find(DEFAULT_USER).map(Some).map_err(|error| {
            let what = format!(
                "{error}; a server that is started as root becomes it. Make this account, or name another one with -u or \
                 `user`; who wants root must name it"
            );
            Failure::new(error.exit_code(), what)
        }),
        None => Ok(None),
    }
}

/// Makes the folder of all data if it is not there, for the account that will use it.
fn make_data_directory(directory: &Path, account: Option<&Account>) -> Result<(), Failure> {
    if directory.exists() {
        return Ok(());
    }
    tubes_store::datadir::make(directory)?;
    match account {
        Some(account) => {
            account.give(directory).map_err(|error| system("give the data directory to its account", &error))
        }
        None => Ok(()),
    }
}

/// The queue server, with its sockets open.
struct Queue {
    options: tubes_server::ServerOptions,
    multi: Option<tubes_server::MultiOptions>,
    sockets: Sockets,
}

impl Queue {
    fn open(config: &Config, level: LogLevel) -> Result<Option<Queue>, Failure> {
        if !config.serve.tubes {
            return Ok(None);
        }
        // All is said by the configuration here.
        let call =
            TubesCall { flags: TubesFlags::default(), config: None, level: Some(level), is_called_beanstalkd: false };
        let options = tubes::options(&call, config)?;
        let multi = tubes::multi(&call.flags, config);
        let sockets = Sockets::open(&options)?;
        Ok(Some(Queue { options, multi, sockets }))
    }

    fn prepare(self, supervision: &Supervision, directory: &Path) -> Result<Supervised, Failure> {
        let Queue { options, multi, sockets } = self;
        Ok(Supervised::prepare(&options, multi.as_ref(), supervision, sockets, Some(directory))?)
    }
}

/// A plan with nothing in it but where its lock and its status are: as in a server with tubes.
fn without_tubes(supervision: &Supervision, directory: &Path) -> Result<Plan, Failure> {
    let directory = std::fs::canonicalize(directory).map_err(|error| system("find the data directory", &error))?;
    let mut plan = Plan::new(PathBuf::from("/proc/self/exe"), Topology::default(), generations_in_memory());
    plan.restart = restart_policy(supervision);
    plan.lock = Some(directory.join("lock"));
    plan.status_socket = Some(directory.join("status.sock"));
    plan.about.insert("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    Ok(plan)
}

fn system(action: &str, error: &std::io::Error) -> Failure {
    Failure::new(exit::SYSTEM, format!("failed to {action}: {error}"))
}
