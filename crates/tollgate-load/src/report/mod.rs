//! What came of a run, in figures: for people, as JSON, as a page.

mod html;
mod parameters;
mod plot;
#[cfg(test)]
mod tests;
mod units;
mod verdict;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::plan::Plan;
use crate::recorder::{Seen, Times};

/// The resolution of the distribution: this many steps for a factor of ten.
const STEPS_PER_DECADE: f64 = 20.0;

/// The figures of a run. Its serialised form is what `--json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What made it, by flag.
    pub parameters: BTreeMap<&'static str, String>,
    /// How long it was measured.
    pub seconds: f64,
    /// Whether it was broken off.
    pub was_halted: bool,
    /// Requests that ended, well or not.
    pub requests: u64,
    /// The same per second.
    pub requests_per_second: f64,
    /// Decisions that came back; a batch has several.
    pub decisions: u64,
    /// The same per second.
    pub decisions_per_second: f64,
    /// Decisions that said yes.
    pub allowed: u64,
    /// Decisions that said no.
    pub refused: u64,
    /// Requests without a decision, and parts of batches without one.
    pub errors: u64,
    /// The same by kind.
    pub errors_by_kind: BTreeMap<String, u64>,
    /// Requests that were under way when the run was broken off.
    pub unfinished: u64,
    /// On the wire.
    pub sent_bytes: u64,
    /// On the wire.
    pub received_bytes: u64,
    /// From when a request was due to its answer. Without a rate it is due when it is sent.
    pub latency_micros: Latency,
    /// From when a request was sent to its answer.
    pub service_micros: Latency,
    /// How the timetable was kept; absent without a rate.
    pub schedule: Option<Schedule>,
    /// Whether the figures are the server's or the generator's.
    pub generator: Generator,
    /// Second by second.
    pub series: Vec<Row>,
    /// How many requests took how long, from when they were due.
    pub distribution: Vec<Bin>,
}

/// Times in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latency {
    /// The average.
    pub mean: f64,
    /// Half took less.
    pub p50: f64,
    /// 90 % took less.
    pub p90: f64,
    /// 95 % took less.
    pub p95: f64,
    /// 99 % took less.
    pub p99: f64,
    /// 99.9 % took less.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Latency {
    fn of(times: Option<&Times>) -> Self {
        let Some(times) = times.filter(|times| !times.is_empty()) else { return Self::default() };
        let at = |quantile| micros(times.value_at_quantile(quantile).min(times.max()));
        Self {
            mean: (times.mean() / 10.0).round() / 100.0,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: micros(times.max()),
        }
    }
}

/// To a hundredth of a microsecond; more than that nobody can measure.
fn micros(nanos: u64) -> f64 {
    (nanos as f64 / 10.0).round() / 100.0
}

/// How the timetable was kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Schedule {
    /// Requests that were due.
    pub scheduled: u64,
    /// Of them, those never sent, because no connection was free until the end.
    pub unsent: u64,
    /// The share that was due while no connection was free.
    pub waited_share: f64,
    /// How late the generator sent requests for which a connection was free.
    pub lag_micros: Latency,
}

/// How busy the generator was.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Generator {
    /// Threads that sent.
    pub threads: usize,
    /// How much of a core its busiest thread used.
    pub busiest_thread_share: f64,
    /// Whether it, and not the server, set the figures.
    pub is_bottleneck: bool,
    /// What to make of it, if anything.
    pub notes: Vec<String>,
}

/// One second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Which, from 0.
    pub second: u64,
    /// How much of it belongs to the run.
    pub seconds: f64,
    /// Requests that ended in it.
    pub requests: u64,
    /// Decisions that said yes.
    pub allowed: u64,
    /// Decisions that said no.
    pub refused: u64,
    /// Requests without a decision.
    pub errors: u64,
    /// From when requests were due.
    pub latency_micros: Latency,
}

impl Row {
    pub(crate) fn new(second: u64, seen: &Seen) -> Self {
        Self {
            second,
            seconds: 1.0,
            requests: seen.requests,
            allowed: seen.allowed,
            refused: seen.refused,
            errors: seen.faults_sum(),
            latency_micros: Latency::of(seen.corrected.as_ref()),
        }
    }
}

/// Requests that took about as long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bin {
    /// At least so long.
    pub from_micros: f64,
    /// Less than that.
    pub to_micros: f64,
    /// How many.
    pub count: u64,
}

/// How a run ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) elapsed: Duration,
    pub(crate) scheduled: Option<u64>,
    pub(crate) unfinished: u64,
    pub(crate) cpu_busiest: Duration,
    pub(crate) was_halted: bool,
}

impl Report {
    pub(crate) fn new(plan: &Plan, seen: &Seen, mut rows: Vec<Row>, ended: &Ended) -> Self {
        let seconds = ended.elapsed.as_secs_f64();
        for row in &mut rows {
            row.seconds = round(1.0_f64.min(seconds - row.second as f64));
        }
        let per_second =
            |count: u64| if seconds > 0.0 { round(count as f64 / seconds) } else { 0.0 };
        let decisions = seen.allowed + seen.refused;
        let schedule = ended.scheduled.map(|scheduled| Schedule {
            scheduled,
            unsent: scheduled.saturating_sub(seen.requests + ended.unfinished),
            waited_share: round(share(seen.waited, seen.requests)),
            lag_micros: Latency::of(seen.lag.as_ref()),
        });
        let busiest_thread_share =
            if seconds > 0.0 { round(ended.cpu_busiest.as_secs_f64() / seconds) } else { 0.0 };
        let threads = plan.threads.min(plan.connections);
        Self {
            parameters: parameters::of(plan),
            seconds: round(seconds),
            was_halted: ended.was_halted,
            requests: seen.requests,
            requests_per_second: per_second(seen.requests),
            decisions,
            decisions_per_second: per_second(decisions),
            allowed: seen.allowed,
            refused: seen.refused,
            errors: seen.faults_sum(),
            errors_by_kind: seen
                .faults
                .iter()
                .map(|(fault, count)| (fault.name(), *count))
                .collect(),
            unfinished: ended.unfinished,
            sent_bytes: seen.sent_bytes,
            received_bytes: seen.received_bytes,
            latency_micros: Latency::of(seen.corrected.as_ref()),
            service_micros: Latency::of(seen.service.as_ref()),
            generator: verdict::of(threads, busiest_thread_share, schedule.as_ref()),
            schedule,
            series: rows,
            distribution: seen.corrected.as_ref().map(bins).unwrap_or_default(),
        }
    }

    /// Whether no request at all was answered with a decision.
    pub const fn is_failure(&self) -> bool {
        self.decisions == 0
    }

    /// The report as one HTML file that needs nothing else. `made_at` says when it was made.
    pub fn html(&self, made_at: &str) -> String {
        html::page(self, made_at)
    }
}

/// To a thousandth.
fn round(figure: f64) -> f64 {
    (figure * 1_000.0).round() / 1_000.0
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The distribution in equal steps of the logarithm, from the first to the last that is not empty.
fn bins(times: &Times) -> Vec<Bin> {
    let mut counts: BTreeMap<i32, u64> = BTreeMap::new();
    for step in times.iter_recorded() {
        let micros = (step.value_iterated_to() as f64 / 1_000.0).max(0.001);
        let place = (micros.log10() * STEPS_PER_DECADE).floor() as i32;
        *counts.entry(place).or_default() += step.count_since_last_iteration();
    }
    let (Some((&first, _)), Some((&last, _))) = (counts.first_key_value(), counts.last_key_value())
    else {
        return Vec::new();
    };
    let edge = |place: i32| round(10_f64.powf(f64::from(place) / STEPS_PER_DECADE));
    let bin = |place| Bin {
        from_micros: edge(place),
        to_micros: edge(place + 1),
        count: counts.get(&place).copied().unwrap_or(0),
    };
    (first..=last).map(bin).collect()
}
