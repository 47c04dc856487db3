//! Test tools: the process harness and its client, the reference model and its generators.

pub mod client;
pub mod cluster_sim;
pub mod demo_work;
pub mod demonstration;
pub mod disk;
pub mod fuzz;
pub mod history;
pub mod ids;
pub mod interleave;
pub mod model;
pub mod multi_sim;
pub mod postgres;
pub mod proc;
pub mod process;
pub mod rng;
pub mod sim;
