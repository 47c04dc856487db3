//! How the door says no: problem documents (RFC 9457).
//!
//! Owns: their shape, their header fields, and which of them every route can give.
//! Never: tells a caller what only the log should know.

use std::fmt;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The media type of a problem document.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// How long who was turned away for load waits, unless the problem says otherwise.
pub const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

/// A request that is not carried out, and why.
///
/// `code` is stable: programs react to it. The detail is for people and may change.
#[derive(Clone)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    members: Map<String, Value>,
    retry_after: Option<Duration>,
    challenge: bool,
    cause: Option<String>,
}

impl Problem {
    /// A problem with this status, stable code and detail. The detail says what was wrong, where, and what would be
    /// right; it has no internals.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        debug_assert!(status.is_client_error() || status.is_server_error(), "{status} is no problem");
        let (members, detail) = (Map::new(), detail.into());
        Problem { status, code, detail, members, retry_after: None, challenge: false, cause: None }
    }

    /// 400: the request itself is wrong; sending it again cannot help.
    pub fn bad_request(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, code, detail)
    }

    /// 404: what the request names is not there.
    pub fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// 409: what is there stands against it.
    pub fn conflict(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, code, detail)
    }

    /// 503: the same request may be sent again, after the time that the answer names.
    pub fn unavailable(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail)
    }

    /// 500: our fault. `cause` goes to the log, beside the id of the request; the caller gets that id only.
    pub fn internal(cause: impl fmt::Display) -> Problem {
        let detail = "the server failed; its log says more at this request's id (header `x-request-id`)";
        let mut problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail);
        problem.cause = Some(cause.to_string());
        problem
    }

    /// Adds a member, for programs.
    ///
    /// # Panics
    ///
    /// If `name` is one that every problem has.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Problem {
        assert!(!["type", "title", "status", "detail", "code"].contains(&name), "`{name}` is taken");
        self.members.insert(name.to_owned(), value.into());
        self
    }

    /// When to send the request again, as `Retry-After`, in whole seconds upwards.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Problem {
        self.retry_after = Some(after);
        self
    }

    /// Says by `WWW-Authenticate` how a caller shows who it is; for 401.
    #[must_use]
    pub(crate) fn challenging(mut self) -> Problem {
        self.challenge = true;
        self
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The text for people.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The document, as sent.
    pub fn document(&self) -> Value {
        let mut document = Map::new();
        // Without `type` it is `about:blank`, for which the title is the status's phrase.
        document.insert("title".to_owned(), self.status.canonical_reason().unwrap_or("Problem").into());
        document.insert("status".to_owned(), self.status.as_u16().into());
        document.insert("code".to_owned(), self.code.into());
        document.insert("detail".to_owned(), self.detail.as_str().into());
        document.extend(self.members.clone());
        Value::Object(document)
    }
}

/// What the access log says of an answer that is a problem. It travels in the answer's extensions.
#[derive(Debug, Clone)]
pub(crate) struct Noted {
    pub(crate) code: &'static str,
    pub(crate) cause: Option<String>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.document().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        let overloaded = matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        if let Some(after) = self.retry_after.or(overloaded.then_some(RETRY_AFTER_DEFAULT)) {
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.challenge {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(Noted { code: self.code, cause: self.cause });
        response
    }
}

impl fmt::Debug for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Problem({} {}: {})", self.status.as_u16(), self.code, self.detail)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.detail, self.code)
    }
}

impl std::error::Error for Problem {}

/// Why a request was not carried out (RFC 9457). Some codes bring further members.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemDocument {
    /// The phrase of the status.
    title: String,
    /// The status, as in the answer's first line.
    status: u16,
    /// What programs react to. It is stable.
    code: String,
    /// What was wrong, where, and what would be right; for people.
    detail: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_its_document_with_its_header_fields() {
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "quota_exceeded", "the quota `a` is used up")
            .with("quota", "a")
            .retry_after(Duration::from_millis(1001));
        assert_eq!(
            problem.document(),
            serde_json::json!({
                "title": "Too Many Requests", "status": 429, "code": "quota_exceeded",
                "detail": "the quota `a` is used up", "quota": "a",
            })
        );
        let response = problem.into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["content-type"], PROBLEM_JSON);
        assert_eq!(response.headers()["retry-after"], "2");
    }

    #[test]
    fn who_is_turned_away_for_load_is_always_told_when_to_come_again() {
        let response = Problem::unavailable("commit_unknown", "…").into_response();
        assert_eq!(response.headers()["retry-after"], "1");
        assert!(!Problem::not_found("…").into_response().headers().contains_key("retry-after"));
    }

    #[test]
    fn a_cause_stays_out_of_the_answer() {
        let problem = Problem::internal("password of the database");
        assert!(!problem.document().to_string().contains("password"));
        assert!(!format!("{problem:?} {problem}").contains("password"));
        let response = problem.into_response();
        assert_eq!(response.extensions().get::<Noted>().unwrap().cause.as_deref(), Some("password of the database"));
    }
}
