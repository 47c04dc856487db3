//! Where the door may be opened.
//!
//! Owns: the rule that what others can reach has keys and TLS.
//! Never: opens a socket.

use std::net::{IpAddr, SocketAddr};

/// What stands around an address that is to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Surroundings {
    /// At least one key is defined.
    pub has_keys: bool,
    /// Certificate and key are configured.
    pub has_tls: bool,
    /// `[http] allow_plaintext`.
    pub allow_plaintext: bool,
}

/// Why an address is not opened, and what would have to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressRefused {
    /// Others could reach it and nobody would be asked who they are.
    #[error(
        "[http] listen = \"{0}\" can be reached from other machines, and no key is defined: define one by `tenure key \
         create` or [keys.NAME], or listen on 127.0.0.1"
    )]
    NoKeys(SocketAddr),
    /// Keys would cross the network in clear.
    #[error(
        "[http] listen = \"{0}\" can be reached from other machines, and keys would cross the network in clear: set \
         [http] tls_cert and tls_key, or allow_plaintext = true where something else encrypts, or listen on 127.0.0.1"
    )]
    NoTls(SocketAddr),
}

/// Whether only this machine reaches `ip`.
pub fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Whether the door may be opened at `address`.
///
/// # Errors
///
/// If others could reach it without keys, or in clear though nobody allowed that.
pub fn check_address(address: SocketAddr, around: Surroundings) -> Result<(), AddressRefused> {
    if is_loopback(address.ip()) {
        return Ok(());
    }
    if !around.has_keys {
        return Err(AddressRefused::NoKeys(address));
    }
    if !around.has_tls && !around.allow_plaintext {
        return Err(AddressRefused::NoTls(address));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_others_reach_needs_keys_and_tls_or_a_word() {
        for has_keys in [false, true] {
            for has_tls in [false, true] {
                for allow_plaintext in [false, true] {
                    let around = Surroundings { has_keys, has_tls, allow_plaintext };
                    for ours in ["127.0.0.1:7070", "127.8.0.1:1", "[::1]:7070", "[::ffff:127.0.0.1]:7070"] {
                        assert_eq!(check_address(ours.parse().unwrap(), around), Ok(()), "{ours} {around:?}");
                    }
                    for text in ["0.0.0.0:7070", "[::]:7070", "10.0.0.1:80", "[::ffff:10.0.0.1]:7070"] {
                        let address = text.parse().unwrap();
                        let expected = match (has_keys, has_tls || allow_plaintext) {
                            (false, _) => Err(AddressRefused::NoKeys(address)),
                            (true, false) => Err(AddressRefused::NoTls(address)),
                            (true, true) => Ok(()),
                        };
                        assert_eq!(check_address(address, around), expected, "{text} {around:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_refusal_says_what_to_set() {
        let address = "10.0.0.1:80".parse().unwrap();
        let said = AddressRefused::NoKeys(address).to_string();
        assert!(said.contains("10.0.0.1:80") && said.contains("tenure key create"), "{said}");
        let said = AddressRefused::NoTls(address).to_string();
        assert!(said.contains("tls_cert") && said.contains("allow_plaintext = true"), "{said}");
    }
}
