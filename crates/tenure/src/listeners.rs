//! Opening the sockets of what is not the queue server.

use crate::exit::{self, Failure};
use std::io::ErrorKind;
use std::net::TcpListener;
use tenure_config::Listen;

/// Listens at a TCP address that the option `key` names.
///
/// # Errors
///
/// It is in use (111), or cannot be had (5).
pub(crate) fn tcp(listen: &Listen, key: &str) -> Result<TcpListener, Failure> {
    let Listen::Tcp { host, port } = listen else {
        return Err(Failure::new(exit::USAGE, format!("{key} is {listen}, which is no address with a port")));
    };
    TcpListener::bind((host.as_str(), *port)).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            Failure::new(exit::ADDRESS_IN_USE, format!("failed to listen on {listen} ({key}): the address is in use"))
        }
        _ => Failure::new(exit::USAGE, format!("failed to listen on {listen} ({key}): {error}")),
    })
}
