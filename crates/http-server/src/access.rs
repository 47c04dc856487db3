//! Who asks, and whether a route answers them.
//!
//! Owns: reading `Authorization`, the rule for installations without keys, and which scopes open a route.
//! Never: says of a key more than its id and name.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri, header};

use crate::address::is_loopback;
use crate::key::{KeyId, KeyText};
use crate::keyring::{Key, KeyRefused, Keyring};
use crate::problem::Problem;
use crate::scope::{Scope, Scopes};

/// What a caller needs for a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing: everybody who reaches the address is answered.
    Open,
    /// Nothing, or the scope `read`, as configured: for probes and scrapers.
    Probe,
    /// A key with one of these scopes.
    Scopes(&'static [Scope]),
}

impl Access {
    /// The scopes of which one is needed; none: no key is needed. `public_probes` is what the configuration says.
    pub fn wanted(self, public_probes: bool) -> &'static [Scope] {
        match self {
            Access::Open => &[],
            Access::Probe if public_probes => &[],
            Access::Probe => &[Scope::Read],
            Access::Scopes(scopes) => scopes,
        }
    }
}

/// The other end of a connection, and where it came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its address. Behind a proxy it is the proxy's.
    pub address: SocketAddr,
    /// Whether the socket that it came in by can be reached from this machine only.
    pub on_loopback: bool,
}

/// Who asks.
#[derive(Debug, Clone)]
pub enum Caller {
    /// The holder of a key.
    Key {
        /// The key.
        key: Arc<Key>,
        /// All that it may do beside the other keys that are defined.
        granted: Scopes,
    },
    /// Whoever reaches loopback while no key is defined; may do everything.
    Anonymous,
}

impl Caller {
    /// The id of the caller's key.
    pub fn key_id(&self) -> Option<KeyId> {
        match self {
            Caller::Key { key, .. } => Some(key.hash.id()),
            Caller::Anonymous => None,
        }
    }

    /// Whether the caller may do what `scope` stands for.
    pub fn may(&self, scope: Scope) -> bool {
        match self {
            Caller::Key { granted, .. } => granted.contains(scope),
            Caller::Anonymous => true,
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::Key { key, .. } => write!(f, "{}", key.hash.id()),
            Caller::Anonymous => f.write_str("anonymous"),
        }
    }
}

/// For handlers of routes that need a scope. On an open route nobody was asked, so it must not be used there.
impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Caller, Problem> {
        let missing = || Problem::internal("a handler wants to know the caller of an open route");
        parts.extensions.get::<Caller>().cloned().ok_or_else(missing)
    }
}

/// Says who asks, by the header fields of the request.
///
/// # Errors
///
/// 401 without a valid key where one is needed; 403 for a request that a page of another site makes a browser send to
/// an installation without keys.
pub(crate) fn identify(headers: &HeaderMap, keyring: &Keyring, peer: Peer, now_ms: i64) -> Result<Caller, Problem> {
    if keyring.is_empty() {
        if !peer.on_loopback {
            return Err(unauthorized(
                "no_keys_defined",
                "no key is defined here, and without keys only loopback is answered; define one by `tenure key create`",
            ));
        }
        from_own_site(headers)?;
        return Ok(Caller::Anonymous);
    }
    let text = bearer(headers)?;
    let text: KeyText =
        text.parse().map_err(|error: crate::KeyTextError| unauthorized("key_malformed", error.to_string()))?;
    let (key, granted) = keyring.check(&text, now_ms).map_err(|refused| {
        let code = match refused {
            KeyRefused::Unknown => "key_unknown",
            KeyRefused::Expired => "key_expired",
        };
        unauthorized(code, refused.to_string())
    })?;
    Ok(Caller::Key { key, granted })
}

/// Refuses a caller who may do nothing of `wanted`.
///
/// # Errors
///
/// 403, naming what is missing.
pub(crate) fn admit(caller: &Caller, wanted: &[Scope]) -> Result<(), Problem> {
    let Caller::Key { key, granted } = caller else { return Ok(()) };
    if wanted.iter().any(|scope| granted.contains(*scope)) {
        return Ok(());
    }
    let words = wanted.iter().map(|scope| scope.word()).collect::<Vec<_>>();
    let detail =
        format!("this call wants the scope {}, and the key `{}` has {}", words.join(" or "), key.hash.id(), key.scopes);
    Err(Problem::new(StatusCode::FORBIDDEN, "scope_missing", detail).with("wanted", words))
}

fn unauthorized(code: &'static str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, code, detail).challenging()
}

/// What stands behind `Bearer` in the only `Authorization` field.
fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let malformed =
        || unauthorized("authorization_malformed", "there must be one header field `Authorization`, as `Bearer KEY`");
    let mut fields = headers.get_all(header::AUTHORIZATION).iter();
    let Some(field) = fields.next() else {
        return Err(unauthorized(
            "key_missing",
            "this call wants a key, in the header field `Authorization: Bearer KEY`",
        ));
    };
    if fields.next().is_some() {
        return Err(malformed());
    }
    let (scheme, text) = field.to_str().ok().and_then(|value| value.split_once(' ')).ok_or_else(malformed)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(text) } else { Err(malformed()) }
}

/// Without keys, whatever a browser on this machine can be made to send would be carried out. So such a request must
/// name this machine as its host, which keeps out names that were pointed here, and if a browser says by which page it
/// was made to send it, that must be ours.
fn from_own_site(headers: &HeaderMap) -> Result<(), Problem> {
    let forbidden = |what: &str| Problem::new(StatusCode::FORBIDDEN, "cross_site", what);
    let host = match headers.get(header::HOST) {
        None => None,
        Some(host) => {
            let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
            if !host.as_ref().is_some_and(|host| is_own_name(host.host())) {
                return Err(forbidden(
                    "without keys, the header field `host` must name this machine: localhost, 127.0.0.1 or [::1]",
                ));
            }
            host
        }
    };
    for origin in headers.get_all(header::ORIGIN) {
        let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
        if origin.as_ref().and_then(Uri::authority) != host.as_ref() || host.is_none() {
            return Err(forbidden("without keys, pages of other sites are not answered; define a key"));
        }
    }
    Ok(())
}

fn is_own_name(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use axum::http::header::HeaderName;

    const HERE: Peer =
        Peer { address: SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 5000), on_loopback: true };

    fn key(fill: u8, scopes: &[Scope]) -> (KeyText, Key) {
        let text = KeyText::from_random([fill; 32]);
        let scopes = scopes.iter().copied().collect();
        let key = Key { name: "k".to_owned(), hash: text.hash(), scopes, expires_at_ms: Some(100) };
        (text, key)
    }

    fn headers(fields: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    fn code(result: Result<Caller, Problem>) -> (u16, &'static str) {
        let problem = result.unwrap_err();
        (problem.status().as_u16(), problem.code())
    }

    #[test]
    fn authorization_is_read_strictly() {
        let (text, entry) = key(1, &[Scope::Read]);
        let ring = Keyring::new([entry]);
        let ask = |fields: &[(HeaderName, &str)], now_ms| identify(&headers(fields), &ring, HERE, now_ms);
        let good = format!("Bearer {}", text.reveal());
        let caller = ask(&[(header::AUTHORIZATION, &good)], 99).unwrap();
        assert!(caller.may(Scope::Read) && !caller.may(Scope::Write));
        assert_eq!(caller.to_string(), text.hash().id().as_str());
        assert!(ask(&[(header::AUTHORIZATION, &good.replace("Bearer", "bearer"))], 99).is_ok());

        assert_eq!(code(ask(&[], 0)), (401, "key_missing"));
        assert_eq!(code(ask(&[(header::AUTHORIZATION, &good)], 100)), (401, "key_expired"));
        let other = format!("Bearer {}", key(2, &[]).0.reveal());
        assert_eq!(code(ask(&[(header::AUTHORIZATION, &other)], 0)), (401, "key_unknown"));
        for wrong in ["", "Bearer", "Basic dXNlcjpwYXNz", text.reveal(), "Bearer\u{e4} x", &format!("Bearer={good}")] {
            assert_eq!(code(ask(&[(header::AUTHORIZATION, wrong)], 0)), (401, "authorization_malformed"), "{wrong}");
        }
        for wrong in ["Bearer ", "Bearer x", &format!("{good} "), &good.replace(' ', "  "), &good[..good.len() - 1]] {
            assert_eq!(code(ask(&[(header::AUTHORIZATION, wrong)], 0)), (401, "key_malformed"), "{wrong}");
        }
        let twice = [(header::AUTHORIZATION, good.as_str()), (header::AUTHORIZATION, good.as_str())];
        assert_eq!(code(ask(&twice, 0)), (401, "authorization_malformed"));
    }

    #[test]
    fn without_keys_loopback_alone_is_answered_and_may_do_everything() {
        let none = Keyring::default();
        let caller = identify(&HeaderMap::new(), &none, HERE, 0).unwrap();
        assert!(Scope::ALL.into_iter().all(|scope| caller.may(scope)));
        assert!(admit(&caller, &[Scope::Admin]).is_ok());
        let outside = Peer { on_loopback: false, ..HERE };
        assert_eq!(code(identify(&HeaderMap::new(), &none, outside, 0)), (401, "no_keys_defined"));
    }

    #[test]
    fn without_keys_no_other_site_reaches_us_through_a_browser() {
        let ask = |fields: &[(HeaderName, &str)]| identify(&headers(fields), &Keyring::default(), HERE, 0);
        for host in ["localhost:7070", "127.0.0.1:7070", "[::1]:7070", "LOCALHOST"] {
            assert!(ask(&[(header::HOST, host)]).is_ok(), "{host}");
        }
        for host in ["evil.example", "evil.example:7070", "localhost.evil.example", "10.0.0.1", "", "a b"] {
            assert_eq!(code(ask(&[(header::HOST, host)])), (403, "cross_site"), "{host}");
        }
        let ours = (header::HOST, "localhost:7070");
        assert!(ask(&[ours.clone(), (header::ORIGIN, "http://localhost:7070")]).is_ok());
        for origin in ["http://evil.example", "null", "http://localhost:7071", "http://127.0.0.1:7070", ""] {
            assert_eq!(code(ask(&[ours.clone(), (header::ORIGIN, origin)])), (403, "cross_site"), "{origin}");
        }
        assert_eq!(code(ask(&[(header::ORIGIN, "null")])), (403, "cross_site"));
    }

    #[test]
    fn one_of_the_wanted_scopes_is_enough() {
        let (text, entry) = key(1, &[Scope::Events]);
        let (key, granted) = Keyring::new([entry]).check(&text, 0).unwrap();
        let caller = Caller::Key { key, granted };
        assert!(admit(&caller, &[Scope::Events, Scope::Execute]).is_ok());
        let problem = admit(&caller, &[Scope::Write, Scope::Execute]).unwrap_err();
        assert_eq!((problem.status().as_u16(), problem.code()), (403, "scope_missing"));
        assert!(problem.detail().contains("write or execute") && problem.detail().ends_with("has events"));
    }

    #[test]
    fn probes_are_open_or_want_read() {
        assert_eq!(Access::Probe.wanted(true), []);
        assert_eq!(Access::Probe.wanted(false), [Scope::Read]);
        assert_eq!(Access::Open.wanted(false), []);
    }
}
