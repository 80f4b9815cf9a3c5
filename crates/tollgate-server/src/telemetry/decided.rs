//! Metrics of decisions: how many, how full limits are, how long calls take.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::decisions::{RESULTS, Series, WOULD_DENY, Witness};
use super::latency::{BOUNDS_MICROS, LATENCIES, Operation};
use super::stores::{counters, gauges};
use crate::recorder::Recorder;

/// Reads the witness at every scrape.
pub(super) struct DecisionCollector(pub(super) Arc<Witness>);

impl fmt::Debug for DecisionCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DecisionCollector")
    }
}

impl Collector for DecisionCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let tally = self.0.tally();
        let series = tally.read();
        requests(&mut encoder, &series)?;
        would_deny(&mut encoder, &series)?;
        usage(&mut encoder, &series)?;
        latencies(&mut encoder)?;
        let (sets, refused) = tally.sets();
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let sets = sets as f64;
        let help = "Combinations of labels that decisions are counted by";
        gauges(&mut encoder, "label_sets", help, [(vec![], sets)])?;
        let help = "Decisions counted under `other`, because there were combinations enough";
        counters(&mut encoder, "label_sets_refused", help, [(vec![], refused)])?;
        let (written, dropped) =
            self.0.log().map_or((0, 0), super::decisions::DecisionLog::figures);
        let of = |result: &str, count: u64| (vec![("result", result.to_owned())], count);
        let help = "Lines of the log of decisions: handed to its writer, or dropped";
        let samples = [of("written", written), of("dropped", dropped)];
        counters(&mut encoder, "decision_logs", help, samples)?;
        recording(&mut encoder, self.0.recorder().map(|recorder| &**recorder))
    }
}

fn recording(
    encoder: &mut DescriptorEncoder<'_>,
    recorder: Option<&Recorder>,
) -> Result<(), fmt::Error> {
    let Some(recorder) = recorder else { return Ok(()) };
    let figures = recorder.figures();
    let of = |result: &str, count: &AtomicU64| {
        (vec![("result", result.to_owned())], count.load(Ordering::Relaxed))
    };
    let help = "Decisions that were recorded for backtests, or dropped";
    let samples = [of("written", &figures.written), of("dropped", &figures.dropped)];
    counters(encoder, "recorded_decisions", help, samples)?;
    #[expect(clippy::cast_precision_loss, reason = "a metric")]
    let bytes = figures.bytes.load(Ordering::Relaxed) as f64;
    let help = "Bytes of the files of the recording";
    gauges(encoder, "recording_bytes", help, [(vec![], bytes)])?;
    let is_failing = f64::from(u8::from(figures.is_failing.load(Ordering::Relaxed)));
    let help = "1 while decisions are not recorded, because the files cannot be written";
    gauges(encoder, "recording_failing", help, [(vec![], is_failing)])
}

/// The labels of one combination, without copies.
#[derive(Debug)]
struct Labels<'s> {
    result: Option<&'static str>,
    series: &'s Series,
}

impl EncodeLabelSet for Labels<'_> {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelSetEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        let Series { scope, model, tenant, .. } = self.series;
        if let Some(result) = self.result {
            ("result", result).encode(encoder.encode_label())?;
        }
        ("scope", scope.as_ref()).encode(encoder.encode_label())?;
        ("model_id", model.as_ref()).encode(encoder.encode_label())?;
        ("tenant_id", tenant.as_ref()).encode(encoder.encode_label())
    }
}

use prometheus_client::encoding::EncodeLabel as _;

fn requests(encoder: &mut DescriptorEncoder<'_>, series: &[Series]) -> Result<(), fmt::Error> {
    let help = "Decisions, by what became of the request and the scope that decided";
    let mut family = encoder.encode_descriptor("requests", help, None, MetricType::Counter)?;
    for one in series {
        for (result, count) in RESULTS.into_iter().zip(one.counts) {
            // What never happened is not worth a series.
            if count > 0 {
                let labels = Labels { result: Some(result), series: one };
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
    }
    Ok(())
}

fn would_deny(encoder: &mut DescriptorEncoder<'_>, series: &[Series]) -> Result<(), fmt::Error> {
    let help = "Decisions that a log_only rule, or a rule in shadow, would have refused, once for each scope";
    let mut family = encoder.encode_descriptor("would_deny", help, None, MetricType::Counter)?;
    for one in series {
        let count = one.counts.get(WOULD_DENY).copied().unwrap_or(0);
        if count > 0 {
            let labels = Labels { result: None, series: one };
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
    }
    Ok(())
}

fn usage(encoder: &mut DescriptorEncoder<'_>, series: &[Series]) -> Result<(), fmt::Error> {
    let help = "The highest share of a limit that one key had used in the last one to two minutes";
    let mut family = encoder.encode_descriptor("usage_ratio", help, None, MetricType::Gauge)?;
    for one in series.iter().filter(|one| one.scope.as_ref() != "none") {
        let labels = Labels { result: None, series: one };
        family
            .encode_family(&labels)?
            .encode_gauge(&((f64::from(one.highest) * 1e6).round() / 1e6))?;
    }
    Ok(())
}

fn latencies(encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let help = "How long calls took, from the request read to the answer written in memory";
    let mut family =
        encoder.encode_descriptor("latency_seconds", help, None, MetricType::Histogram)?;
    for operation in Operation::ALL {
        let histogram = LATENCIES.read(operation);
        let count = histogram.count();
        if count == 0 {
            continue;
        }
        #[expect(clippy::cast_precision_loss, reason = "a metric")]
        let bounds = BOUNDS_MICROS.iter().map(|micros| *micros as f64 / 1e6);
        let buckets: Vec<(f64, u64)> =
            bounds.chain([f64::INFINITY]).zip(histogram.buckets).collect();
        #[expect(clippy::cast_precision_loss, reason = "a metric")]
        let sum = histogram.sum_nanos as f64 / 1e9;
        family
            .encode_family(&[("operation", operation.name())])?
            .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    Ok(())
}
