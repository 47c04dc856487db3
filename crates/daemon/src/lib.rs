//! The daemon: a member of the cluster that serves the HTTP API.
//!
//! Owns: what stands behind keys, audit log and configuration, and how the parts are put together.
//! Never: has rules of tubes, pipelines or runs.

pub mod store;
