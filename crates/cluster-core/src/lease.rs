//! An identity's life: registration, renewal, the deadline by the own clock, the fence, registering anew.

mod agent;
mod call;
mod clocks;
mod words;

pub use agent::LeaseAgent;
pub use call::{LeaseAnswer, LeaseCall};
pub use words::{Clock, ConnectError, FenceReason, LeaseInput, LeaseOutput, LeaseSettings, Process, Refusal};

#[cfg(test)]
mod tests;
