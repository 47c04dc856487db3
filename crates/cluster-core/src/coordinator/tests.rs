//! Scripts of the coordinator.
