//! The loop of the leader (C10): every process has it, and does nothing in it unless it leads.
//!
//! Owns: when a tick is due, and that what is called in it fails alone.

use std::future::Future;
use std::time::Duration;

use cluster_core::{Leadership, leadership};

use crate::clock::{self, Timer};
use crate::cluster::Cluster;
use crate::hooks::Hooks;

/// From one tick to the next.
pub const TICK: Duration = Duration::from_secs(1);

/// What the leader does at each tick. Clones are the same.
#[derive(Debug, Clone)]
pub struct Scheduler {
    ticks: Hooks<Leadership>,
}

impl Scheduler {
    /// Starts the loop. It ends when the member has stopped.
    ///
    /// # Errors
    ///
    /// If the process lacks a timer.
    pub fn start(cluster: &Cluster) -> std::io::Result<Self> {
        let scheduler = Self { ticks: Hooks::new("tick") };
        tokio::spawn(run(cluster.clone(), scheduler.ticks.clone(), Timer::new()?));
        Ok(scheduler)
    }

    /// Calls `work` at each tick in which this process leads. What it writes stands behind the guard of the leadership it is
    /// given ([`cluster_core::scripts::leader_guard`]): that may be lost at any moment. The same name replaces.
    pub fn on_tick<F, Fut>(&self, name: &str, work: F)
    where
        F: Fn(Leadership) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.ticks.add(name, work);
    }
}

async fn run(cluster: Cluster, ticks: Hooks<Leadership>, mut timer: Timer) {
    let mut next = clock::boot();
    loop {
        if let Err(error) = timer.until(Some(next)).await {
            tracing::error!("the timer of ticks failed: {error}");
            tokio::time::sleep(TICK).await;
        }
        next = clock::boot().plus(TICK);
        let standing = cluster.standing();
        match (standing.member(), standing.leads(leadership::SCHEDULER)) {
            (Err(crate::standing::NoIdentity::Stopped), _) => return,
            (Ok(holder), Some(epoch)) => {
                let held = Leadership { name: leadership::SCHEDULER, holder, epoch };
                ticks.call(&held);
                cluster.retention().tick(cluster.database(), clock::boot()).await;
            }
            _ => {}
        }
    }
}
