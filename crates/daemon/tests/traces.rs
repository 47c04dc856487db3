//! Spans of a whole daemon at a collector over loopback: names, parents, resource; a collector that is away or silent;
//! sampling; no secrets.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use daemon::{Control, DaemonError, SpansCounted, Traces, TracesError};
use http_body_util::{BodyExt as _, Full};
use http_server::KeyText;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
use prost::Message as _;
use tenure_config::{Config, LoadOptions};
use testing::process::{Folder, OUTER_LIMIT};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt as _;

/// How long a daemon may take to stop. Of it a quarter is for spans.
const STOP: Duration = Duration::from_secs(8);
/// Calls that a test may leave unread.
const CALLS_MAX: usize = 64;

/// A call as the collector saw it.
struct Call {
    path: String,
    content_type: String,
    body: Bytes,
}

/// A collector that takes all calls, and says of `refused` spans in each that it does not want them.
async fn collector(refused: i64) -> (String, mpsc::Receiver<Call>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (calls, seen) = mpsc::channel(CALLS_MAX);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let calls = calls.clone();
            let take = service_fn(move |request: Request<Incoming>| {
                let calls = calls.clone();
                async move {
                    let path = request.uri().path().to_owned();
                    let content_type = request.headers()["content-type"].to_str().unwrap().to_owned();
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let _ = calls.send(Call { path, content_type, body }).await;
                    let partial = ExportTracePartialSuccess { rejected_spans: refused, error_message: String::new() };
                    let answer = ExportTraceServiceResponse { partial_success: (refused > 0).then_some(partial) };
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(answer.encode_to_vec()))))
                }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), take));
        }
    });
    (endpoint, seen)
}

/// A daemon on a database of its own, on the thread of the test.
struct Running {
    address: SocketAddr,
    traces: Option<Traces>,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), DaemonError>>,
    /// Spans and messages of this thread only, so tests do not see each other's.
    _subscriber: DefaultGuard,
    _folder: Folder,
}

fn configured(folder: &Folder, more: &str) -> Config {
    let file = folder.join("tenure.toml");
    let text = format!("[data]\ndir = {:?}\n{more}", folder.join("data"));
    std::fs::write(&file, text).unwrap();
    let options = LoadOptions {
        explicit: Some(file),
        environment: Vec::new(),
        folder: folder.path().to_owned(),
        system_file: folder.join("none"),
    };
    tenure_config::load(options).unwrap()
}

impl Running {
    fn start(more: &str) -> Running {
        let folder = Folder::new();
        let config = configured(&folder, more);
        let traces = Traces::start(&config.telemetry, Handle::current()).unwrap();
        let subscriber = tracing_subscriber::registry().with(traces.as_ref().map(Traces::layer));
        let subscriber = tracing::subscriber::set_default(subscriber);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let control = Control {
            listener,
            on_ready: Box::new(|| {}),
            go: Box::pin(async {}),
            stop: Box::pin(async move {
                let _ = stopped.await;
                STOP
            }),
            config: watch::channel(Arc::new(config.clone())).1,
            on_config: Box::new(|_| {}),
            supervisor: None,
            metrics: Vec::new(),
            routes: |_| daemon::no_routes(),
            steps: Arc::new([]),
            traces: traces.clone(),
        };
        let ended = tokio::spawn(daemon::run(config, control));
        Running { address, traces, stop, ended, _subscriber: subscriber, _folder: folder }
    }

    /// Asks over a connection of its own; gives the answer, head and body.
    async fn ask(&self, line: &str, fields: &[&str]) -> String {
        let asking = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
            let request = format!("{line} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{fields}\r\n", self.address);
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        tokio::time::timeout(OUTER_LIMIT, asking).await.expect("no answer")
    }

    /// Asks until the daemon is a member.
    async fn until_ready(&self) {
        let ready = async {
            while !self.ask("GET /readyz", &[]).await.starts_with("HTTP/1.1 200") {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(OUTER_LIMIT, ready).await.expect("the daemon is no member");
    }

    /// Stops the daemon; gives how long that took, and what became of its spans.
    async fn stop(self) -> (Duration, SpansCounted) {
        let began = Instant::now();
        self.stop.send(()).unwrap();
        tokio::time::timeout(OUTER_LIMIT, self.ended).await.expect("it does not stop").unwrap().unwrap();
        (began.elapsed(), self.traces.map(|traces| traces.counted()).unwrap_or_default())
    }
}

/// All spans of the calls that came, of which each must be one of the protocol.
fn spans(calls: &mut mpsc::Receiver<Call>) -> Vec<Span> {
    let mut spans = Vec::new();
    while let Ok(call) = calls.try_recv() {
        assert_eq!((call.path.as_str(), call.content_type.as_str()), ("/v1/traces", "application/x-protobuf"));
        let request = ExportTraceServiceRequest::decode(call.body).unwrap();
        for of_resource in request.resource_spans {
            let resource = of_resource.resource.unwrap().attributes;
            assert_eq!(text(&resource, "service.name").as_deref(), Some("tenure at home"));
            assert_eq!(text(&resource, "service.version").as_deref(), Some(env!("CARGO_PKG_VERSION")));
            assert_eq!(text(&resource, "process.pid"), Some(std::process::id().to_string()));
            assert!(text(&resource, "host.name").is_some());
            spans.extend(of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans));
        }
    }
    spans
}

/// The value of an attribute, as text.
fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?;
    Some(match value.value? {
        any_value::Value::StringValue(text) => text,
        any_value::Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn telemetry(endpoint: &str, more: &str) -> String {
    format!("[telemetry]\notlp_endpoint = \"{endpoint}\"\nservice_name = \"tenure at home\"\n{more}\n")
}

#[tokio::test]
async fn a_collector_gets_a_span_of_each_request_with_its_parent_and_no_secret() {
    let (endpoint, mut calls) = collector(0).await;
    let key = KeyText::generate().unwrap();
    let hash = key.hash().to_string();
    let keys = format!("[keys.reader]\nhash = \"{hash}\"\nscopes = [\"read\"]\n");
    let running = Running::start(&(telemetry(&endpoint, "") + &keys));
    running.until_ready().await;

    let bearer = format!("authorization: Bearer {}", key.reveal());
    let traceparent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let answer = running.ask("GET /v1/config?section=canary-in-query", &[&bearer, traceparent]).await;
    assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
    // The scope is missing: the key is known all the same.
    let refused = running.ask("DELETE /v1/keys/canary-in-path", &[&bearer, "cookie: canary-in-field"]).await;
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    // Neither of two parents is one.
    let nowhere = running.ask("BREW /canary-in-path", &[traceparent, traceparent]).await;
    assert!(nowhere.starts_with("HTTP/1.1 404"), "{nowhere}");
    let metrics = running.ask("GET /metrics", &[]).await;
    assert!(metrics.contains("# TYPE tenure_spans_total counter"), "{metrics}");
    assert!(metrics.contains("tenure_spans_total{outcome=\"overflowed\"} 0"), "{metrics}");
    let (_, counted) = running.stop().await;

    let mut bodies = Vec::new();
    let (mirror, mut mirrored) = mpsc::channel(CALLS_MAX);
    while let Ok(call) = calls.try_recv() {
        bodies.extend_from_slice(&call.body);
        mirror.send(call).await.unwrap();
    }
    let seen = String::from_utf8_lossy(&bodies);
    for secret in [key.reveal(), &hash, hash.trim_start_matches("sha256:"), "canary"] {
        assert!(!seen.contains(secret), "a span has {secret:?} in it");
    }

    let spans = spans(&mut mirrored);
    assert_eq!(counted, SpansCounted { sent: spans.len() as u64, ..SpansCounted::default() });
    let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name}"));
    for span in &spans {
        assert_eq!(span.kind, SpanKind::Server as i32, "{span:?}");
        assert!(text(&span.attributes, "tenure.request_id").is_some(), "{span:?}");
        assert!(span.events.is_empty(), "a line of the log is in a span: {span:?}");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    }

    let config = named("GET /v1/config");
    assert_eq!(hex(&config.trace_id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(hex(&config.parent_span_id), "b7ad6b7169203331");
    assert_eq!(text(&config.attributes, "http.route").as_deref(), Some("/v1/config"));
    assert_eq!(text(&config.attributes, "http.request.method").as_deref(), Some("GET"));
    assert_eq!(text(&config.attributes, "tenure.key_id"), Some(key.hash().id().to_string()));
    let status = text(&config.attributes, "http.response.status_code").unwrap();
    assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status} {answer}");

    let refused = named("DELETE /v1/keys/{key}");
    assert_eq!(text(&refused.attributes, "http.response.status_code").as_deref(), Some("403"));
    assert_eq!(text(&refused.attributes, "tenure.key_id"), Some(key.hash().id().to_string()));
    assert!(refused.parent_span_id.is_empty());

    let nowhere = named("_OTHER");
    assert!(nowhere.parent_span_id.is_empty() && text(&nowhere.attributes, "http.route").is_none());
    assert_eq!(text(&nowhere.attributes, "http.response.status_code").as_deref(), Some("404"));
    assert_ne!(hex(&nowhere.trace_id), "0af7651916cd43dd8448eb211c80319c");

    let probe = named("GET /readyz");
    assert!(text(&probe.attributes, "tenure.key_id").is_none());
}

#[tokio::test]
async fn without_sampling_only_what_a_caller_samples_is_sent() {
    let (endpoint, mut calls) = collector(0).await;
    let running = Running::start(&telemetry(&endpoint, "sampling = 0"));
    running.until_ready().await;
    running.ask("GET /healthz", &["traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"]).await;
    running.ask("GET /metrics", &["traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]).await;
    let (_, counted) = running.stop().await;
    let spans = spans(&mut calls);
    assert_eq!(spans.iter().map(|span| span.name.as_str()).collect::<Vec<_>>(), ["GET /metrics"]);
    assert_eq!(counted, SpansCounted { sent: 1, ..SpansCounted::default() });
}

#[tokio::test]
async fn spans_that_a_collector_does_not_take_are_counted() {
    let (endpoint, mut calls) = collector(1).await;
    let running = Running::start(&telemetry(&endpoint, ""));
    running.ask("GET /healthz", &[]).await;
    running.ask("GET /healthz", &[]).await;
    let (_, counted) = running.stop().await;
    let mut batches = 0;
    let mut taken = 0;
    while let Ok(call) = calls.try_recv() {
        batches += 1;
        let request = ExportTraceServiceRequest::decode(call.body).unwrap();
        taken +=
            request.resource_spans.iter().flat_map(|spans| &spans.scope_spans).map(|of| of.spans.len()).sum::<usize>();
    }
    assert_eq!(taken, 2);
    assert_eq!(counted, SpansCounted { sent: 2 - batches, overflowed: 0, refused: batches });
}

#[tokio::test]
async fn a_collector_that_is_away_costs_its_spans_and_nothing_else() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let running = Running::start(&telemetry(&endpoint, ""));
    running.until_ready().await;
    assert!(running.ask("GET /healthz", &[]).await.starts_with("HTTP/1.1 200"));
    let (_, counted) = running.stop().await;
    assert!(counted.refused >= 2 && counted.sent == 0 && counted.overflowed == 0, "{counted:?}");
}

#[tokio::test]
async fn a_collector_that_is_silent_does_not_hold_up_the_stop() {
    // It is connected to, as the system accepts for it, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let running = Running::start(&telemetry(&endpoint, "otlp_timeout = \"1h\""));
    running.until_ready().await;
    let (took, counted) = running.stop().await;
    assert_eq!((counted.sent, counted.refused), (0, 0), "{counted:?}");
    // With its time-out it would take an hour. How long the rest of a stop takes depends on the machine.
    assert!(took < OUTER_LIMIT, "{took:?}");
}

#[tokio::test]
async fn without_a_collector_there_are_no_spans() {
    let running = Running::start("");
    assert!(running.traces.is_none());
    let metrics = running.ask("GET /metrics", &[]).await;
    assert!(metrics.starts_with("HTTP/1.1 200") && !metrics.contains("tenure_spans_total"), "{metrics}");
    running.stop().await;
}

#[tokio::test]
async fn a_flood_of_spans_is_bounded_and_what_is_too_much_is_counted() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = Folder::new();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let config = configured(&folder, &telemetry(&endpoint, "otlp_timeout = \"1h\""));
    let traces = Traces::start(&config.telemetry, Handle::current()).unwrap().unwrap();
    let subscriber = tracing::subscriber::set_default(tracing_subscriber::registry().with(traces.layer()));
    for _ in 0..3_000 {
        tracing::info_span!(target: "tenure::spans", "flood").in_scope(|| {});
        tracing::info_span!(target: "elsewhere", "flood").in_scope(|| {});
    }
    assert_eq!(traces.counted(), SpansCounted { sent: 0, overflowed: 3_000 - 2_048, refused: 0 });
    traces.stop(Duration::ZERO).await;
    drop(subscriber);
}

#[tokio::test]
async fn an_address_that_cannot_be_asked_is_refused_by_name() {
    let mut telemetry = configured(&Folder::new(), "").telemetry;
    telemetry.otlp_endpoint = Some("http://[::1".to_owned());
    let error = Traces::start(&telemetry, Handle::current()).unwrap_err();
    assert!(matches!(error, TracesError::Endpoint { .. }), "{error}");
    assert!(error.to_string().contains("telemetry.otlp_endpoint is \"http://[::1\""), "{error}");
    assert_eq!(DaemonError::from(error).exit_code(), 78);
}
