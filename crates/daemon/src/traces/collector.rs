//! The collector, as one that is asked over HTTP.
//!
//! Owns: its address, and how long a call may take.
//! Never: follows a redirection, repeats a call, says anything of what is in one.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use rustls::{ClientConfig, RootCertStore};

use super::TracesError;

/// Path of the service below the configured address.
const PATH: &str = "/v1/traces";
/// Largest answer, in bytes: it says at most how many spans were not taken, and why.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Connections that are kept open between two calls, which follow each other.
const IDLE_CONNECTIONS_MAX: usize = 1;

/// Takes spans.
#[derive(Debug)]
pub(super) struct Collector {
    uri: Uri,
    timeout: Duration,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Collector {
    /// The one at `endpoint`, an address without [`PATH`]. A call may take as long as `timeout`.
    pub(super) fn new(endpoint: &str, timeout: Duration) -> Result<Collector, TracesError> {
        let refuse = |why: String| TracesError::Endpoint { endpoint: endpoint.to_owned(), why };
        let uri: Uri = format!("{endpoint}{PATH}").parse().map_err(|error| refuse(format!("{error}")))?;
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let connector = HttpsConnectorBuilder::new();
        let connector = match uri.scheme_str() {
            Some("https") => {
                connector.with_provider_and_native_roots(provider).map_err(TracesError::Roots)?.https_only()
            }
            Some("http") => {
                // Never used, and so it trusts nobody.
                let config = ClientConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()
                    .map_err(|error| refuse(error.to_string()))?
                    .with_root_certificates(RootCertStore::empty())
                    .with_no_client_auth();
                connector.with_tls_config(config).https_or_http()
            }
            _ => return Err(refuse("it begins neither with http:// nor with https://".to_owned())),
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(connector.enable_http1().build());
        Ok(Collector { uri, timeout, client })
    }

    /// Where it is.
    pub(super) fn address(&self) -> &Uri {
        &self.uri
    }

    /// Sends a batch, and gives how many of its spans the collector did not take.
    ///
    /// # Errors
    ///
    /// Why it took none, or why nothing is known of that.
    pub(super) async fn send(&self, body: Bytes) -> Result<u64, String> {
        match tokio::time::timeout(self.timeout, self.call(body)).await {
            Ok(Ok(refused)) => Ok(refused),
            Ok(Err(error)) => Err(chain(error.as_ref())),
            Err(_) => Err(format!("it did not answer within {:?} (telemetry.otlp_timeout)", self.timeout)),
        }
    }

    async fn call(&self, body: Bytes) -> Result<u64, Box<dyn Error + Send + Sync>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let program = concat!("tenure/", env!("CARGO_PKG_VERSION"));
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(program));
        let response = self.client.request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await?.to_bytes();
        if !status.is_success() {
            return Err(format!("it answered {status}").into());
        }
        // An answer that is none of the protocol is one all the same: the spans are there.
        let answer = ExportTraceServiceResponse::decode(body).unwrap_or_default();
        let refused = answer.partial_success.map_or(0, |partial| partial.rejected_spans);
        Ok(u64::try_from(refused).unwrap_or_default())
    }
}

/// An error with what caused it.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
