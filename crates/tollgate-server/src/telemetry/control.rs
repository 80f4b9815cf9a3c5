//! Metrics of the control plane: rule sets and the audit log.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::stores::{counters, gauges};
use crate::audit::AuditTrail;
use crate::control::ControlFigures;
use crate::control::figures::Source;
use crate::control::incidents::KINDS;

/// Reads the control plane's figures at every scrape.
pub(super) struct ControlCollector {
    pub(super) figures: Arc<ControlFigures>,
    pub(super) trail: Option<Arc<AuditTrail>>,
}

impl fmt::Debug for ControlCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlCollector")
    }
}

impl Collector for ControlCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let figures = &self.figures;
        let source = vec![("source", figures.source().name().to_owned())];
        #[expect(clippy::cast_precision_loss, reason = "a metric; exact up to 2^53")]
        let number = |value: i64| value as f64;
        let version = number(figures.version.load(Ordering::Relaxed));
        gauges(
            &mut encoder,
            "config_version",
            "The revision of the rule set in force, by where it came from",
            [(source, version)],
        )?;
        let last = number(figures.last_success.load(Ordering::Relaxed));
        gauges(
            &mut encoder,
            "config_last_success_timestamp_seconds",
            "When the source of rules last answered",
            [(vec![], last)],
        )?;
        // One that never answered is as old as the wait for it.
        let since = figures.since.load(Ordering::Relaxed);
        let age = match figures.last_success.load(Ordering::Relaxed).max(since) {
            // A file is read when it changes.
            _ if since == 0 || figures.source() == Source::File => 0.0,
            last => number((crate::admin::now() / 1_000 - last).max(0)),
        };
        gauges(
            &mut encoder,
            "config_age_seconds",
            "How long ago the source of rules last answered; 0 if there is none",
            [(vec![], age)],
        )?;
        let failures = figures.load_failures.load(Ordering::Relaxed);
        counters(
            &mut encoder,
            "config_load_failures",
            "Rule sets that could not be got or used",
            [(vec![], failures)],
        )?;
        // Nodes without a Redis do not know it.
        let owners = i64::try_from(figures.owners()).unwrap_or(i64::MAX);
        gauges(
            &mut encoder,
            "rule_owners",
            "Databases and rule files that nodes which share a Redis have their rules from; more than \
             one: they enforce different rules. Absent where it is not known",
            (owners > 0).then(|| (vec![], number(owners))),
        )?;
        let current = figures.all_incidents();
        let is_current = |kind: &str| current.iter().any(|(one, _)| *one == kind);
        gauges(
            &mut encoder,
            "incident",
            "States that an operator must see, by kind; 1 while it lasts. GET incidents says what to do",
            KINDS.map(|(kind, ..)| {
                (vec![("kind", kind.to_owned())], number(is_current(kind).into()))
            }),
        )?;
        let of = |result: &str, count: u64| (vec![("result", result.to_owned())], count);
        counters(
            &mut encoder,
            "ledger_events",
            "Events of usage: noted by this node, written to the ledger by it, lost for want of room",
            [
                of("noted", figures.usage_noted.load(Ordering::Relaxed)),
                of("written", figures.usage_written.load(Ordering::Relaxed)),
                of("lost", figures.usage_lost.load(Ordering::Relaxed)),
            ],
        )?;
        let Some(trail) = &self.trail else { return Ok(()) };
        let kept = trail.figures();
        let written = figures.decisions_written.load(Ordering::Relaxed);
        let lost = figures.decisions_lost.load(Ordering::Relaxed);
        counters(
            &mut encoder,
            "audit_decisions",
            "Decisions for the audit log: noted, dropped for want of room, written, lost for want of \
             a database",
            [
                of("noted", kept.recorded),
                of("dropped", kept.dropped),
                of("written", written),
                of("lost", lost),
            ],
        )?;
        gauges(
            &mut encoder,
            "audit_buffered_bytes",
            "Bytes of decisions that wait to be written",
            [(vec![], number(i64::try_from(kept.buffered_bytes).unwrap_or(i64::MAX)))],
        )
    }
}
