//! One connection, from its handshake to its last byte.
//!
//! Owns: how long each step of it may take, and its orderly end.
//! Never: looks into a request.
//!
//! hyper has one time-out for heads, which it also lets run while a connection is idle, so that it cannot be short for
//! the one and long for the other; and it has none for clients that do not take their answer. So hyper gets none, and
//! this module tells from the bytes and requests that pass in which step the connection is:
//!
//! ```text
//! handshake ─> head ─> busy ─> idle ─> head ─> …        busy: from a complete head to the end of its answer
//!   5 s        5 s      │      60 s                     the first byte of a head ends `idle`
//!                       └ at any time: what is to be written is not taken for 30 s
//! ```

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::access::Peer;
use crate::door::{Door, HEAD_BYTES_MAX, HEADERS_MAX};
use crate::figures::Figures;
use crate::server::{Stopping, Times};

/// What hyper refuses by itself, with a bare 431. Twice what the door refuses by a problem that says what was wrong.
const HYPER_HEAD_BYTES_MAX: usize = 2 * HEAD_BYTES_MAX;
const HYPER_HEADERS_MAX: usize = 2 * HEADERS_MAX;
/// Buffer for reading and writing, in bytes: at least a head.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
const _: () = assert!(BUFFER_BYTES_MAX >= HYPER_HEAD_BYTES_MAX);

/// How long after a refusal what the client still sends is taken. Closing at once would reset the connection, and the
/// client might never see why it was refused.
const LINGER: Duration = Duration::from_secs(2);
/// Most bytes that are taken then.
const LINGER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What a connection is served with.
pub(crate) struct Service {
    pub(crate) door: Arc<Door>,
    pub(crate) times: Times,
    pub(crate) on_loopback: bool,
}

/// Serves a connection until it ends or `stopping` begins and nothing is under way on it.
pub(crate) async fn serve(
    service: Arc<Service>,
    stream: TcpStream,
    address: std::net::SocketAddr,
    tls: Option<Arc<rustls::ServerConfig>>,
    mut stopping: Stopping,
) {
    let figures = Arc::clone(service.door.figures());
    let progress = Arc::new(Progress::new(service.times));
    let socket = Socket { stream, progress: Arc::clone(&progress) };
    match tls {
        None => speak(&service, socket, address, progress, stopping).await,
        Some(config) => {
            let shaken = tokio::select! {
                shaken = tokio::time::timeout(service.times.handshake, TlsAcceptor::from(config).accept(socket)) => shaken,
                () = stopping.begun() => return,
            };
            match shaken {
                Ok(Ok(stream)) => {
                    progress.enter(Step::Head);
                    speak(&service, stream, address, progress, stopping).await;
                }
                Ok(Err(error)) => {
                    Figures::add(&figures.handshakes_failed);
                    tracing::debug!(peer = %address, "a TLS handshake failed: {error}");
                }
                Err(_) => {
                    Figures::add(&figures.handshakes_failed);
                    tracing::debug!(peer = %address, "a TLS handshake took too long");
                }
            }
        }
    }
}

/// HTTP/1 over a plain or encrypted stream.
async fn speak<T>(
    service: &Arc<Service>,
    stream: T,
    address: std::net::SocketAddr,
    progress: Arc<Progress>,
    stopping: Stopping,
) where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let consumed = Arc::new(AtomicBool::new(true));
    let peer = Peer { address, on_loopback: service.on_loopback };
    let answer = {
        let (service, progress, consumed, stopping) =
            (Arc::clone(service), Arc::clone(&progress), Arc::clone(&consumed), stopping.clone());
        service_fn(move |request: hyper::Request<Incoming>| {
            progress.enter(Step::Busy);
            let (service, progress, consumed) = (Arc::clone(&service), Arc::clone(&progress), Arc::clone(&consumed));
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(stopping.clone());
            Box::pin(async move {
                let response: Response = service.door.answer_noting(request, peer, consumed).await;
                Ok::<_, std::convert::Infallible>(response.map(|body| Answer { body, progress }))
            })
        })
    };
    let io = TokioIo::new(Requests { stream, progress: Arc::clone(&progress) });
    let mut connection = http1::Builder::new()
        .max_headers(HYPER_HEADERS_MAX)
        .max_header_size(HYPER_HEAD_BYTES_MAX)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(io, answer);

    let end = watch(&mut connection, &progress, stopping).await;
    let figures = service.door.figures();
    let mut unread = false;
    match end {
        // A refusal may have been sent while the client still sends.
        End::Spoken => unread = progress.is_within_head() || !consumed.load(Ordering::Relaxed),
        End::TooSlow(Step::Head) => Figures::add(&figures.heads_too_slow),
        End::TooSlow(Step::Idle) => Figures::add(&figures.idle_closed),
        End::TooSlow(Step::Busy) => {
            // What is to be written is not taken, so there is no orderly end either.
            Figures::add(&figures.answers_not_taken);
            return;
        }
    }
    let Requests { stream, .. } = connection.into_parts().io.into_inner();
    close(stream, unread).await;
}

/// How a connection ended.
enum End {
    /// One side was done, or what came was no HTTP.
    Spoken,
    /// A step took too long.
    TooSlow(Step),
}

/// Drives a connection, and looks at the time.
async fn watch<T, S>(
    connection: &mut http1::Connection<TokioIo<Requests<T>>, S>,
    progress: &Progress,
    stopping: Stopping,
) -> End
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
    S: hyper::service::HttpService<Incoming, ResBody = Answer> + Unpin,
    S::Future: Unpin,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut asked_to_stop = std::pin::pin!(async move {
        let mut stopping = stopping;
        stopping.begun().await;
    });
    let mut stopped = false;
    let mut timer = std::pin::pin!(tokio::time::sleep_until(Instant::now()));
    std::future::poll_fn(|cx| {
        if !stopped && asked_to_stop.as_mut().poll(cx).is_ready() {
            stopped = true;
            Pin::new(&mut *connection).graceful_shutdown();
        }
        // An error is a client that is gone or does not speak HTTP; hyper has answered what can be answered.
        if connection.poll_without_shutdown(cx).is_ready() {
            return Poll::Ready(End::Spoken);
        }
        // Each change of a step happens while the connection is polled, so it is seen here at once.
        match progress.deadline() {
            None => Poll::Pending,
            Some((deadline, step)) => {
                if timer.deadline() != deadline {
                    timer.as_mut().reset(deadline);
                }
                timer.as_mut().poll(cx).map(|()| End::TooSlow(step))
            }
        }
    })
    .await
}

/// Says that nothing more comes, and takes for a while what the client still sends.
async fn close<T: AsyncRead + AsyncWrite + Unpin>(mut stream: T, unread: bool) {
    // All that can fail here is that the client is gone, which is what is wanted.
    let _ = tokio::time::timeout(LINGER, async {
        stream.shutdown().await?;
        let (mut left, mut thrown_away) = (if unread { LINGER_BYTES_MAX } else { 0 }, [0; 4096]);
        while left > 0 {
            match stream.read(&mut thrown_away).await? {
                0 => break,
                bytes => left = left.saturating_sub(bytes),
            }
        }
        io::Result::Ok(())
    })
    .await;
}

/// Answers a connection that is one too many, without reading more of it than there is.
pub(crate) async fn refuse(mut stream: TcpStream, answer: &str) {
    if tokio::time::timeout(LINGER, stream.write_all(answer.as_bytes())).await.is_ok_and(|written| written.is_ok()) {
        close(stream, true).await;
    }
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The head of a request is awaited or coming.
    Head,
    /// A request is being answered.
    Busy,
    /// Between two requests.
    Idle,
}

/// Which step a connection is in, and since when.
struct Progress {
    times: Times,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    step: Step,
    since: Instant,
    /// Whether a part of the head has come, in the step `Head`.
    begun: bool,
    /// Since when nothing of what is to be written could be.
    stalled: Option<Instant>,
}

impl Progress {
    fn new(times: Times) -> Progress {
        let state = State { step: Step::Head, since: Instant::now(), begun: false, stalled: None };
        Progress { times, state: Mutex::new(state) }
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_within_head(&self) -> bool {
        self.change(|state| state.step == Step::Head && state.begun)
    }

    fn enter(&self, step: Step) {
        self.change(|state| (state.step, state.since, state.begun) = (step, Instant::now(), false));
    }

    /// Bytes came in.
    fn received(&self) {
        self.change(|state| {
            if state.step == Step::Idle {
                (state.step, state.since) = (Step::Head, Instant::now());
            }
            state.begun = true;
        });
    }

    /// A write went on, or could not.
    fn written(&self, went_on: bool) {
        self.change(|state| {
            state.stalled = if went_on { None } else { state.stalled.or_else(|| Some(Instant::now())) };
        });
    }

    /// When the connection has taken too long, and in which step; a write that is stuck counts as `Busy`.
    fn deadline(&self) -> Option<(Instant, Step)> {
        let State { step, since, stalled, .. } = self.change(|state| *state);
        let step_end = match step {
            Step::Head => Some((since + self.times.head, step)),
            Step::Idle => Some((since + self.times.idle, step)),
            Step::Busy => None,
        };
        let stall_end = stalled.map(|since| (since + self.times.write, Step::Busy));
        step_end.into_iter().chain(stall_end).min_by_key(|(deadline, _)| *deadline)
    }
}

/// The socket itself: what goes out is seen here, below TLS, so that each byte that is taken counts.
struct Socket {
    stream: TcpStream,
    progress: Arc<Progress>,
}

impl Socket {
    fn note<T>(&self, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.progress.written(poll.is_ready());
        poll
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note(poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What hyper reads: the first byte of a request is seen here, above TLS, whose own messages are no requests.
struct Requests<T> {
    stream: T,
    progress: Arc<Progress>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Requests<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.progress.received();
        }
        poll
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Requests<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// An answer's body. When it is through, the connection is idle.
struct Answer {
    body: Body,
    progress: Arc<Progress>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.progress.enter(Step::Idle);
    }
}
