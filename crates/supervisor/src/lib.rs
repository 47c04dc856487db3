//! The process tree of a server: one supervisor; owners that have the jobs and frontends that have the clients, or one
//! process with both; and a daemon with everything else.
//!
//! Owns: slots and generations, start barrier, restart policy, watchdog, drain and stop; the control channel; the shared
//! pages; locks; the status of all of it.
//! Never: talks to clients, opens a log or a database, or knows what processes say to each other over their links.
//!
//! ```text
//!   supervise(plan) ── rules: decisions without time or I/O
//!        │        └─── shell: processes, sockets, signals, clocks
//!        │ control channel (messages and descriptors), pidfd, lifeline
//!   Child::from_inherited() in every process it starts
//! ```
//!
//! Linux only: elsewhere [`supervise`] refuses.

mod error;
mod message;
mod plan;
pub mod rules;
mod status;

#[cfg(target_os = "linux")]
mod child;
#[cfg(target_os = "linux")]
mod control;
#[cfg(target_os = "linux")]
pub mod lock;
#[cfg(target_os = "linux")]
mod pages;
#[cfg(target_os = "linux")]
mod shell;
#[cfg(target_os = "linux")]
mod sys;

pub use error::SuperviseError;
pub use message::{Ending, FailureCause, FromChild, Instance, Instruction, Role, Slot, Topology};
pub use plan::{OnReload, Plan, RaiseGeneration, RolePlan, generations_in_memory};
pub use rules::{OnSlotFailed, RestartPolicy};
pub use status::{ProcessStatus, Status, StatusError};

#[cfg(target_os = "linux")]
pub use child::{Child, ChildError, Reporter, Start, ToChild};
#[cfg(target_os = "linux")]
pub use pages::{PAGE_COUNTERS, Page, Pages, ServerPage};
#[cfg(target_os = "linux")]
pub use plan::OnEnded;
#[cfg(target_os = "linux")]
pub use shell::{Signals, supervise};
#[cfg(target_os = "linux")]
pub use status::{query, restart_slot};

/// Refuses: this system cannot tie processes together safely.
///
/// # Errors
///
/// Always [`SuperviseError::Unsupported`].
#[cfg(not(target_os = "linux"))]
pub fn supervise(plan: Plan) -> Result<(), SuperviseError> {
    drop(plan);
    Err(SuperviseError::Unsupported {
        facility: "process descriptors, a signal at the parent's death, memory by descriptor and SEQPACKET sockets (Linux)",
    })
}
