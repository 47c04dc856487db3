//! Between the supervisor's control channel and the parts of an asynchronous program.
//!
//! Owns: the channel. A task of the runtime reads it and answers pings, so that no answer comes from a program whose
//! runtime stands still; the supervisor then kills it, as it does with any process that is frozen.
//! Never: waits for the parts. What they should know is a state that each of them reads when it likes, not a message that
//! could be missed.

use crate::exit::Failure;
use nix::sys::resource::{UsageWho, getrusage};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use supervisor::{Child, FromChild, Instance, Instruction, Pages, Reporter, Role, Start, ToChild};
use tenure_config::{Config, Sources};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::watch;

/// How far the life of the daemon has come, as its supervisor wants it. It only rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Others are not ready yet.
    Starting,
    /// Connections may be accepted.
    Going,
    /// To end within this time.
    Stopping(Duration),
}

/// What the daemon is told, as each of its parts can read it. Clones see the same.
#[derive(Debug, Clone)]
pub(crate) struct Orders {
    phase: watch::Receiver<Phase>,
    config: watch::Receiver<Arc<Config>>,
}

impl Orders {
    /// Returns when connections may be accepted, or when there is nothing to wait for any more because the daemon is to
    /// stop.
    pub(crate) async fn go(&mut self) {
        // Its other end goes with the runtime only, and this with it.
        let _ = self.phase.wait_for(|phase| *phase > Phase::Starting).await;
    }

    /// Returns when the daemon is to stop: how long that may take before it is killed.
    pub(crate) async fn stop(&mut self) -> Duration {
        match self.phase.wait_for(|phase| matches!(phase, Phase::Stopping(_))).await.map(|phase| *phase) {
            Ok(Phase::Stopping(within)) => within,
            // Nobody is there any more who could say so.
            _ => Duration::ZERO,
        }
    }

    /// The configuration in force, and a way to learn of the next.
    pub(crate) fn config(&self) -> watch::Receiver<Arc<Config>> {
        self.config.clone()
    }
}

/// Says that the daemon could serve.
#[derive(Debug)]
pub(crate) struct Ready {
    reporter: Reporter,
    generation: u32,
}

impl Ready {
    /// Says so. If it cannot be said the supervisor is gone, and this process is about to be killed.
    pub(crate) fn report(self) {
        let _ = self.reporter.send(&FromChild::Ready { generation: self.generation, jobs: 0, next_id: 0 });
    }
}

/// The daemon's end of the control channel.
#[derive(Debug)]
pub(super) struct Control {
    child: Child,
    /// A copy of its descriptor, which only tells when there is something to hear.
    channel: UnixStream,
    instance: Instance,
    pages: Pages,
    phase: watch::Sender<Phase>,
    config: watch::Sender<Arc<Config>>,
}

impl Control {
    /// Within a runtime.
    pub(super) fn new(child: Child, start: Start, config: &Config) -> io::Result<(Control, Orders, Ready)> {
        let Start { instance, pages, .. } = start;
        let ready = Ready { reporter: child.reporter(), generation: instance.generation };
        let (phase, phase_seen) = watch::channel(Phase::Starting);
        let (config, config_seen) = watch::channel(Arc::new(config.clone()));
        let channel = std::os::unix::net::UnixStream::from(child.as_fd().try_clone_to_owned()?);
        let channel = UnixStream::from_std(channel)?;
        let orders = Orders { phase: phase_seen, config: config_seen };
        Ok((Control { child, channel, instance, pages, phase, config }, orders, ready))
    }

    /// Passes on what the supervisor says, for as long as it is there.
    pub(super) async fn obey(mut self) {
        while self.hear().await.is_ok() {}
        // It is gone, and the kernel kills this process.
    }

    async fn hear(&mut self) -> io::Result<()> {
        self.channel.readable().await?;
        let message = self.channel.try_io(Interest::READABLE, || {
            self.child.recv()?.ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))
        });
        match message {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
            Ok(ToChild::Say(instruction)) => self.take(instruction)?,
            Ok(ToChild::Options(options)) => match config_of(&options) {
                Ok(config) => {
                    drop(self.config.send_replace(Arc::new(config)));
                    tracing::info!("the daemon has another configuration");
                }
                Err(failure) => tracing::error!("the configuration in force stays: {}", failure.message()),
            },
            // Of processes with peers.
            Ok(ToChild::Link { .. }) => {}
        }
        Ok(())
    }

    fn take(&mut self, instruction: Instruction) -> io::Result<()> {
        match instruction {
            Instruction::Ping { nonce } => {
                self.write_usage();
                let generation = self.instance.generation;
                self.child.send(&FromChild::Pong { generation, nonce, in_sync_ms: None })
            }
            Instruction::Go => {
                self.raise(Phase::Going);
                Ok(())
            }
            Instruction::Stop { within_ms } => {
                self.raise(Phase::Stopping(Duration::from_millis(within_ms)));
                Ok(())
            }
            // Of the queue server.
            Instruction::PeerGone(_) | Instruction::Drain | Instruction::Barrier { .. } => Ok(()),
        }
    }

    fn raise(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let is_later = std::mem::discriminant(phase) != std::mem::discriminant(&to) && *phase < to;
            if is_later {
                *phase = to;
            }
            is_later
        });
    }

    fn write_usage(&self) {
        let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return };
        let micros = |time: nix::sys::time::TimeVal| {
            u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec()).unwrap_or(0)
        };
        let page = self.pages.figures(Role::Daemon, self.instance.slot);
        page.counter(super::CPU_USER_US).store(micros(usage.user_time()), Ordering::Relaxed);
        page.counter(super::CPU_SYSTEM_US).store(micros(usage.system_time()), Ordering::Relaxed);
    }
}

/// The configuration that the supervisor has handed over.
pub(super) fn config_of(options: &serde_json::Value) -> Result<Config, Failure> {
    // What is wrong with it is not said: the words would be those of the configuration, which has secrets.
    let sources: Sources = serde_json::from_value(options.clone()).map_err(|_| {
        Failure::new(crate::exit::USAGE, "what the supervisor says of the configuration is not understood")
    })?;
    Ok(tenure_config::read(&sources)?)
}
