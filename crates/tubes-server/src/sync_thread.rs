//! The thread on which the log waits for the disk.

use crate::error::ServeError;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use tubes_store::{DiskVfs, SyncError, SyncJob};

/// What a job returned, with its number.
pub(crate) type Done = (u64, Result<(), SyncError>);

/// A handle on the thread. At most one job is under way, so both channels have one place.
#[derive(Debug)]
pub(crate) struct SyncThread {
    jobs: SyncSender<SyncJob<DiskVfs>>,
    done: Receiver<Done>,
}

impl SyncThread {
    /// Starts the thread; it wakes the event loop after each job and ends with its handle.
    pub(crate) fn start(waker: Arc<mio::Waker>) -> Result<SyncThread, ServeError> {
        let (jobs, incoming) = sync_channel::<SyncJob<DiskVfs>>(1);
        let (outgoing, done) = sync_channel(1);
        std::thread::Builder::new()
            .name("log-sync".into())
            .spawn(move || {
                for job in incoming {
                    let id = job.id();
                    if outgoing.send((id, job.run())).is_err() || waker.wake().is_err() {
                        break;
                    }
                }
            })
            .map_err(|source| ServeError::system("start the thread that syncs the log", source))?;
        Ok(SyncThread { jobs, done })
    }

    /// Hands the thread its next job; the one before has returned.
    pub(crate) fn run(&self, job: SyncJob<DiskVfs>) {
        assert!(self.jobs.try_send(job).is_ok(), "the sync thread has ended, or was given a second job");
    }

    /// The job that has returned, if one has.
    pub(crate) fn take_done(&self) -> Option<Done> {
        match self.done.try_recv() {
            Ok(done) => Some(done),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("the sync thread has ended"),
        }
    }

    /// Waits for the job under way.
    pub(crate) fn wait_done(&self) -> Done {
        self.done.recv().expect("the sync thread has ended")
    }
}
