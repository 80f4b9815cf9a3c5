//! What the server reports about itself: `/metrics`, StatsD, top keys, history, the log of decisions.
//!
//! | file | |
//! |---|---|
//! | `decisions/` | what is made of every decision |
//! | `latency.rs` | how long calls take |
//! | `history.rs` | what happened lately |
//! | `history_part.rs` | a part of it to be sent, and the history of several nodes added up |
//! | `keeper.rs` | the thread that looks after all this |
//! | `decided.rs`, `descriptors.rs`, `reservations.rs`, `stores.rs`, `control.rs`, `edge.rs`, `process.rs` | metrics, read from the parts that do the work |
//! | `statsd.rs` | the same, sent |
//! | `traces.rs` | spans, sent by OTLP |
//!
//! The parts that do the work keep plain atomics; a scrape reads them.

mod control;
mod decided;
pub mod decisions;
mod descriptors;
mod edge;
pub(crate) mod history;
pub(crate) mod history_part;
mod keeper;
pub(crate) mod latency;
pub(crate) mod process;
mod reservations;
mod statsd;
mod stores;
pub(crate) mod traces;

use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tollgate_engine::{Engine, SharedClock};
use tollgate_policy::terminal::is_obeyed;

use crate::audit::AuditTrail;
use crate::control::ControlFigures;
use crate::envoy::DescriptorStats;
use crate::stores::Stores;
use decisions::Witness;
use history::History;

pub(crate) use edge::EdgeFigures;
pub(crate) use keeper::TelemetryKeeper;
pub(crate) use statsd::Statsd;
pub use traces::Traces;

/// The content type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is known of decisions.
pub(crate) struct Observed {
    pub(crate) witness: Arc<Witness>,
    pub(crate) history: History,
}

/// Every metric of this process.
pub(crate) struct Telemetry {
    registry: Registry,
    descriptor_stats: Arc<DescriptorStats>,
}

impl Telemetry {
    pub(crate) fn new(
        engine: &Arc<Engine<Stores>>,
        clock: &Arc<SharedClock>,
        control: &Arc<ControlFigures>,
        trail: Option<&Arc<AuditTrail>>,
        witness: &Arc<Witness>,
        edge: &Arc<EdgeFigures>,
    ) -> Self {
        let mut registry = Registry::default();
        #[expect(clippy::cast_precision_loss, reason = "a metric")]
        let started = crate::admin::now() as f64 / 1e3;
        let process = registry.sub_registry_with_prefix("process");
        process.register_collector(Box::new(process::ProcessCollector { started }));
        let descriptor_stats = Arc::new(DescriptorStats::default());
        let descriptors = descriptors::DescriptorCollector(Arc::clone(&descriptor_stats));
        registry.register_collector(Box::new(descriptors));
        let own = registry.sub_registry_with_prefix("rate_limiter");
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        own.register("build", "Which Tollgate this is", Info::new(version));
        own.register_collector(Box::new(decided::DecisionCollector(Arc::clone(witness))));
        let (engine, clock) = (Arc::clone(engine), Arc::clone(clock));
        let reserved = reservations::ReservationCollector(Arc::clone(&engine));
        own.register_collector(Box::new(reserved));
        own.register_collector(Box::new(stores::StoreCollector { engine, clock }));
        own.register_collector(Box::new(edge::EdgeCollector(Arc::clone(edge))));
        let (figures, trail) = (Arc::clone(control), trail.cloned());
        own.register_collector(Box::new(control::ControlCollector { figures, trail }));
        Self { registry, descriptor_stats }
    }

    /// The statistics of limits that Envoy asks about.
    pub(crate) fn descriptor_stats(&self) -> &Arc<DescriptorStats> {
        &self.descriptor_stats
    }

    /// All of them, as Prometheus reads them.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to memory does not fail.
        let _ = encode(&mut text, &self.registry);
        without_controls(text)
    }
}

/// The text of metrics, in which control characters of label values are escaped: terminals would obey them. A line feed
/// in a value is escaped already.
fn without_controls(text: String) -> String {
    let is_unsafe = |letter: char| is_obeyed(letter) && letter != '\n';
    if !text.contains(is_unsafe) {
        return text;
    }
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_unsafe(letter) {
            // The backslash of an escape is one of the value.
            safe.push('\\');
            safe.extend(letter.escape_unicode());
        } else {
            safe.push(letter);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    #[test]
    fn labels_hold_no_control_characters() {
        let text = "a{b=\"x\u{1b}[2J\u{9b}\"} 1\nc 2\n";
        let safe = super::without_controls(text.to_owned());
        assert_eq!(safe, "a{b=\"x\\\\u{1b}[2J\\\\u{9b}\"} 1\nc 2\n");
        assert_eq!(super::without_controls("a 1\n".to_owned()), "a 1\n");
    }
}
