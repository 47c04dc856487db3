//! JSON in and out.
//!
//! Owns: what JSON is taken: UTF-8, at most so deep, without NUL in a text; and saying where it is wrong.
//! Never: lets a document reach its type before it was looked through: depth is checked before anything is built.

use axum::body::Body;
use axum::extract::{FromRequest, OptionalFromRequest, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::body;
use crate::problem::Problem;

/// How deep arrays and objects may be nested.
pub const JSON_DEPTH_MAX: usize = 64;

/// A body of type `T`, as JSON in requests and answers.
///
/// As an extractor it refuses what is not `application/json`, which also keeps pages of other sites from sending
/// requests through a browser that asks nobody: such a type makes the browser ask first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Json<T>(pub T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Json<T>, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "content_type",
                "the body must be JSON, with the header field `content-type: application/json`",
            ));
        }
        let bytes = body::read(request.into_body()).await?;
        Ok(Json(parse(&bytes)?))
    }
}

/// A body that may be left out.
impl<S: Sync, T: DeserializeOwned> OptionalFromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Option<Json<T>>, Problem> {
        use http_body::Body as _;
        if request.body().is_end_stream() {
            return Ok(None);
        }
        <Json<T> as FromRequest<S>>::from_request(request, state).await.map(Some)
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(bytes) => {
                let mut response = Response::new(Body::from(bytes));
                response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
            Err(error) => Problem::internal(format!("an answer cannot be written as JSON: {error}")).into_response(),
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
        || kind.get(..12).is_some_and(|start| start.eq_ignore_ascii_case("application/"))
            && kind.get(kind.len() - 5..).is_some_and(|end| end.eq_ignore_ascii_case("+json"))
}

/// Reads a document as a `T`.
///
/// # Errors
///
/// A problem with status 400 that says where the document is wrong: by line and column, and by JSON pointer if it is
/// JSON, but no `T`.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    look_through(bytes)?;
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let pointer = pointer(error.path());
        place(error.into_inner(), Some(pointer))
    })?;
    reader.end().map_err(|error| place(error, None))?;
    Ok(parsed)
}

/// What serde says, with its place as members.
fn place(error: serde_json::Error, pointer: Option<String>) -> Problem {
    let code = if error.is_data() { "json_unexpected" } else { "json_malformed" };
    let at = match &pointer {
        Some(pointer) if error.is_data() && !pointer.is_empty() => format!(" at `{pointer}`"),
        _ => String::new(),
    };
    let mut problem = Problem::bad_request(code, format!("the body is not as it should be{at}: {error}"))
        .with("line", error.line())
        .with("column", error.column());
    if error.is_data() {
        problem = problem.with("pointer", pointer.unwrap_or_default());
    }
    problem
}

/// The path as a JSON pointer (RFC 6901).
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } => pointer.push_str(&format!("/{}", key.replace('~', "~0").replace('/', "~1"))),
            // A variant is how the type is made, not how the document is.
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    pointer
}

/// Refuses broken UTF-8, NUL in texts, and what is nested too deeply, in one pass and without building anything. That
/// the rest is JSON is left to the parser.
fn look_through(bytes: &[u8]) -> Result<(), Problem> {
    let at = |offset: usize, code, what: String| {
        let line_start = bytes[..offset].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let line = bytes[..offset].iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = offset - line_start + 1;
        Problem::bad_request(code, format!("{what} at line {line}, column {column} of the body"))
            .with("line", line)
            .with("column", column)
    };
    if let Err(error) = std::str::from_utf8(bytes) {
        return Err(at(error.valid_up_to(), "not_utf8", "the body is not UTF-8".to_owned()));
    }
    let (mut depth, mut in_text, mut offset) = (0usize, false, 0);
    while offset < bytes.len() {
        match bytes[offset] {
            0 => return Err(at(offset, "nul_in_text", "NUL is not allowed".to_owned())),
            b'\\' if in_text => {
                if bytes[offset..].starts_with(b"\\u0000") {
                    return Err(at(offset, "nul_in_text", "a text must not contain NUL".to_owned()));
                }
                offset += 1; // what is escaped ends no text
            }
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                if depth > JSON_DEPTH_MAX {
                    let what = format!("arrays and objects are nested more than {JSON_DEPTH_MAX} deep");
                    return Err(at(offset, "too_deep", what).with("limit", JSON_DEPTH_MAX));
                }
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        offset += 1;
    }
    Ok(())
}

/// Whether a value that did not come through [`parse`] holds a NUL in any text or key.
pub fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(members) => members.iter().any(|(key, value)| key.contains('\0') || has_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Order {
        items: Vec<Item>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Item {
        #[serde(rename = "a/b")]
        count: u32,
    }

    fn refusal(bytes: &[u8]) -> Value {
        parse::<Value>(bytes).unwrap_err().document()
    }

    #[test]
    fn what_does_not_fit_its_type_is_named_by_pointer() {
        assert_eq!(parse::<Order>(br#"{"items":[{"a/b":1}]}"#).unwrap(), Order { items: vec![Item { count: 1 }] });
        let problem = parse::<Order>(br#"{"items":[{"a/b":1},{"a/b":"x"}]}"#).unwrap_err();
        let document = problem.document();
        assert_eq!(problem.status(), 400);
        assert_eq!(document["code"], "json_unexpected");
        assert_eq!(document["pointer"], "/items/1/a~1b");
        assert_eq!(document["line"], 1);
        assert!(parse::<Order>(br#"{"items":[{"a/b":1,"other":2}]}"#).is_err());
    }

    #[test]
    fn hostile_documents_are_refused_with_their_place() {
        let cases: [(&[u8], &str, u64, u64); 9] = [
            (b"", "json_malformed", 1, 0),
            (b"{\"a\":1", "json_malformed", 1, 6),
            (b"{} x", "json_malformed", 1, 4),
            (b"\"\xff\"", "not_utf8", 1, 2),
            (b"[1,\n \"a\\u0000\"]", "nul_in_text", 2, 4),
            (b"{\"a\\u0000\":1}", "nul_in_text", 1, 4),
            (b"\"a\0\"", "nul_in_text", 1, 3),
            (b"\"\\ud800\"", "json_malformed", 1, 8),
            (b"[1e999]", "json_malformed", 1, 6),
        ];
        for (bytes, code, line, column) in cases {
            let document = refusal(bytes);
            let shown = String::from_utf8_lossy(bytes).into_owned();
            assert_eq!(document["code"], code, "{shown}: {document}");
            assert_eq!((&document["line"], &document["column"]), (&line.into(), &column.into()), "{shown}: {document}");
        }
        // An escaped backslash before it: no NUL at all.
        assert_eq!(parse::<String>(br#""\\u0000""#).unwrap(), "\\u0000");
    }

    #[test]
    fn depth_is_bounded_whatever_stands_in_texts() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse::<Value>(nested(JSON_DEPTH_MAX).as_bytes()).is_ok());
        let document = refusal(nested(JSON_DEPTH_MAX + 1).as_bytes());
        assert_eq!((&document["code"], &document["column"]), (&"too_deep".into(), &(JSON_DEPTH_MAX + 1).into()));
        assert_eq!(refusal("[".repeat(1 << 20).as_bytes())["code"], "too_deep");
        assert_eq!(refusal("{\"a\":".repeat(1 << 18).as_bytes())["code"], "too_deep");
        let text = format!("\"{}\\\"{}\"", "[".repeat(1000), "{".repeat(1000));
        assert!(parse::<String>(text.as_bytes()).is_ok());
    }

    #[test]
    fn nul_is_found_wherever_it_stands() {
        assert!(has_nul(&serde_json::json!({"a": [1, "b\0"]})));
        assert!(has_nul(&serde_json::json!({"a\0": 1})));
        assert!(!has_nul(&serde_json::json!({"a": [1, "b", null]})));
    }

    #[test]
    fn only_json_is_taken_as_json() {
        let with = |kind: &'static str| HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"] {
            assert!(is_json(&with(good)), "{good}");
        }
        for bad in ["text/plain", "application/x-www-form-urlencoded", "text/json", "json", "", "application/jsonx"] {
            assert!(!is_json(&with(bad)), "{bad}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}
