//! The configuration of a daemon, over its HTTP interface.

use super::ConfigDoor;
use crate::exit::Failure;
use crate::http::CallError;
use hyper::Method;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use tenure_config::{ConfigHistory, ConfigPage, OverlayKey, SetOption};

/// What is changed where no daemon answers.
type Alone = Box<dyn Fn(&OverlayKey, Option<&str>) -> Result<ConfigPage, Failure>>;

/// The daemon's own interface, and the way to its database while it does not run.
pub(super) struct OverHttp<Send>(pub(super) Send, pub(super) Alone);

impl<Send: Fn(Method, &str, Option<&Json>) -> Result<Json, CallError>> OverHttp<Send> {
    fn ask<Answer: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Json>,
    ) -> Result<Answer, CallError> {
        let answer = (self.0)(method.clone(), path, body)?;
        let odd =
            |error| CallError::Strange { url: path.to_owned(), why: format!("its answer to {method} is odd: {error}") };
        serde_json::from_value(answer).map_err(odd)
    }
}

impl<Send: Fn(Method, &str, Option<&Json>) -> Result<Json, CallError>> ConfigDoor for OverHttp<Send> {
    fn show(&self) -> Result<Option<ConfigPage>, Failure> {
        match self.ask(Method::GET, "/v1/config", None) {
            Ok(page) => Ok(Some(page)),
            Err(CallError::Unreachable { url, .. }) => {
                // Beside the answer, which may be read by a program.
                let note = format!("tenure: no daemon answers at {url}; this is what files and variables say here\n");
                let _ = io::stderr().write_all(note.as_bytes());
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn set(&self, place: &OverlayKey, value: &str) -> Result<ConfigPage, Failure> {
        let body = serde_json::json!(SetOption { value: value.to_owned() });
        match self.ask(Method::PUT, &path(place), Some(&body)) {
            Err(CallError::Unreachable { .. }) => (self.1)(place, Some(value)),
            answer => Ok(answer?),
        }
    }

    fn unset(&self, place: &OverlayKey) -> Result<ConfigPage, Failure> {
        match self.ask(Method::DELETE, &path(place), None) {
            Err(CallError::Unreachable { .. }) => (self.1)(place, None),
            answer => Ok(answer?),
        }
    }

    fn history(&self, place: Option<&OverlayKey>, limit: u32) -> Result<ConfigHistory, Failure> {
        let mut path = format!("/v1/config/history?limit={limit}");
        if let Some(place) = place {
            let _ = write!(path, "&key={}", encoded(&place.text()));
        }
        Ok(self.ask(Method::GET, &path, None)?)
    }
}

fn path(place: &OverlayKey) -> String {
    format!("/v1/config/{}/{}", encoded(&place.section), encoded(&place.key))
}

/// As a part of a path or query.
fn encoded(text: &str) -> impl std::fmt::Display {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// A door that notes each request in `sent` and answers it by `answer`.
    fn door<'a>(
        sent: &'a RefCell<Vec<String>>,
        answer: impl Fn() -> Result<Json, CallError> + 'a,
    ) -> OverHttp<impl Fn(Method, &str, Option<&Json>) -> Result<Json, CallError> + 'a> {
        let send = move |method: Method, path: &str, body: Option<&Json>| {
            let body = body.map_or(String::new(), |body| format!(" {body}"));
            sent.borrow_mut().push(format!("{method} {path}{body}"));
            answer()
        };
        let alone = |place: &OverlayKey, value: Option<&str>| {
            Err(Failure::new(99, format!("changed alone: {} to {value:?}", place.text())))
        };
        OverHttp(send, Box::new(alone))
    }

    #[test]
    fn each_question_is_one_request() {
        let sent = RefCell::new(Vec::new());
        let of_options = door(&sent, || Ok(serde_json::json!({ "version": 7, "options": [] })));
        assert_eq!(of_options.show().unwrap().unwrap().version, 7);
        of_options.set(&OverlayKey::parse("prices.\"a/b c\".input"), "2.5").unwrap();
        of_options.unset(&OverlayKey::parse("log.level")).unwrap();
        let of_changes = door(&sent, || Ok(serde_json::json!({ "changes": [] })));
        of_changes.history(None, 5).unwrap();
        of_changes.history(Some(&OverlayKey::parse("quota.a.limit")), 20).unwrap();
        assert_eq!(
            *sent.borrow(),
            [
                "GET /v1/config",
                "PUT /v1/config/prices%2Ea%2Fb%20c/input {\"value\":\"2.5\"}",
                "DELETE /v1/config/log/level",
                "GET /v1/config/history?limit=5",
                "GET /v1/config/history?limit=20&key=quota%2Ea%2Elimit",
            ]
        );
        // An answer of another shape is told, not taken for an empty one.
        let failure = format!("{:?}", of_changes.show().unwrap_err());
        assert!(failure.contains("missing field"), "{failure}");
    }

    #[test]
    fn without_a_daemon_files_are_shown_and_the_database_is_changed_here() {
        let sent = RefCell::new(Vec::new());
        let nobody =
            door(&sent, || Err(CallError::Unreachable { url: "http://h".to_owned(), why: "refused".to_owned() }));
        assert_eq!(nobody.show().unwrap(), None);
        let place = OverlayKey::parse("log.level");
        let failures = [nobody.set(&place, "debug"), nobody.unset(&place)].map(|answer| answer.unwrap_err());
        let messages = failures.each_ref().map(Failure::message);
        assert_eq!(messages, ["changed alone: log.level to Some(\"debug\")", "changed alone: log.level to None"]);
        let failure = nobody.history(None, 5).unwrap_err();
        assert!(failure.message().contains("no daemon answers at http://h"), "{}", failure.message());
    }
}
