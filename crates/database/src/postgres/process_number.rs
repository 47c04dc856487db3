//! The process number that the server gave at the start of a session.
//!
//! A pooler gives one of its own making. So where it differs from `pg_backend_pid()`, somebody stands in between. The
//! driver keeps the number to itself, but writes it into a request to cancel; such a request is written here into memory,
//! and never sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::CancelToken;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// Bytes of a request to cancel: length, code, process number and key, four bytes each.
const REQUEST_BYTES: usize = 16;

/// The number; `None` if the driver wrote something else than a request to cancel.
pub(super) async fn of(token: &CancelToken) -> Option<i32> {
    let mut tape = Tape(Vec::new());
    token.cancel_query_raw(&mut tape, NoTls).await.ok()?;
    // Where TLS is asked for, eight bytes come before that say so.
    let request = tape.0.last_chunk::<REQUEST_BYTES>()?;
    let [length, _, process, _] =
        [0, 4, 8, 12].map(|at| i32::from_be_bytes([0, 1, 2, 3].map(|byte| request[at + byte])));
    (length == 16).then_some(process)
}

/// Keeps what is written, and says yes to TLS.
struct Tape(Vec<u8>);

impl AsyncRead for Tape {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        buffer.put_slice(b"S");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tape {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Leaves the tape as it is.
struct NoTls;

impl<'a> TlsConnect<&'a mut Tape> for NoTls {
    type Stream = &'a mut Tape;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<&'a mut Tape>>;

    fn connect(self, tape: &'a mut Tape) -> Self::Future {
        std::future::ready(Ok(tape))
    }
}

impl TlsStream for &mut Tape {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}
