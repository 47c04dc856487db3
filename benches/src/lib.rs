//! Benchmarks: what the queue server costs, beside its original and beside the kernel's own price.
//!
//! Owns: the load generator, the floor server, the measuring of processes, the statistics of pairs and the report.
//! Never: a bound that fails a build. Figures are printed and written down; the tests of this crate only prove that
//! every workload still runs.
//!
//! The binary `bench-group-commit` measures the writer of the databases. `bench-tubes` has three faces: `run` is the whole benchmark, `floor` is the floor server, and `load`
//! puts a workload on a server that is already there, for profiling.
#![forbid(unsafe_code)]

pub mod floor;
pub mod generator;
pub mod group_commit;
pub mod machine;
pub mod multi;
pub mod peer;
pub mod plot;
pub mod process;
pub mod ratio;
pub mod report;
pub mod results;
pub mod round;
pub mod sections;
pub mod workload;
