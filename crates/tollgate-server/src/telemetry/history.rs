//! What happened lately, kept in this node: an hour by five seconds, a day by minutes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::{Nanos, SECOND};

use super::decisions::{COUNTS, Label, Series};
use super::latency::{BOUNDS_MICROS, BUCKETS, Histogram};

/// How long a short step is, in seconds, and how many are kept.
pub(crate) const SHORT_STEP: u64 = 5;
const SHORT_STEPS: usize = 720;
/// How many short steps are a long one, and how many of those are kept.
const SHORT_PER_LONG: usize = 12;
const LONG_STEPS: usize = 1_440;

/// When there are more labels than this, those that are gone are forgotten at once.
const MAX_LABELS: usize = 2_000;

/// One step of all traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// In the order of [`COUNTS`].
    pub(crate) counts: [u32; COUNTS.len()],
    /// How many calls fell into each bucket of time.
    pub(crate) buckets: [u32; BUCKETS],
}

/// One step of the traffic under one label: allowed (at once or later), refused, and would-deny outcomes.
pub(crate) type LabelStep = [u32; 3];

/// Steps of two lengths, the latest last.
#[derive(Debug, Clone, Default)]
struct Steps<T> {
    short: VecDeque<T>,
    long: VecDeque<T>,
}

impl<T: Copy> Steps<T> {
    fn push_short(&mut self, step: T) {
        push(&mut self.short, step, SHORT_STEPS);
    }

    /// Adds up the last short ones.
    fn push_long(&mut self, zero: T, add: impl Fn(T, T) -> T) {
        let sum =
            self.short.iter().rev().take(SHORT_PER_LONG).fold(zero, |sum, one| add(sum, *one));
        push(&mut self.long, sum, LONG_STEPS);
    }

    fn of(&self, resolution: Resolution) -> &VecDeque<T> {
        match resolution {
            Resolution::Short => &self.short,
            Resolution::Long => &self.long,
        }
    }
}

fn push<T>(steps: &mut VecDeque<T>, step: T, most: usize) {
    if steps.len() >= most {
        steps.pop_front();
    }
    steps.push_back(step);
}

/// The length of the steps that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolution {
    Short,
    Long,
}

impl Resolution {
    pub(crate) const fn step_seconds(self) -> u64 {
        match self {
            Self::Short => SHORT_STEP,
            Self::Long => SHORT_STEP * SHORT_PER_LONG as u64,
        }
    }
}

type LabelKey = (u8, Arc<str>);

#[derive(Default)]
struct Kept {
    all: Steps<Step>,
    labels: HashMap<LabelKey, Steps<LabelStep>>,
    /// What had been counted at the last step, by label and in all.
    last_labels: HashMap<LabelKey, [u64; 3]>,
    last_counts: [u64; COUNTS.len()],
    last_buckets: [u64; BUCKETS],
    rounds: usize,
    /// When the last step ended.
    until: [Nanos; 2],
}

/// The traffic under one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LabelHistory {
    pub(crate) name: Arc<str>,
    /// As many as there are of all traffic, the latest last.
    pub(crate) steps: Vec<LabelStep>,
}

/// What happened lately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HistoryView {
    /// When the last step ended.
    pub(crate) until: Nanos,
    pub(crate) steps: Vec<Step>,
    pub(crate) labels: Vec<LabelHistory>,
}

/// Keeps what happened lately.
#[derive(Default)]
pub(crate) struct History {
    kept: Mutex<Kept>,
}

impl History {
    /// Ends a step of [`SHORT_STEP`] seconds: all that was counted since the start is given, by label and
    /// in all.
    pub(crate) fn step(
        &self,
        series: &[Series],
        counts: [u64; COUNTS.len()],
        calls: &Histogram,
        now: Nanos,
    ) {
        let mut labels: HashMap<LabelKey, [u64; 3]> = HashMap::new();
        for one in series {
            let [allowed, denied, throttled, queued, would_deny] = one.counts;
            for (label, name) in [
                (Label::Scope, &one.scope),
                (Label::Model, &one.model),
                (Label::Tenant, &one.tenant),
            ] {
                let sums = labels.entry((label as u8, Arc::clone(name))).or_default();
                sums[0] += allowed + throttled;
                sums[1] += denied + queued;
                sums[2] += would_deny;
            }
        }
        let mut kept = self.kept.lock();
        let kept = &mut *kept;
        let mut step = Step::default();
        for ((out, now), last) in step.counts.iter_mut().zip(counts).zip(kept.last_counts) {
            *out = less(now, last);
        }
        for ((out, now), last) in step.buckets.iter_mut().zip(calls.buckets).zip(kept.last_buckets)
        {
            *out = less(now, last);
        }
        (kept.last_counts, kept.last_buckets) = (counts, calls.buckets);
        kept.all.push_short(step);
        kept.rounds += 1;
        let ends_long = kept.rounds.is_multiple_of(SHORT_PER_LONG);
        kept.until[0] = now;
        if ends_long {
            kept.all.push_long(Step::default(), add_steps);
            kept.until[1] = now;
        }
        for key in labels.keys() {
            kept.labels.entry(key.clone()).or_default();
        }
        for (key, steps) in &mut kept.labels {
            let now = labels.get(key).copied().unwrap_or_default();
            let last = kept.last_labels.get(key).copied().unwrap_or_default();
            let mut step = LabelStep::default();
            for ((out, now), last) in step.iter_mut().zip(now).zip(last) {
                *out = less(now, last);
            }
            steps.push_short(step);
            if ends_long {
                steps.push_long(LabelStep::default(), add_label_steps);
            }
        }
        // A label that is gone is forgotten when nothing of it is left to tell.
        let is_crowded = kept.labels.len() > MAX_LABELS;
        kept.labels.retain(|key, steps| {
            let is_silent = |step: &LabelStep| *step == LabelStep::default();
            let is_over = || steps.short.iter().all(is_silent) && steps.long.iter().all(is_silent);
            labels.contains_key(key) || !(is_crowded || is_over())
        });
        kept.last_labels = labels;
    }

    /// The last so many steps: of all traffic, and of the busiest values of a label, or of one of them.
    pub(crate) fn read(
        &self,
        resolution: Resolution,
        steps: usize,
        label: Label,
        only: Option<&str>,
        most: usize,
    ) -> HistoryView {
        let kept = self.kept.lock();
        let all = kept.all.of(resolution);
        let recent: Vec<Step> = all.iter().skip(all.len().saturating_sub(steps)).copied().collect();
        let mut labels: Vec<LabelHistory> = kept
            .labels
            .iter()
            .filter(|((of, name), _)| {
                *of == label as u8 && only.is_none_or(|only| only == name.as_ref())
            })
            .map(|((_, name), own)| {
                let own = own.of(resolution);
                let mut steps = vec![LabelStep::default(); recent.len().saturating_sub(own.len())];
                steps.extend(own.iter().skip(own.len().saturating_sub(recent.len())));
                LabelHistory { name: Arc::clone(name), steps }
            })
            .collect();
        let busy = |one: &LabelHistory| -> u64 {
            one.steps
                .iter()
                .map(|[allowed, refused, _]| u64::from(*allowed) + u64::from(*refused))
                .sum()
        };
        labels.retain(|one| only.is_some() || busy(one) > 0);
        labels.sort_by(|one, other| {
            busy(other).cmp(&busy(one)).then_with(|| one.name.cmp(&other.name))
        });
        labels.truncate(most);
        let until = match resolution {
            Resolution::Short => kept.until[0],
            Resolution::Long => kept.until[1],
        };
        HistoryView { until, steps: recent, labels }
    }
}

fn add_steps(mut one: Step, other: Step) -> Step {
    for (sum, more) in one.counts.iter_mut().zip(other.counts) {
        *sum = sum.saturating_add(more);
    }
    for (sum, more) in one.buckets.iter_mut().zip(other.buckets) {
        *sum = sum.saturating_add(more);
    }
    one
}

fn add_label_steps(mut one: LabelStep, other: LabelStep) -> LabelStep {
    for (sum, more) in one.iter_mut().zip(other) {
        *sum = sum.saturating_add(more);
    }
    one
}

fn less(now: u64, last: u64) -> u32 {
    u32::try_from(now.saturating_sub(last)).unwrap_or(u32::MAX)
}

/// The time that this share of calls stayed within, in microseconds, read out of the buckets in a
/// straight line between their ends; `None` without a call.
pub(crate) fn quantile_micros(buckets: &[u32; BUCKETS], share: f64) -> Option<f64> {
    let total: u64 = buckets.iter().map(|count| u64::from(*count)).sum();
    if total == 0 {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
    let wanted = share * total as f64;
    let mut below = 0.0;
    let mut from = 0.0;
    for (count, bound) in buckets.iter().zip(BOUNDS_MICROS) {
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let to = bound as f64;
        let count = f64::from(*count);
        if count > 0.0 && below + count >= wanted {
            return Some(from + (to - from) * ((wanted - below) / count).clamp(0.0, 1.0));
        }
        below += count;
        from = to;
    }
    Some(from)
}

/// A step ends so often.
pub(crate) const STEP_NANOS: Nanos = SHORT_STEP * SECOND;

#[cfg(test)]
mod tests {
    use super::*;

    fn series(tenant: &str, counts: [u64; 5]) -> Series {
        Series {
            scope: Arc::from("S"),
            model: Arc::from("none"),
            tenant: Arc::from(tenant),
            counts,
            highest: 0.0,
        }
    }

    #[test]
    fn steps_tell_what_was_added_and_are_bounded() {
        let history = History::default();
        let mut calls = Histogram::default();
        for step in 1..=2_000_u64 {
            calls.buckets[3] += 10;
            let all =
                [series("a", [step * 3, step, 0, 0, step * 2]), series("b", [step, 0, 0, 0, 0])];
            history.step(&all, [step * 4, step, 0, 0, step * 2], &calls, step * STEP_NANOS);
        }
        let short = history.read(Resolution::Short, 12, Label::Tenant, None, 10);
        assert_eq!(short.steps.len(), 12);
        assert!(short.steps.iter().all(|step| step.counts == [4, 1, 0, 0, 2]));
        assert_eq!(short.until, 2_000 * STEP_NANOS);
        assert_eq!(short.labels[0].name.as_ref(), "a");
        assert!(short.labels[0].steps.iter().all(|step| *step == [3, 1, 2]));
        let long = history.read(Resolution::Long, 1_440, Label::Scope, Some("S"), 10);
        assert_eq!(long.steps.len(), 166);
        assert!(long.labels[0].steps.iter().all(|step| *step == [48, 12, 24]));
        let all = history.read(Resolution::Short, 10_000, Label::Tenant, Some("b"), 10);
        assert_eq!((all.steps.len(), all.labels.len()), (SHORT_STEPS, 1));
    }

    #[test]
    fn a_label_that_is_gone_is_forgotten_in_time_and_one_that_is_new_starts_late() {
        let history = History::default();
        let calls = Histogram::default();
        history.step(&[series("a", [1, 0, 0, 0, 0])], [1, 0, 0, 0, 0], &calls, 1);
        history.step(&[series("b", [5, 0, 0, 0, 0])], [6, 0, 0, 0, 0], &calls, 2);
        let view = history.read(Resolution::Short, 10, Label::Tenant, None, 10);
        let of = |name: &str| view.labels.iter().find(|one| one.name.as_ref() == name).unwrap();
        assert_eq!(of("a").steps, [[1, 0, 0], [0; 3]]);
        assert_eq!(of("b").steps, [[0; 3], [5, 0, 0]]);
        for step in 3..20_000 {
            history.step(&[series("b", [5, 0, 0, 0, 0])], [6, 0, 0, 0, 0], &calls, step);
        }
        let view = history.read(Resolution::Short, 10, Label::Tenant, Some("a"), 10);
        assert!(view.labels.is_empty());
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let mut buckets = [0; BUCKETS];
        assert_eq!(quantile_micros(&buckets, 0.5), None);
        buckets[3] = 100;
        let median = quantile_micros(&buckets, 0.5).unwrap();
        assert!((median - 7.5).abs() < 1e-9, "{median}");
        buckets[10] = 2;
        let high = quantile_micros(&buckets, 0.99).unwrap();
        assert!((1_000.0..=2_000.0).contains(&high), "{high}");
    }
}
