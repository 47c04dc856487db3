//! The door over real sockets, with a sample of routes in the place of features.

mod audits;
mod limits;
mod routes;
mod sample;
mod secrets;
mod slow;
mod stops;
mod tls;
mod wire;
