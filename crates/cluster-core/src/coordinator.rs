//! Beats, leadership, reaping, requests, cache changes, and the order of start and stop.

mod call;
mod core;
mod office;
mod words;

pub use call::{Call, CallAnswer, CallContext};
pub use core::Coordinator;
pub use words::{Change, CoordinatorSettings, Input, LeaderSeen, Leadership, MemberSeen, Output, View};

#[cfg(test)]
mod tests;
