//! To be written.

pub mod model;
pub mod rng;
