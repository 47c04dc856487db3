//! A small server for the tests of this crate: a supervisor, owners that give ids, frontends that pass lines on; or one
//! process `tubes` that does both; and a daemon.
//!
//! `supervise DIR OPTION=VALUE…` is the supervisor; it starts this program again as `owner`, `frontend`, `tubes` and
//! `daemon`. A client line `put K` is passed to owner K over its link, which answers `ok GENERATION ID` or `draining`; the
//! tubes answer it themselves. The daemon, on a port of its own, answers each line with `daemon GENERATION`.
//!
//! Each process appends its steps to `DIR/events`. `DIR/ROLE-K`, if there, says how that process is to misbehave; it is
//! read at each of its starts.

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    linux::main()
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::{self, OpenOptions};
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;
    use std::path::{Path, PathBuf};
    use std::process::ExitCode;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use supervisor::lock::{LOCK_WAIT, Lock};
    use supervisor::{
        Child, FailureCause, FromChild, Instruction, OnSlotFailed, Plan, Role, RolePlan, Start, ToChild, Topology,
        generations_in_memory,
    };

    /// Figure of a frontend's page: clients connected.
    const GAUGE_CLIENTS: usize = 1;

    pub(super) fn main() -> ExitCode {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        match arguments.first().map(String::as_str) {
            Some("supervise") => supervise(Path::new(&arguments[1]), &arguments[2..]),
            Some(word) if Role::ALL.iter().any(|role| role.name() == word) => serve(),
            _ => ExitCode::from(5),
        }
    }

    fn supervise(dir: &Path, options: &[String]) -> ExitCode {
        let option = |name: &str| {
            options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
        };
        let number = |name: &str, default: u64| option(name).map_or(default, |text| text.parse().expect("a number"));
        let tubes = number("tubes", 0) > 0;
        // Without a word about it there are owners and frontends unless something else serves.
        let several = if tubes { 0 } else { 2 };
        let topology = Topology {
            owners: u16::try_from(number("owners", several)).expect("few owners"),
            frontends: u16::try_from(number("frontends", several)).expect("few frontends"),
            tubes,
            daemon: number("daemon", 0) > 0,
        };
        let program = std::env::current_exe().expect("the path of this program");
        let mut plan = Plan::new(program, topology, generations_in_memory());
        plan.lock = Some(dir.join("lock"));
        let with_jobs = topology.slots().filter(|place| place.role.has_jobs());
        plan.slot_locks = with_jobs.map(|place| dir.join(format!("slot-{}.lock", place.slot))).collect();
        plan.lock_wait = Duration::from_millis(number("lock-wait-ms", 10_000));
        plan.status_socket = Some(dir.join("status"));
        plan.restart.delay = Duration::from_millis(number("restart-delay-ms", 100));
        plan.restart.limit = u32::try_from(number("restart-limit", 5)).expect("a small limit");
        plan.figures = [Role::Frontend, Role::Tubes].map(|role| (role, "clients", GAUGE_CLIENTS)).into();
        plan.about = [("program".to_owned(), "fixture".to_owned())].into();
        plan.on_ended = Box::new(|role, page| {
            if matches!(role, Role::Frontend | Role::Tubes) {
                page.counter(GAUGE_CLIENTS).store(0, Ordering::Relaxed);
            }
        });
        plan.id_count_start = number("first-id", 1);
        if option("on-slot-failed").as_deref() == Some("stop") {
            plan.on_slot_failed = OnSlotFailed::Stop;
        }
        let port = u16::try_from(number("port", 0)).expect("a port");
        let listeners = [port, 0].map(|port| TcpListener::bind(("127.0.0.1", port)));
        let [listener, of_daemon] = match listeners {
            [Ok(listener), Ok(of_daemon)] => [listener, of_daemon],
            [Err(error), _] | [_, Err(error)] => {
                eprintln!("{error}");
                return ExitCode::from(111);
            }
        };
        let [address, daemons] = [&listener, &of_daemon].map(|listener| listener.local_addr().expect("an address"));
        for role in Role::ALL {
            let listener = match role {
                Role::Owner => None,
                Role::Frontend | Role::Tubes => Some(&listener),
                Role::Daemon => Some(&of_daemon),
            };
            let of_role = RolePlan {
                arguments: vec![role.name().into()],
                listeners: listener.iter().map(|it| it.try_clone().expect("a descriptor").into()).collect(),
                options: serde_json::json!({ "dir": dir, "role": role }),
            };
            plan.roles.insert(role, of_role);
        }
        drop((listener, of_daemon));
        let (folder, mut reloads) = (dir.to_owned(), 0);
        plan.on_reload = Box::new(move || {
            reloads += 1;
            Some((Role::Daemon, serde_json::json!({ "dir": folder, "role": Role::Daemon, "reloads": reloads })))
        });
        let signals = supervisor::Signals::install().and_then(supervisor::Signals::with_reload);
        plan.signals = Some(signals.expect("signal handlers"));
        let events = dir.join("events");
        plan.on_serving = Box::new(move || note(&events, &format!("supervisor serving {daemons} {address}")));
        match supervisor::supervise(plan) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::from(error.exit_code())
            }
        }
    }

    fn note(events: &Path, line: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(events).expect("the file of events");
        file.write_all(format!("{line}\n").as_bytes()).expect("room for a line");
    }

    /// What all threads of a process share.
    struct Shared {
        start: Start,
        events: PathBuf,
        is_draining: AtomicBool,
        /// Of a frontend, by owner.
        links: Mutex<Vec<Option<BufReader<UnixStream>>>>,
    }

    impl Shared {
        fn note(&self, what: &str) {
            let who = self.start.instance;
            let pid = std::process::id();
            note(&self.events, &format!("{} {} {} {pid} {what}", who.role, who.slot, who.generation));
        }
    }

    fn serve() -> ExitCode {
        let (mut child, start) = match Child::from_inherited() {
            Ok(started) => started,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(error.exit_code());
            }
        };
        let dir = PathBuf::from(start.options["dir"].as_str().expect("a folder"));
        let who = start.instance;
        assert_eq!(start.options["role"], who.role.name(), "each role has its own options");
        let habit = fs::read_to_string(dir.join(format!("{}-{}", who.role, who.slot))).unwrap_or_default();
        let habits: Vec<&str> = habit.split_whitespace().collect();
        let has = |name: &str| habits.contains(&name);
        let shared = Arc::new(Shared {
            events: dir.join("events"),
            is_draining: AtomicBool::new(start.drained),
            links: Mutex::new((0..start.topology.owners).map(|_| None).collect()),
            start,
        });
        if has("without-death-signal") {
            rustix::process::set_parent_process_death_signal(None).expect("a call that cannot fail");
        }
        shared.note(if shared.start.drained { "started drained" } else { "started" });
        let mut fail = |cause, reason: &str, code| {
            let _ = child.send(&FromChild::Failed { cause, reason: reason.into() });
            ExitCode::from(code)
        };
        let _lock = match &shared.start.slot_lock {
            Some(path) => match Lock::take(path, LOCK_WAIT) {
                Ok(lock) => Some(lock),
                Err(error) => return fail(FailureCause::Other, &error.to_string(), 10),
            },
            None => None,
        };
        if has("damaged") {
            return fail(FailureCause::Other, "the log is damaged", 11);
        }
        if has("failing-write") {
            return fail(FailureCause::Write, "a write has failed", 10);
        }
        if has("crashing") {
            return ExitCode::from(1);
        }
        if has("mute") {
            return wait_for_ever();
        }
        let ready = FromChild::Ready { generation: who.generation, jobs: 0, next_id: 100 * u64::from(who.slot) };
        shared.note("ready");
        if shared.start.options["reloads"].is_number() {
            shared.note(&format!("options {}", shared.start.options["reloads"]));
        }
        if child.send(&ready).is_err() {
            return wait_for_ever();
        }
        loop {
            match child.recv() {
                Ok(Some(ToChild::Link { peer, socket })) => take_link(&shared, peer.slot, socket),
                Ok(Some(ToChild::Options(options))) => {
                    shared.note(&format!("options {}", options["reloads"]));
                }
                Ok(Some(ToChild::Say(instruction))) => match instruction {
                    Instruction::Ping { .. } if has("frozen") => {}
                    Instruction::Ping { nonce } => {
                        let in_sync_ms = has("syncing").then_some(1_000_000);
                        let _ = child.send(&FromChild::Pong { generation: who.generation, nonce, in_sync_ms });
                    }
                    Instruction::PeerGone(peer) if who.role == Role::Frontend => {
                        shared.links.lock().expect("unpoisoned")[usize::from(peer.slot)] = None;
                    }
                    Instruction::PeerGone(_) => {}
                    Instruction::Go => {
                        shared.note("go");
                        accept(&shared);
                    }
                    Instruction::Drain => {
                        shared.is_draining.store(true, Ordering::SeqCst);
                        shared.note("drained");
                        let _ = child.send(&FromChild::Drained);
                    }
                    Instruction::Barrier { .. } | Instruction::Stop { .. } if has("stubborn") => {
                        shared.note("told to stop");
                    }
                    Instruction::Barrier { .. } | Instruction::Stop { .. } => {
                        let links = shared.links.lock().expect("unpoisoned");
                        shared.note("stopped");
                        let _ = child.send(&FromChild::Stopped);
                        drop(links);
                        return ExitCode::SUCCESS;
                    }
                },
                Ok(None) => child.wait_readable().expect("a control channel"),
                // The supervisor is gone: being killed is what is tested here, so nothing else is done.
                Err(_) => return wait_for_ever(),
            }
        }
    }

    fn wait_for_ever() -> ExitCode {
        loop {
            std::thread::park();
        }
    }

    fn take_link(shared: &Arc<Shared>, slot: u16, socket: UnixStream) {
        if shared.start.instance.role == Role::Frontend {
            shared.links.lock().expect("unpoisoned")[usize::from(slot)] = Some(BufReader::new(socket));
            return;
        }
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            let mut writer = socket.try_clone().expect("a descriptor");
            for _line in BufReader::new(socket).lines().map_while(Result::ok) {
                if writer.write_all(put(&shared).as_bytes()).is_err() {
                    break;
                }
            }
        });
    }

    /// A job is given an id, unless the server drains.
    fn put(shared: &Shared) -> String {
        if shared.is_draining.load(Ordering::SeqCst) {
            return "draining\n".to_owned();
        }
        let id = shared.start.pages.server().next_id_count();
        format!("ok {} {id}\n", shared.start.instance.generation)
    }

    fn accept(shared: &Arc<Shared>) {
        let listener = shared.start.listeners[0].try_clone().expect("a descriptor");
        let listener = TcpListener::from(listener);
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || {
                    let who = shared.start.instance;
                    let clients = shared.start.pages.figures(who.role, who.slot).counter(GAUGE_CLIENTS);
                    clients.fetch_add(1, Ordering::Relaxed);
                    let mut writer = client.try_clone().expect("a descriptor");
                    for line in BufReader::new(client).lines().map_while(Result::ok) {
                        if writer.write_all(answer(&shared, &line).as_bytes()).is_err() {
                            break;
                        }
                    }
                    clients.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
    }

    /// What a client hears.
    fn answer(shared: &Shared, line: &str) -> String {
        if line == "stats" {
            let pages = &shared.start.pages;
            return format!("clients {} draining {}\n", pages.sum(GAUGE_CLIENTS), pages.server().is_draining());
        }
        let who = shared.start.instance;
        if who.role == Role::Daemon {
            return format!("daemon {}\n", who.generation);
        }
        if who.role == Role::Tubes {
            return put(shared);
        }
        let slot = line.strip_prefix("put ").and_then(|slot| slot.parse::<usize>().ok());
        let mut links = shared.links.lock().expect("unpoisoned");
        let Some(link) = slot.and_then(|slot| links.get_mut(slot)).and_then(Option::as_mut) else {
            return "unavailable\n".into();
        };
        let mut answer = String::new();
        let sent = link.get_mut().write_all(b"put\n");
        match sent.and_then(|()| link.read_line(&mut answer)) {
            Ok(1..) => answer,
            _ => "unknown\n".into(),
        }
    }
}
