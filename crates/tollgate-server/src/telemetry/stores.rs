//! Metrics of the stores: memory, Redis, leases and fallbacks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use tollgate_core::MICRO;
use tollgate_engine::{Engine, SharedClock};
use tollgate_policy::Consistency;
use tollgate_store::redis::{LATENCY_BOUNDS, Operation, RedisMetrics};
use tollgate_store::{Failure, Fallback, Store as _};

use crate::stores::{Shared, Stores};

/// Reads the stores of an engine at every scrape.
pub(super) struct StoreCollector {
    pub(super) engine: Arc<Engine<Stores>>,
    pub(super) clock: Arc<SharedClock>,
}

impl fmt::Debug for StoreCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreCollector")
    }
}

/// The most leased rules that metrics report.
const MAX_LEASED_RULES: usize = 1_000;

pub(super) type Label = (&'static str, String);

/// One value of a metric, under these labels.
pub(super) type Sample<V> = (Vec<Label>, V);

impl Collector for StoreCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let stores = self.engine.store();
        let memory = stores.memory().usage();
        gauges(
            &mut encoder,
            "memory_counters",
            "Counters kept in memory",
            [(vec![], count(memory.counters))],
        )?;
        gauges(
            &mut encoder,
            "memory_bytes",
            "Bytes that counters take in memory",
            [(vec![], count(memory.bytes))],
        )?;
        let evicted = [(vec![], memory.evicted)];
        counters(
            &mut encoder,
            "memory_evictions",
            "Counters in use that had to go for want of room",
            evicted,
        )?;
        let on_shares = stores.shared().iter().map(Shared::finalized_charges).sum::<u64>();
        counters(
            &mut encoder,
            "memory_finalized_charges",
            "Refundable charges that became final because their bucket had too many",
            [(vec![], memory.finalized_charges + on_shares)],
        )?;
        counters(
            &mut encoder,
            "memory_flushes",
            "Times that changed counters were written to disk",
            [(vec![], memory.flushes)],
        )?;
        let named: Vec<(&str, &Shared)> =
            stores.names().iter().map(String::as_str).zip(stores.shared()).collect();
        if !named.is_empty() {
            let drift = [(vec![], seconds(self.clock.drift()))];
            gauges(
                &mut encoder,
                "clock_drift_seconds",
                "The shared store's clock less this node's",
                drift,
            )?;
        }
        redis(&mut encoder, &named)?;
        leases(&mut encoder, &named)?;
        declared(&mut encoder, &self.engine)?;
        fallbacks(&mut encoder, &named)
    }
}

fn redis(
    encoder: &mut DescriptorEncoder<'_>,
    stores: &[(&str, &Shared)],
) -> Result<(), fmt::Error> {
    let all = |of: &dyn Fn(&RedisMetrics) -> u64| -> Vec<Sample<u64>> {
        let of =
            |(name, store): &(&str, &Shared)| (vec![named(name)], of(store.remote().metrics()));
        stores.iter().map(of).collect()
    };
    let per_operation = |of: &dyn Fn(&RedisMetrics, Operation) -> u64| -> Vec<Sample<u64>> {
        let mut samples = Vec::new();
        for (name, store) in stores {
            for operation in Operation::ALL {
                let labels = vec![("operation", operation.name().to_owned()), named(name)];
                samples.push((labels, of(store.remote().metrics(), operation)));
            }
        }
        samples
    };
    counters(encoder, "redis_calls", "Calls of Redis", per_operation(&RedisMetrics::calls))?;
    let mut errors = Vec::new();
    for (name, store) in stores {
        for operation in Operation::ALL {
            for failure in Failure::ALL {
                let value = store.remote().metrics().errors(operation, failure);
                // Errors of calls that are made are reported from the start, so that the first one is
                // seen as an increase; the others never happen.
                if value > 0 || store.remote().metrics().calls(operation) > 0 {
                    let labels = vec![
                        ("type", failure.name().to_owned()),
                        ("operation", operation.name().to_owned()),
                        named(name),
                    ];
                    errors.push((labels, value));
                }
            }
        }
    }
    counters(encoder, "redis_errors", "Calls of Redis that failed", errors)?;
    latencies(encoder, stores)?;
    counters(
        encoder,
        "redis_retries",
        "Calls of Redis that were repeated",
        all(&RedisMetrics::retries),
    )?;
    let late = all(&RedisMetrics::late);
    counters(
        encoder,
        "redis_late_calls",
        "Calls that Redis came to when nobody waited for them",
        late,
    )?;
    counters(
        encoder,
        "redis_finalized_charges",
        "Refundable charges that became final because their bucket had too many",
        all(&RedisMetrics::finalized_charges),
    )?;
    let mut lost = Vec::new();
    for (result, of) in [
        ("refunded", &RedisMetrics::lost_answers_refunded as &dyn Fn(&RedisMetrics) -> u64),
        ("forgotten", &RedisMetrics::lost_answers_forgotten),
    ] {
        for (mut labels, value) in all(of) {
            labels.push(("result", result.to_owned()));
            lost.push((labels, value));
        }
    }
    let help = "Requests whose answer from Redis was lost: their charges were refunded, or Redis no longer knew of them";
    counters(encoder, "redis_lost_answers", help, lost)?;
    let open = all(&RedisMetrics::open_breakers);
    let open = open.into_iter().map(|(labels, value)| (labels, count(value)));
    gauges(encoder, "redis_open_breakers", "Redis servers that are left alone at the moment", open)
}

fn latencies(
    encoder: &mut DescriptorEncoder<'_>,
    stores: &[(&str, &Shared)],
) -> Result<(), fmt::Error> {
    let help = "How long calls of Redis took";
    let mut family =
        encoder.encode_descriptor("redis_latency_seconds", help, None, MetricType::Histogram)?;
    for (name, store) in stores {
        for operation in Operation::ALL {
            let Some(histogram) = store.remote().metrics().latency(operation) else {
                continue;
            };
            let bounds = LATENCY_BOUNDS.iter().map(|micros| seconds_of_micros(*micros));
            let buckets: Vec<(f64, u64)> =
                bounds.chain([f64::INFINITY]).zip(histogram.buckets()).collect();
            let labels = [("operation", operation.name().to_owned()), named(name)];
            let sum = seconds_of_micros(histogram.sum());
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                sum,
                histogram.count(),
                &buckets,
                None,
            )?;
        }
    }
    Ok(())
}

fn leases(
    encoder: &mut DescriptorEncoder<'_>,
    stores: &[(&str, &Shared)],
) -> Result<(), fmt::Error> {
    let mut ratios = Vec::new();
    for (name, store) in stores {
        for rule in store.leases().figures().overshoot() {
            for (kind, value) in [("over", rule.over), ("under", rule.under)] {
                let labels = vec![
                    ("rule_id", rule.rule_id.to_string()),
                    ("kind", kind.to_owned()),
                    named(name),
                ];
                ratios.push((labels, value));
            }
        }
    }
    let help = "The largest share of a leased rule's limit that was admitted beyond it (over), or was leased to other nodes when a request was refused (under)";
    gauges(encoder, "overshoot_ratio", help, ratios)?;
    let figures = |of: &dyn Fn(&Shared) -> &AtomicU64| -> Vec<Sample<u64>> {
        let of = |(name, store): &(&str, &Shared)| {
            (vec![named(name)], of(store).load(Ordering::Relaxed))
        };
        stores.iter().map(of).collect()
    };
    let taken = figures(&|store| &store.leases().figures().taken);
    counters(encoder, "leases_taken", "Chunks of quota that were taken ahead", taken)?;
    let granted = figures(&|store| &store.leases().figures().granted);
    counters(encoder, "leases_granted", "Quota that was taken ahead", granted)?;
    let returned = figures(&|store| &store.leases().figures().returned);
    counters(encoder, "leases_returned", "Quota that went back unspent", returned)?;
    let lost = figures(&|store| &store.leases().figures().lost);
    counters(encoder, "leases_lost", "Quota that was neither spent nor returned", lost)?;
    let passed_on = figures(&|store| &store.leases().figures().passed_on);
    let help = "Charges of leased rules that were decided on the shared counter";
    counters(encoder, "leases_passed_on", help, passed_on)?;
    let round_trips = stores.iter().map(|(name, store)| {
        (vec![named(name)], seconds_of_micros(store.leases().round_trip() / MICRO))
    });
    let help = "The usual round trip of leased rules' calls to Redis";
    gauges(encoder, "lease_round_trip_seconds", help, round_trips)?;
    let local =
        stores.iter().map(|(name, store)| (vec![named(name)], store.leases().usage().local));
    counters(encoder, "leases_local_charges", "Charges decided without asking Redis", local)
}

/// What leased rules may be wrong by, to compare what they are with.
fn declared(
    encoder: &mut DescriptorEncoder<'_>,
    engine: &Engine<Stores>,
) -> Result<(), fmt::Error> {
    let rules = engine.rules();
    let stores = engine.store().names();
    let leased = rules.set.rules().iter().filter_map(|rule| match rule.consistency {
        Consistency::Leased { max_overshoot_ppm } => {
            let store = rule.store.as_ref().or(stores.first())?;
            let labels = vec![("rule_id", rule.id.clone()), named(store)];
            Some((labels, f64::from(max_overshoot_ppm) / 1e6))
        }
        Consistency::Strict | Consistency::Local => None,
    });
    let help = "The share of a leased rule's limit that it says it may be wrong by";
    gauges(encoder, "overshoot_declared_ratio", help, leased.take(MAX_LEASED_RULES))
}

fn fallbacks(
    encoder: &mut DescriptorEncoder<'_>,
    stores: &[(&str, &Shared)],
) -> Result<(), fmt::Error> {
    let nodes =
        stores.iter().map(|(name, store)| (vec![named(name)], f64::from(store.membership().nodes)));
    gauges(encoder, "nodes", "Nodes that are alive, as this one sees it", nodes)?;
    let lost = stores.iter().map(|(name, store)| {
        (vec![named(name)], f64::from(u8::from(store.degraded_since().is_some())))
    });
    gauges(encoder, "store_lost", "1 while a store does not answer and fallbacks decide", lost)?;
    let waiting = stores.iter().map(|(name, store)| {
        (vec![named(name)], count(u64::try_from(store.waiting_reports()).unwrap_or(u64::MAX)))
    });
    let help = "Counters whose admissions have yet to be reported to the store";
    gauges(encoder, "fallback_reports_waiting", help, waiting)?;
    let dropped = stores.iter().map(|(name, store)| {
        (vec![named(name)], store.figures().dropped_reports.load(Ordering::Relaxed))
    });
    let help = "Admissions without the store that will not be reported to it";
    counters(encoder, "fallback_reports_dropped", help, dropped)?;
    let open = stores
        .iter()
        .map(|(name, store)| (vec![named(name)], f64::from(u8::from(store.is_handing_over()))));
    let help = "1 while a node that lost its store awaits the reports of others, and decides on its share too";
    gauges(encoder, "handover_open", help, open)?;
    let mut handovers = Vec::new();
    for (name, store) in stores {
        let figures = store.figures();
        for (result, total) in
            [("reported", &figures.handovers), ("timed_out", &figures.handovers_timed_out)]
        {
            let labels = vec![("result", result.to_owned()), named(name)];
            handovers.push((labels, total.load(Ordering::Relaxed)));
        }
    }
    let help = "Hand-overs to a store that was lost, by how they ended";
    counters(encoder, "handovers", help, handovers)?;
    let mut totals = Vec::new();
    for (name, store) in stores {
        for mode in [Fallback::Local { nodes: 1 }, Fallback::Open, Fallback::Closed] {
            let labels = vec![("mode", mode.name().to_owned()), named(name)];
            totals.push((labels, store.figures().total(mode)));
        }
    }
    counters(encoder, "fallback", "Decisions that a fallback made", totals)
}

fn named(name: &str) -> Label {
    ("store", name.to_owned())
}

pub(super) fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = Sample<u64>>,
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in samples {
        family
            .encode_family(&Labels(labels))?
            .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    Ok(())
}

pub(super) fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = Sample<f64>>,
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in samples {
        if labels.is_empty() {
            family.encode_gauge(&value)?;
            continue;
        }
        family.encode_family(&Labels(labels))?.encode_gauge(&value)?;
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct Labels(pub(super) Vec<Label>);

impl EncodeLabelSet for Labels {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelSetEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        use prometheus_client::encoding::EncodeLabel as _;
        self.0.iter().try_for_each(|label| label.encode(encoder.encode_label()))
    }
}

#[expect(clippy::cast_precision_loss, reason = "for dashboards")]
pub(super) const fn count(value: u64) -> f64 {
    value as f64
}

#[expect(clippy::cast_precision_loss, reason = "for dashboards")]
fn seconds(nanos: i64) -> f64 {
    nanos as f64 / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "for dashboards")]
fn seconds_of_micros(micros: u64) -> f64 {
    micros as f64 / 1e6
}
