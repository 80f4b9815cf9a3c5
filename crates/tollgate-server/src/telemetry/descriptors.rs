//! Metrics of imported limits, under the names that exporters give to those of envoyproxy/ratelimit, so that
//! its dashboards can be kept.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::stores::{Labels, count};
use crate::envoy::{DescriptorStats, FIGURES, MAX_ENTRIES, Series};

/// What the names of the metrics begin with.
pub(super) const METRIC_PREFIX: &str = "ratelimit_service_rate_limit_";

/// What StatsD names begin with.
const STATSD_PREFIX: &str = "ratelimit.service.rate_limit";

/// The labels of the parts.
const KEY_LABELS: [&str; MAX_ENTRIES] = [
    "key1", "key2", "key3", "key4", "key5", "key6", "key7", "key8", "key9", "key10", "key11",
    "key12", "key13", "key14", "key15", "key16",
];

/// Reads the statistics at every scrape.
pub(super) struct DescriptorCollector(pub(super) Arc<DescriptorStats>);

impl fmt::Debug for DescriptorCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DescriptorCollector")
    }
}

impl Collector for DescriptorCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let all = self.0.all();
        if all.is_empty() {
            return Ok(());
        }
        for (place, figure) in FIGURES.iter().enumerate() {
            let name = format!("{METRIC_PREFIX}{figure}");
            let help = "Hits on a limit imported from envoyproxy/ratelimit";
            // They count up. The type of a counter would add _total to the name.
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Unknown)?;
            for series in &all {
                let value = series.figures().get(place).copied().unwrap_or(0);
                family.encode_family(&Labels(labels(series)))?.encode_gauge(&count(value))?;
            }
        }
        Ok(())
    }
}

fn labels(series: &Series) -> Vec<(&'static str, String)> {
    let parts = KEY_LABELS.into_iter().zip(series.parts.iter().cloned());
    std::iter::once(("domain", series.domain.clone())).chain(parts).collect()
}

/// The figures by the names that envoyproxy/ratelimit sends to StatsD. Series whose names are the same
/// there are one.
pub(super) fn statsd_figures(stats: &DescriptorStats) -> BTreeMap<String, u64> {
    let mut figures = BTreeMap::new();
    for series in stats.all() {
        let mut name = format!("{STATSD_PREFIX}.{}", plain(&series.domain));
        for part in &series.parts {
            // Writing to memory does not fail.
            let _ = write!(name, ".{}", plain(part));
        }
        for (figure, value) in FIGURES.iter().zip(series.figures()) {
            let sum: &mut u64 = figures.entry(format!("{name}.{figure}")).or_default();
            *sum = sum.saturating_add(value);
        }
    }
    figures
}

/// A part as a name of StatsD can hold it.
fn plain(part: &str) -> String {
    let is_special = |one: char| one.is_control() || one.is_whitespace() || ":|@#".contains(one);
    part.chars().map(|one| if is_special(one) { '_' } else { one }).collect()
}
