//! The HTTP door of a Tenure process.
//!
//! Owns: everything that stands before a route: accepting connections, TLS, limits and time-outs, keys and scopes,
//! problem documents, the audit hook, request ids, the access log, and the API's description.
//! Never: knows a feature, a table or a statement. The crates above hand in a list of [`Route`]s.

mod access;
mod address;
mod audit;
mod body;
mod connection;
mod door;
mod figures;
mod json;
mod key;
mod keyring;
mod params;
mod problem;
mod request_id;
mod route;
mod scope;
mod server;
mod tls;

pub use access::{Access, Caller, Peer};
pub use address::{AddressRefused, Surroundings, check_address, is_loopback};
pub use audit::{AUDIT_TIMEOUT, AUDIT_WAITING_MAX, AuditEntry, AuditFailed, AuditSink, NoAudit, Recording};
pub use body::{BodyError, Raw, read as read_body};
pub use door::{AdoptSpan, BODY_TIMEOUT, Door, DoorOptions, HEAD_BYTES_MAX, HEADERS_MAX, KeyUse, SPAN_TARGET};
pub use figures::Counted;
pub use json::{JSON_DEPTH_MAX, Json, has_nul, parse as parse_json};
pub use key::{KEY_PREFIX, KeyHash, KeyHashError, KeyId, KeyIdError, KeyText, KeyTextError, SECRET_BYTES};
pub use keyring::{Key, KeyRefused, Keyring};
pub use params::{Path, Query};
pub use problem::{PROBLEM_JSON, Problem, RETRY_AFTER_DEFAULT};
pub use request_id::{REQUEST_ID_HEADER, RequestId};
pub use route::{BODY_BYTES_DEFAULT, Route, RouteInfo, Routes};
pub use scope::{Scope, Scopes, UnknownScope, granted};
pub use server::{ListenError, Server, ServerOptions, Stopped, Stopping, Times, listen};
pub use tls::{Tls, TlsError};
