//! A server of one or several processes and what each of them uses.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::load::Load;
use super::quota::{Group, Quotas};
use super::results::{Carried, ProcessSample, Role, Sample, Throttled};
use super::topology::Topology;
use crate::machine::Cores;
use crate::peer::{Contender, LogMode};
use crate::process::{Folder, Server, cpu_ns};
use crate::round::{Lab, WARM_UP_MAX, WARM_UP_SHARE, thread_cpu_ns};

/// Longest time until all processes serve.
const SERVE_MAX: Duration = Duration::from_secs(60);
const ASK_INTERVAL: Duration = Duration::from_millis(2);
/// What stands before the path of the status socket in the server's log.
const STATUS_WORDS: &str = "status at ";
/// What stands there when all processes serve.
const SERVING_WORDS: &str = " serving processes=";

/// Starts a server of `topology` without a log, puts `load` on it for `length` and ends it. With `quotas` owners and
/// frontends, or the one process, are limited.
pub(super) fn measure(
    lab: &Lab,
    cores: Cores,
    topology: Topology,
    load: &Load,
    length: Duration,
    quotas: Option<&Quotas>,
) -> Result<Sample> {
    let what = || format!("{topology}: {load}");
    let running = Running::start(lab, cores, topology).with_context(what)?;
    // Dropped behind the server on a way out of an error: groups must be empty to be removed.
    let sample = running.measure(load, length, quotas);
    let sample = sample.with_context(|| format!("server output: {}", running.server.output())).with_context(what);
    let (sample, groups) = match sample {
        Ok(done) => done,
        Err(error) => {
            drop(running);
            return Err(error);
        }
    };
    running.server.stop().with_context(what)?;
    drop(groups);
    Ok(sample)
}

struct Running {
    server: Server,
    processes: Vec<Process>,
    tenure: PathBuf,
    status_socket: Option<PathBuf>,
    _folder: Folder,
}

struct Process {
    role: Role,
    slot: u64,
    id: u32,
}

/// What the status of a server of several processes says.
struct Status {
    is_serving: bool,
    processes: Vec<Process>,
    to_owners: Option<Carried>,
    to_frontends: Option<Carried>,
}

impl Running {
    fn start(lab: &Lab, cores: Cores, topology: Topology) -> Result<Self> {
        let folder = Folder::create(&lab.folder, "multi")?;
        let mut command = lab.programs.queue(Contender::Tenure, LogMode::Memory, folder.path());
        command.arguments.extend(topology.flags());
        let server = Server::start(&command, folder.path(), cores)?;
        let id = server.id();
        let mut running = Self {
            server,
            processes: Vec::new(),
            tenure: lab.programs.tenure.clone(),
            status_socket: None,
            _folder: folder,
        };
        if topology == Topology::Single {
            running.processes.push(Process { role: Role::Single, slot: 0, id });
            return Ok(running);
        }
        let begin = Instant::now();
        let text = loop {
            let text = running.server.printed();
            if text.contains(SERVING_WORDS) {
                break text;
            }
            ensure!(begin.elapsed() < SERVE_MAX, "not all processes serve after {SERVE_MAX:?}: {text}");
            std::thread::sleep(ASK_INTERVAL);
        };
        let socket = text.lines().find_map(|line| Some(line.split_once(STATUS_WORDS)?.1.trim()));
        running.status_socket = Some(socket.context("the server does not say where its status socket is")?.into());
        let status = running.status()?;
        ensure!(status.is_serving, "the server says that it serves, but its status does not");
        running.processes.push(Process { role: Role::Supervisor, slot: 0, id });
        running.processes.extend(status.processes);
        Ok(running)
    }

    /// Asks the server as an operator would.
    fn status(&self) -> Result<Status> {
        let socket = self.status_socket.as_ref().context("a server of one process has no status")?;
        let mut command = Command::new(&self.tenure);
        command.arg("status").arg("--socket").arg(socket).arg("--json").stdin(Stdio::null());
        let output = command.output().with_context(|| format!("execute {}", self.tenure.display()))?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "tenure status ended with {}: {}", output.status, message.trim());
        let value = serde_json::from_slice(&output.stdout).context("understand the server's status")?;
        status_of(&value).context("the server's status lacks something")
    }

    fn measure(&self, load: &Load, length: Duration, quotas: Option<&Quotas>) -> Result<(Sample, Vec<Option<Group>>)> {
        let mut generator = load.connect(self.server.address())?;
        let mut groups = Vec::new();
        for process in &self.processes {
            let quotas = quotas.filter(|_| process.role != Role::Supervisor);
            let name = format!("{}-{}", process.role, process.slot);
            groups.push(quotas.map(|quotas| quotas.limit(&name, process.id)).transpose()?);
        }
        generator.run_for(length.mul_f64(WARM_UP_SHARE).min(WARM_UP_MAX), u64::MAX)?;
        let carried = self.carried()?;
        generator.latencies().clear();

        let (answered, own_cpu) = (generator.answered(), thread_cpu_ns());
        let before = self.readings(&groups)?;
        let begin = Instant::now();
        generator.run_for(length, u64::MAX)?;
        let elapsed = begin.elapsed();
        let after = self.readings(&groups)?;
        let generator_cpu_ns = thread_cpu_ns() - own_cpu;

        let carried = carried.zip(self.carried()?);
        let between = |from: Carried, to: Carried| Carried {
            batches: to.batches - from.batches,
            messages: to.messages - from.messages,
        };
        let processes = self.processes.iter().zip(before.iter().zip(&after)).map(|(process, (before, after))| {
            let throttled = before.1.zip(after.1).map(|(before, after)| Throttled {
                periods: after.periods - before.periods,
                throttled: after.throttled - before.throttled,
            });
            ProcessSample { role: process.role, cpu_ns: after.0 - before.0, throttled }
        });
        let processes = processes.collect();
        let answered = generator.answered() - answered;
        let latencies = generator.latencies();
        let sample = Sample {
            commands: answered,
            elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
            processes,
            generator_cpu_ns,
            p50_ns: latencies.value_at_quantile(0.5),
            p99_ns: latencies.value_at_quantile(0.99),
            p999_ns: latencies.value_at_quantile(0.999),
            to_owners: carried.map(|(from, to)| between(from.0, to.0)),
            to_frontends: carried.map(|(from, to)| between(from.1, to.1)),
        };
        Ok((sample, groups))
    }

    fn readings(&self, groups: &[Option<Group>]) -> Result<Vec<(u64, Option<Throttled>)>> {
        let one = |(process, group): (&Process, &Option<Group>)| {
            Ok((cpu_ns(process.id)?, group.as_ref().map(Group::throttled).transpose()?))
        };
        self.processes.iter().zip(groups).map(one).collect()
    }

    /// What frontends and owners have sent; `None` in single mode, or if the server does not tell.
    fn carried(&self) -> Result<Option<(Carried, Carried)>> {
        if self.status_socket.is_none() {
            return Ok(None);
        }
        let status = self.status()?;
        Ok(status.to_owners.zip(status.to_frontends))
    }
}

fn status_of(value: &serde_json::Value) -> Option<Status> {
    let mut status =
        Status { is_serving: value["serving"].as_bool()?, processes: Vec::new(), to_owners: None, to_frontends: None };
    for process in value["processes"].as_array()? {
        let role = match process["role"].as_str()? {
            "owner" => Role::Owner,
            "frontend" => Role::Frontend,
            _ => return None,
        };
        let figure = |name: &str| process["figures"][name].as_u64();
        if let Some((batches, messages)) = figure("link_batches").zip(figure("link_messages")) {
            let sum = if role == Role::Frontend { &mut status.to_owners } else { &mut status.to_frontends };
            let sum = sum.get_or_insert_default();
            sum.batches += batches;
            sum.messages += messages;
        }
        // A slot that is being started has no process yet.
        if let Some(id) = process["pid"].as_u64().and_then(|id| u32::try_from(id).ok()) {
            status.processes.push(Process { role, slot: process["slot"].as_u64()?, id });
        }
    }
    Some(status)
}
