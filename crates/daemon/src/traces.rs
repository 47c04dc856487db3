//! Spans for a collector: OpenTelemetry's protocol over HTTP, in protobuf.
//!
//! Owns: which spans are sent, the bounded queue before the collector, what becomes of those that it does not take, and what
//! of a caller's trace is believed.
//! Never: makes anything but the stop wait for the collector, tries a batch again, or reads the environment: where spans go
//! is said by the configuration alone.
//!
//! ```text
//! span ends ─> Queue ─────────────> thread of the library ──> Exporter ──> Collector (a task of the daemon's runtime)
//!              at most QUEUE_SPANS   every SEND_EVERY, or      encodes,     one call of HTTP,
//!              wait or are sent      when BATCH_SPANS wait     counts       within `otlp_timeout`
//! ```

mod collector;
mod parent;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_server::SPAN_TARGET;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Context, KeyValue};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, Span, SpanData, SpanExporter, SpanLimits,
    SpanProcessor,
};
use prost::Message as _;
use tenure_config::Telemetry;
use tokio::runtime::Handle;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::registry::LookupSpan;

use collector::Collector;
pub(crate) use parent::ADOPT;

/// Most spans that wait or are on their way. A span of a request takes less than 2 KiB, so they take less than 4 MiB.
const QUEUE_SPANS: usize = 2_048;
/// Most spans in one call.
const BATCH_SPANS: usize = 512;
/// How long a span waits for others that go with it.
const SEND_EVERY: Duration = Duration::from_secs(2);
/// How often the log says that the collector is still away.
const TOLD_EVERY: Duration = Duration::from_secs(600);

/// The attribute of a request's span that says which route answered; it stands behind the method in the span's name.
const ROUTE: &str = "http.route";

/// Why no spans can be sent with this configuration.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// What is named cannot be asked.
    #[error("telemetry.otlp_endpoint is {endpoint:?}, which is no address of a collector: {why}")]
    Endpoint {
        /// As configured.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
    /// The collector's certificate could not be checked.
    #[error(
        "telemetry.otlp_endpoint begins with https://, but the system's certificates of authorities were not read: {0}"
    )]
    Roots(std::io::Error),
}

/// What became of spans since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpansCounted {
    /// The collector took them.
    pub sent: u64,
    /// Thrown away because too many waited.
    pub overflowed: u64,
    /// Thrown away because the collector did not take them.
    pub refused: u64,
}

/// Sends spans to a collector, until it is stopped. Clones are the same.
#[derive(Clone)]
pub struct Traces {
    provider: SdkTracerProvider,
    counts: Arc<Counts>,
    endpoint: Arc<str>,
}

impl fmt::Debug for Traces {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Traces").field("counted", &self.counted()).finish_non_exhaustive()
    }
}

impl Traces {
    /// Begins to send the spans that [`Traces::layer`] sees; `None` if no collector is configured. Calls are made on
    /// `runtime`. Nothing is asked of the collector here: it may be away.
    ///
    /// # Errors
    ///
    /// The configuration names none that could be asked.
    pub fn start(telemetry: &Telemetry, runtime: Handle) -> Result<Option<Traces>, TracesError> {
        let Some(endpoint) = &telemetry.otlp_endpoint else { return Ok(None) };
        let resource = Resource::builder_empty()
            .with_service_name(telemetry.service_name.clone())
            .with_attributes([
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
                KeyValue::new("host.name", rustix::system::uname().nodename().to_string_lossy().into_owned()),
                KeyValue::new("process.pid", i64::from(std::process::id())),
            ])
            .build();
        let counts = Arc::new(Counts::default());
        let exporter = Exporter {
            collector: Arc::new(Collector::new(endpoint, telemetry.otlp_timeout)?),
            runtime,
            counts: Arc::clone(&counts),
            resource: ResourceAttributesWithSchema::from(&resource),
            told: Mutex::default(),
        };
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE_SPANS)
            .with_max_export_batch_size(BATCH_SPANS)
            .with_scheduled_delay(SEND_EVERY)
            .build();
        let batches = BatchSpanProcessor::new(exporter, batches);
        let share = f64::from(telemetry.sampling.millionths()) / 1e6;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            // Whoever began a trace has decided whether it is kept, so that a trace is never kept in part.
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(share))))
            .with_span_limits(SpanLimits::default())
            .with_span_processor(Queue { batches, counts: Arc::clone(&counts) })
            .build();
        Ok(Some(Traces { provider, counts, endpoint: endpoint.as_str().into() }))
    }

    /// What a subscriber needs to hand spans over. It sees nothing else: no message of the log is in a span.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        let is_sent = filter_fn(|metadata| metadata.is_span() && metadata.target() == SPAN_TARGET);
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("tenure"))
            .with_location(false)
            .with_tracked_inactivity(false)
            .with_threads(false)
            .with_target(false)
            .with_filter(is_sent.with_max_level_hint(LevelFilter::INFO))
    }

    /// Where the collector is, as configured.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// What became of spans so far.
    #[must_use]
    pub fn counted(&self) -> SpansCounted {
        self.counts.counted()
    }

    /// Sends what waits, for at most `within`. What ends afterwards is thrown away.
    pub async fn stop(&self, within: Duration) {
        let provider = self.provider.clone();
        // It waits for the thread that sends.
        let stopped = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(within)).await;
        self.counts.has_ended.store(true, Ordering::Relaxed);
        if !matches!(stopped, Ok(Ok(()) | Err(OTelSdkError::AlreadyShutdown))) {
            let left = self.counts.pending.load(Ordering::Relaxed);
            tracing::warn!("{left} spans were not sent before the stop");
        }
    }
}

/// What is counted of spans.
#[derive(Debug, Default)]
struct Counts {
    pending: AtomicUsize,
    sent: AtomicU64,
    overflowed: AtomicU64,
    refused: AtomicU64,
    has_ended: AtomicBool,
}

impl Counts {
    /// Takes a place in the queue, if there is one.
    fn enter(&self) -> bool {
        let more = |pending: usize| (pending < QUEUE_SPANS).then_some(pending + 1);
        !self.has_ended.load(Ordering::Relaxed)
            && self.pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn counted(&self) -> SpansCounted {
        SpansCounted {
            sent: self.sent.load(Ordering::Relaxed),
            overflowed: self.overflowed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// The library's batches behind a bound of our own: theirs does not say how many spans it threw away.
#[derive(Debug)]
struct Queue {
    batches: BatchSpanProcessor,
    counts: Arc<Counts>,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, mut span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        // The route is known when the span has begun; from then on its name cannot be changed through `tracing`.
        if let Some(route) = span.attributes.iter().find(|attribute| attribute.key.as_str() == ROUTE) {
            span.name = format!("{} {}", span.name, route.value).into();
        }
        if self.counts.enter() {
            self.batches.on_end(span);
        } else {
            self.counts.overflowed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// Makes a call of each batch, and says what became of it.
#[derive(Debug)]
struct Exporter {
    collector: Arc<Collector>,
    runtime: Handle,
    counts: Arc<Counts>,
    resource: ResourceAttributesWithSchema,
    told: Mutex<Told>,
}

/// What the log was told.
#[derive(Debug, Default)]
struct Told {
    /// When it was said that the collector is away; `None`: it is not.
    away: Option<Instant>,
    /// Spans that were lost since it is.
    lost: u64,
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let body = Bytes::from(ExportTraceServiceRequest { resource_spans }.encode_to_vec());
        let collector = Arc::clone(&self.collector);
        // This thread has no runtime of its own. A runtime that has ended drops the task.
        let sent = self.runtime.spawn(async move { collector.send(body).await }).await;
        let sent = sent.unwrap_or_else(|_| Err("the daemon has ended".to_owned()));
        self.counts.pending.fetch_sub(spans, Ordering::Relaxed);
        let spans = spans as u64;
        let refused = sent.as_ref().map_or(spans, |refused| (*refused).min(spans));
        self.counts.sent.fetch_add(spans - refused, Ordering::Relaxed);
        self.counts.refused.fetch_add(refused, Ordering::Relaxed);
        self.tell(sent.as_ref().err().map(String::as_str), refused);
        sent.map(drop).map_err(OTelSdkError::InternalFailure)
    }
}

impl Exporter {
    /// The log learns that the collector is away, now and then that it still is, and that it is back.
    fn tell(&self, failure: Option<&str>, lost: u64) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.collector.address();
        match failure {
            Some(why) => {
                told.lost += lost;
                if told.away.is_none_or(|since| since.elapsed() >= TOLD_EVERY) {
                    let lost = told.lost;
                    tracing::warn!(
                        "{at} takes no spans, and they are thrown away until it does ({lost} so far): {why}"
                    );
                    told.away = Some(Instant::now());
                }
            }
            None => {
                if told.away.take().is_some() {
                    tracing::info!("{at} takes spans again; {} were lost", told.lost);
                }
                told.lost = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_so_many_places_and_none_after_the_end() {
        let counts = Counts::default();
        assert_eq!((0..QUEUE_SPANS + 10).filter(|_| counts.enter()).count(), QUEUE_SPANS);
        counts.pending.fetch_sub(1, Ordering::Relaxed);
        assert!(counts.enter(), "a span that was sent has left its place");
        counts.pending.store(0, Ordering::Relaxed);
        counts.has_ended.store(true, Ordering::Relaxed);
        assert!(!counts.enter());
    }

    /// Counts messages.
    struct Messages(Arc<AtomicU64>);

    impl<S: Subscriber> Layer<S> for Messages {
        fn on_event(&self, _: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn the_log_hears_once_that_the_collector_is_away_and_once_that_it_is_back() {
        use tracing_subscriber::layer::SubscriberExt as _;
        let exporter = Exporter {
            collector: Arc::new(Collector::new("http://127.0.0.1:1", Duration::from_secs(1)).unwrap()),
            runtime: Handle::current(),
            counts: Arc::default(),
            resource: ResourceAttributesWithSchema::default(),
            told: Mutex::default(),
        };
        let count = Arc::new(AtomicU64::new(0));
        let subscriber = tracing_subscriber::registry().with(Messages(Arc::clone(&count)));
        let told = || count.load(Ordering::Relaxed);
        tracing::subscriber::with_default(subscriber, || {
            exporter.tell(None, 0);
            assert_eq!(told(), 0);
            (0..5).for_each(|_| exporter.tell(Some("it is away"), 7));
            assert_eq!(told(), 1);
            assert_eq!(exporter.told.lock().unwrap().lost, 35);
            exporter.told.lock().unwrap().away = Instant::now().checked_sub(TOLD_EVERY);
            exporter.tell(Some("it is away"), 7);
            assert_eq!(told(), 2, "it still is");
            (0..2).for_each(|_| exporter.tell(None, 0));
            assert_eq!((told(), exporter.told.lock().unwrap().lost), (3, 0));
        });
    }
}
