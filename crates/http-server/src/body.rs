//! Bodies of requests: at most so many bytes, in at most so much time.
//!
//! Owns: the limits of a body, and reading a whole one.
//! Never: decompresses: a few bytes would become many.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::time::Sleep;

use crate::problem::Problem;

/// Why a body could not be read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It has more bytes than its route takes.
    #[error("the body has more than {limit} bytes")]
    TooLarge {
        /// What the route takes, in bytes.
        limit: usize,
    },
    /// It did not come in time.
    #[error("the body was not complete after {after:?}")]
    TooSlow {
        /// How long the whole body may take.
        after: Duration,
    },
    /// The connection ended within it, or its chunks are malformed.
    #[error("the body ended early or is malformed")]
    Broken,
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Problem {
        match error {
            BodyError::TooLarge { limit } => {
                let detail = format!("the field `body` has more than {limit} bytes, which is the most this call takes");
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
                    .with("field", "body")
                    .with("limit_bytes", limit)
            }
            BodyError::TooSlow { after } => {
                let detail = format!("the body was not complete after {} ms", after.as_millis());
                Problem::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", detail)
            }
            BodyError::Broken => Problem::bad_request("body_broken", "the body ended early or is malformed"),
        }
    }
}

/// A request's body within its limits. Set on the way in, so that every way of reading it is bounded.
pub(crate) struct Bounded {
    inner: Body,
    left: usize,
    limit: usize,
    within: Duration,
    deadline: Pin<Box<Sleep>>,
    consumed: Arc<AtomicBool>,
}

impl Bounded {
    /// `inner` with at most `limit` bytes, complete `within` from now. `consumed` becomes true at its end.
    pub(crate) fn wrap(inner: Body, limit: usize, within: Duration, consumed: Arc<AtomicBool>) -> Body {
        let deadline = Box::pin(tokio::time::sleep(within));
        Body::new(Bounded { inner, left: limit, limit, within, deadline, consumed })
    }
}

impl HttpBody for Bounded {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                ready!(this.deadline.as_mut().poll(cx));
                return Poll::Ready(Some(Err(BodyError::TooSlow { after: this.within })));
            }
        };
        let result = match frame {
            None => None,
            Some(Err(_)) => Some(Err(BodyError::Broken)),
            Some(Ok(frame)) => match this.left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(left) => {
                    this.left = left;
                    Some(Ok(frame))
                }
                None => Some(Err(BodyError::TooLarge { limit: this.limit })),
            },
        };
        if result.is_none() || this.inner.is_end_stream() {
            this.consumed.store(true, Ordering::Relaxed);
        }
        Poll::Ready(result)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Reads a body to its end. What the door hands to a route is bounded already.
///
/// # Errors
///
/// If it is too large, too slow or broken.
pub async fn read(mut body: Body) -> Result<Bytes, BodyError> {
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let cause = error.into_inner();
            cause.downcast_ref::<BodyError>().copied().unwrap_or(BodyError::Broken)
        })?;
        let Ok(data) = frame.into_data() else { continue };
        match &first {
            None => first = Some(data), // most bodies come in one piece, which needs no copy
            Some(start) => {
                if rest.is_empty() {
                    rest.extend_from_slice(start);
                }
                rest.extend_from_slice(&data);
            }
        }
    }
    Ok(if rest.is_empty() { first.unwrap_or_default() } else { rest.freeze() })
}

/// The whole body as it came, for calls whose body is not JSON.
#[derive(Debug)]
pub struct Raw(pub Bytes);

impl<S: Sync> FromRequest<S> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Raw, Problem> {
        Ok(Raw(read(request.into_body()).await?))
    }
}
