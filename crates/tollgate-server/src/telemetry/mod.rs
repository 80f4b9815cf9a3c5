//! What the server tells about itself: `/metrics`.
//!
//! Nothing is counted here. The parts that do the work keep plain atomics; a scrape reads them.

mod control;
mod stores;

use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tollgate_engine::{Engine, SharedClock};

use crate::audit::AuditTrail;
use crate::control::ControlFigures;
use crate::stores::Stores;

/// The content type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Every metric of this process.
pub(crate) struct Telemetry {
    registry: Registry,
}

impl Telemetry {
    pub(crate) fn new(
        engine: &Arc<Engine<Stores>>,
        clock: &Arc<SharedClock>,
        control: &Arc<ControlFigures>,
        trail: Option<&Arc<AuditTrail>>,
    ) -> Self {
        let mut registry = Registry::with_prefix("rate_limiter");
        let (engine, clock) = (Arc::clone(engine), Arc::clone(clock));
        registry.register_collector(Box::new(stores::StoreCollector { engine, clock }));
        let (figures, trail) = (Arc::clone(control), trail.cloned());
        registry.register_collector(Box::new(control::ControlCollector { figures, trail }));
        Self { registry }
    }

    /// All of them, as Prometheus reads them.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to memory does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
