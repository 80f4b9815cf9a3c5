//! What this node reports about itself: metrics, top keys, traces, the log of decisions.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::check::{millis, parse_address, size};
use super::read::{Reader, Said};
use super::{Config, without_password};
use crate::telemetry::decisions::{LabelBounds, TopBounds, WitnessBounds};

/// What this node reports about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// How much is kept of labels and keys.
    pub bounds: WitnessBounds,
    /// Where figures are sent, beside being asked for.
    pub statsd: StatsdConfig,
    /// Where traces are sent.
    pub traces: TracesConfig,
    /// Which decisions are logged.
    pub decision_log: DecisionLogConfig,
}

/// A StatsD server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsdConfig {
    /// Its address; none: nothing is sent.
    pub address: Option<SocketAddr>,
    /// What every name begins with.
    pub prefix: String,
    /// How often it is sent to.
    pub interval: Duration,
    /// Whether figures of imported limits have the names of envoyproxy/ratelimit.
    pub envoy_names: bool,
}

/// Where traces are sent, and which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracesConfig {
    /// The OTLP receiver (gRPC); none: no traces are made.
    pub otlp: Option<String>,
    /// Of so many requests that come without a trace one is traced.
    pub one_in: u64,
    /// What the service is called in traces.
    pub service_name: String,
}

/// Which decisions are logged, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionLogConfig {
    /// Of so many allowed ones one is; 0: none.
    pub sample_allowed: u64,
    /// Of so many others one is; 0: none.
    pub sample_refused: u64,
    /// At most so many a second.
    pub max_per_second: u64,
    /// The file; none: standard error, in the form of the log.
    pub file: Option<PathBuf>,
}

/// The largest sampling.
const MAX_ONE_IN: u64 = 1_000_000_000;
/// The longest name.
const MAX_NAME_BYTES: usize = 100;

pub(super) fn check(reader: &mut Reader) -> TelemetryConfig {
    let labels = LabelBounds {
        scopes: size(reader, "metrics.max_scopes", 1, 1_000),
        models: size(reader, "metrics.max_models", 1, 1_000),
        tenants: size(reader, "metrics.max_tenants", 1, 1_000),
        label_sets: size(reader, "metrics.max_label_sets", 1, 20_000),
    };
    let top = TopBounds {
        keys: size(reader, "top.keys", 10, 10_000),
        rules: size(reader, "top.rules", 1, 1_000),
    };
    TelemetryConfig {
        bounds: WitnessBounds { labels, top },
        statsd: statsd(reader),
        traces: traces(reader),
        decision_log: DecisionLogConfig {
            sample_allowed: reader.number("log.decisions.sample_allowed", 0..=MAX_ONE_IN),
            sample_refused: reader.number("log.decisions.sample_refused", 0..=MAX_ONE_IN),
            max_per_second: reader.number("log.decisions.max_per_second", 1..=1_000_000),
            file: reader.optional_path("log.decisions.file").map(|said| said.value),
        },
    }
}

fn statsd(reader: &mut Reader) -> StatsdConfig {
    let address = reader.optional_text("metrics.statsd.address", "an address and a port or null");
    let address = address.and_then(|Said { value, origin }| match parse_address(&value) {
        Ok(address) => Some(address),
        Err(message) => {
            reader.wrong(&origin, "metrics.statsd.address", message);
            None
        }
    });
    StatsdConfig {
        address,
        prefix: text(reader, "metrics.statsd.prefix"),
        interval: millis(reader, "metrics.statsd.interval_ms", 100, 3_600_000),
        envoy_names: reader.boolean("metrics.statsd.envoy_names"),
    }
}

/// A short name of plain characters.
fn text(reader: &mut Reader, key: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let parse = |text: &str| {
        (text.len() <= MAX_NAME_BYTES && text.bytes().all(is_plain)).then(|| text.to_owned())
    };
    reader
        .parsed(key, "a name of letters, digits, dots, dashes and underscores", parse)
        .map_or_else(String::new, |said| said.value)
}

fn traces(reader: &mut Reader) -> TracesConfig {
    let otlp = reader.optional_text("traces.otlp", "a URL or null");
    if let Some(Said { value, origin }) = &otlp
        && !is_plain_url(value)
    {
        let message = "must be the URL of an OTLP receiver by gRPC, such as http://127.0.0.1:4317, \
                       without TLS and without a password";
        reader.wrong(origin, "traces.otlp", message);
    }
    TracesConfig {
        otlp: otlp.map(|said| said.value),
        one_in: reader.number("traces.one_in", 1..=MAX_ONE_IN),
        service_name: text(reader, "traces.service_name"),
    }
}

fn is_plain_url(text: &str) -> bool {
    let uri = text.parse::<http::Uri>();
    uri.is_ok_and(|uri| {
        uri.scheme_str() == Some("http")
            && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
    })
}

#[derive(Serialize)]
pub(super) struct ShownMetrics {
    max_scopes: usize,
    max_models: usize,
    max_tenants: usize,
    max_label_sets: usize,
    statsd: ShownStatsd,
}

#[derive(Serialize)]
struct ShownStatsd {
    address: Option<String>,
    prefix: String,
    interval_ms: u64,
    envoy_names: bool,
}

#[derive(Serialize)]
pub(super) struct ShownTop {
    keys: usize,
    rules: usize,
}

#[derive(Serialize)]
pub(super) struct ShownTraces {
    otlp: Option<String>,
    one_in: u64,
    service_name: String,
}

#[derive(Serialize)]
pub(super) struct ShownDecisionLog {
    sample_allowed: u64,
    sample_refused: u64,
    max_per_second: u64,
    file: Option<String>,
}

impl Config {
    pub(super) fn shown_metrics(&self) -> ShownMetrics {
        let labels = self.telemetry.bounds.labels;
        let statsd = &self.telemetry.statsd;
        ShownMetrics {
            max_scopes: labels.scopes,
            max_models: labels.models,
            max_tenants: labels.tenants,
            max_label_sets: labels.label_sets,
            statsd: ShownStatsd {
                address: statsd.address.map(|address| address.to_string()),
                prefix: statsd.prefix.clone(),
                interval_ms: u64::try_from(statsd.interval.as_millis()).unwrap_or(u64::MAX),
                envoy_names: statsd.envoy_names,
            },
        }
    }

    pub(super) fn shown_top(&self) -> ShownTop {
        let top = self.telemetry.bounds.top;
        ShownTop { keys: top.keys, rules: top.rules }
    }

    pub(super) fn shown_traces(&self) -> ShownTraces {
        let traces = &self.telemetry.traces;
        ShownTraces {
            otlp: traces.otlp.as_deref().map(without_password),
            one_in: traces.one_in,
            service_name: traces.service_name.clone(),
        }
    }

    pub(super) fn shown_decision_log(&self) -> ShownDecisionLog {
        let log = &self.telemetry.decision_log;
        ShownDecisionLog {
            sample_allowed: log.sample_allowed,
            sample_refused: log.sample_refused,
            max_per_second: log.max_per_second,
            file: log.file.as_ref().map(|file| file.display().to_string()),
        }
    }
}
