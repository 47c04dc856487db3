//! What stands in a request's address: parts of the path, and the query.
//!
//! Owns: refusing addresses with NUL or broken UTF-8, and telling of others as problems.

use axum::extract::{FromRequestParts, rejection::PathRejection};
use axum::http::Uri;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

use crate::problem::Problem;

/// Parts of the path of type `T`, as `axum::extract::Path` takes them, but refused by a problem.
#[derive(Debug, Clone)]
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, Problem> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Path(value)),
            Err(PathRejection::FailedToDeserializePathParams(error)) => {
                Err(Problem::bad_request("path_unexpected", format!("the path is not as it should be: {error}")))
            }
            Err(error) => Err(Problem::internal(format!("a route reads a path that it does not have: {error}"))),
        }
    }
}

/// The query as a `T`, refused by a problem.
#[derive(Debug, Clone, Default)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query<T>, Problem> {
        match axum::extract::Query::try_from_uri(&parts.uri) {
            Ok(axum::extract::Query(value)) => Ok(Query(value)),
            Err(error) => {
                Err(Problem::bad_request("query_unexpected", format!("the query is not as it should be: {error}")))
            }
        }
    }
}

/// Refuses an address in which NUL or broken UTF-8 hides behind percent signs, before a route or a database sees it.
pub(crate) fn look_through(uri: &Uri) -> Result<(), Problem> {
    for (part, name) in [(uri.path(), "path"), (uri.query().unwrap_or_default(), "query")] {
        if !part.contains('%') {
            continue;
        }
        match percent_decode_str(part).decode_utf8() {
            Err(_) => return Err(Problem::bad_request("not_utf8", format!("the {name} is not UTF-8"))),
            Ok(text) if text.contains('\0') => {
                return Err(Problem::bad_request("nul_in_text", format!("the {name} must not contain NUL")));
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nul_and_broken_utf8_in_an_address_are_refused() {
        for (uri, code) in [
            ("/a%00", Some("nul_in_text")),
            ("/a?b=%00", Some("nul_in_text")),
            ("/%ff", Some("not_utf8")),
            ("/a?b=%c3", Some("not_utf8")),
            ("/a%20b?c=%c3%a4&d=100%", None),
        ] {
            assert_eq!(look_through(&uri.parse().unwrap()).err().map(|problem| problem.code()), code, "{uri}");
        }
    }
}
