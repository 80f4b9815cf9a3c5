//! Traces, sent by OTLP.
//!
//! Spans are those of the `tracing` crate under a target of their own, at a level that nothing else is
//! interested in: where no traces are sent, a span is one comparison. Contexts are W3C's, taken from the
//! headers of a request and written into those of the request that goes on.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator as _};
use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tokio::runtime::{Builder, Runtime};
use tollgate_engine::TRACE_TARGET;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

use crate::config::TracesConfig;

/// How long sending one batch may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long the last batch may take when the process ends.
const FAREWELL: Duration = Duration::from_secs(3);

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Sends traces until it is stopped.
pub struct Traces {
    provider: SdkTracerProvider,
    /// The exporter's connection lives here.
    runtime: Runtime,
}

impl Traces {
    /// Begins to send traces where the configuration says; `None` if it says nowhere.
    pub fn start(config: &TracesConfig) -> io::Result<Option<Self>> {
        let Some(endpoint) = &config.otlp else { return Ok(None) };
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("traces")
            .enable_all()
            .build()?;
        let exporter = {
            let _context = runtime.enter();
            opentelemetry_otlp::SpanExporter::builder()
                .with_tonic()
                .with_endpoint(endpoint)
                .with_timeout(TIMEOUT)
                .build()
                .map_err(|error| io::Error::other(format!("traces.otlp {endpoint}: {error}")))?
        };
        #[expect(clippy::cast_precision_loss, reason = "a share of requests")]
        let share = 1.0 / config.one_in.max(1) as f64;
        // For a request that carries a trace, the caller has made the decision already.
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(share)));
        let resource = Resource::builder().with_service_name(config.service_name.clone()).build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(sampler)
            .with_resource(resource)
            .build();
        IS_ON.store(true, Ordering::Relaxed);
        Ok(Some(Self { provider, runtime }))
    }

    /// What makes traces of spans, for the process's subscriber.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: tracing::Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("tollgate"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_filter(Targets::new().with_target(TRACE_TARGET, LevelFilter::TRACE))
    }

    /// Sends what is left, and ends.
    pub fn stop(self) {
        IS_ON.store(false, Ordering::Relaxed);
        if let Err(error) = self.provider.shutdown_with_timeout(FAREWELL) {
            tracing::warn!(%error, "the last traces could not be sent");
        }
        self.runtime.shutdown_timeout(FAREWELL);
    }
}

/// Whether anybody wants traces.
#[inline]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// A span for a request that came in, continuing the trace that its headers name.
pub(crate) fn server_span(name: &str, headers: &HeaderMap) -> Span {
    let span = tracing::trace_span!(
        target: TRACE_TARGET,
        "request",
        otel.name = name,
        otel.kind = "server",
        http.response.status_code = tracing::field::Empty,
    );
    let parent = TraceContextPropagator::new().extract(&Headers(headers));
    if parent.span().span_context().is_valid() {
        // It fails only for spans that nobody is interested in.
        let _ = span.set_parent(parent);
    }
    span
}

/// Writes the context of a span into the headers of a request that goes on.
pub(crate) fn inject(span: &Span, headers: &mut HeaderMap) {
    if is_on() {
        TraceContextPropagator::new().inject_context(&span.context(), &mut HeadersMut(headers));
    }
}

struct Headers<'h>(&'h HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct HeadersMut<'h>(&'h mut HeaderMap);

impl Injector for HeadersMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        let name = HeaderName::from_bytes(key.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value)) {
            // Nothing about a trace is worth an empty header.
            if value.is_empty() {
                self.0.remove(name);
            } else {
                self.0.insert(name, value);
            }
        }
    }
}
