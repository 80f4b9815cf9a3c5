//! What happened lately, kept in this node: an hour by five seconds, a day by minutes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::{Nanos, SECOND};

use super::decisions::{COUNTS, Label, Series};
use super::history_part::{HistoryPart, PART_STEPS};
use super::latency::{BOUNDS_MICROS, BUCKETS, Histogram};

/// How long a short step is, in seconds, and how many are kept.
pub(crate) const SHORT_STEP: u64 = 5;
const SHORT_STEPS: usize = 720;
/// How many short steps are a long one, and how many of those are kept.
const SHORT_PER_LONG: usize = 12;
const LONG_STEPS: usize = 1_440;

/// A clock that is set back further than so many steps begins another history.
const MAX_STEPS_BACK: u64 = 60;

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

    /// The last short step, and the last long one if it ended with it.
    fn last_mut(&mut self, ended_long: bool) -> impl Iterator<Item = &mut T> {
        let long = self.long.back_mut().filter(|_| ended_long);
        self.short.back_mut().into_iter().chain(long)
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

    /// How many steps are kept.
    pub(crate) const fn kept_steps(self) -> u64 {
        match self {
            Self::Short => SHORT_STEPS as u64,
            Self::Long => LONG_STEPS as u64,
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
    /// The number of the last short step; steps end at whole multiples of their length.
    last: Option<u64>,
}

impl Kept {
    /// The number of the step after the last one of this length.
    fn end(&self, resolution: Resolution) -> u64 {
        let end = self.last.map_or(0, |last| last + 1);
        match resolution {
            Resolution::Short => end,
            Resolution::Long => end / SHORT_PER_LONG as u64,
        }
    }

    /// Ends the step with this number.
    fn push(&mut self, number: u64, step: Step, labels: &HashMap<LabelKey, LabelStep>) {
        let ends_long = (number + 1).is_multiple_of(SHORT_PER_LONG as u64);
        self.last = Some(number);
        self.all.push_short(step);
        if ends_long {
            self.all.push_long(Step::default(), add_steps);
        }
        for (key, steps) in &mut self.labels {
            steps.push_short(labels.get(key).copied().unwrap_or_default());
            if ends_long {
                steps.push_long(LabelStep::default(), add_label_steps);
            }
        }
    }

    /// Adds to the last step, when the clock was set back.
    fn add_to_last(&mut self, step: Step, labels: &HashMap<LabelKey, LabelStep>) {
        let ended_long =
            self.last.is_some_and(|last| (last + 1).is_multiple_of(SHORT_PER_LONG as u64));
        let add = |last: &mut Step| *last = add_steps(*last, step);
        self.all.last_mut(ended_long).for_each(add);
        for (key, steps) in &mut self.labels {
            let more = labels.get(key).copied().unwrap_or_default();
            steps.last_mut(ended_long).for_each(|last| *last = add_label_steps(*last, more));
        }
    }
}

/// The traffic under one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LabelHistory {
    pub(crate) name: Arc<str>,
    /// As many as there are of all traffic, the latest last.
    pub(crate) steps: Vec<LabelStep>,
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
        for key in labels.keys() {
            kept.labels.entry(key.clone()).or_default();
        }
        let mut added: HashMap<LabelKey, LabelStep> = HashMap::with_capacity(labels.len());
        for (key, now) in &labels {
            let last = kept.last_labels.get(key).copied().unwrap_or_default();
            let step = added.entry(key.clone()).or_default();
            for ((out, now), last) in step.iter_mut().zip(now).zip(last) {
                *out = less(*now, last);
            }
        }
        // The step that ended is the one before that of now.
        let number = (now / STEP_NANOS).saturating_sub(1);
        match kept.last {
            Some(last) if last.saturating_sub(number) > MAX_STEPS_BACK => {
                kept.all = Steps::default();
                kept.labels.values_mut().for_each(|steps| *steps = Steps::default());
                kept.push(number, step, &added);
            }
            Some(last) if number <= last => kept.add_to_last(step, &added),
            Some(last) => {
                // Steps that this thread missed had their traffic in this one.
                for missed in (last + 1).max(number.saturating_sub(LONG_STEPS as u64 * 12))..number
                {
                    kept.push(missed, Step::default(), &HashMap::new());
                }
                kept.push(number, step, &added);
            }
            None => kept.push(number, step, &added),
        }
        // A label that is gone is forgotten when nothing of it is left to report.
        let is_crowded = kept.labels.len() > MAX_LABELS;
        kept.labels.retain(|key, steps| {
            let is_silent = |step: &LabelStep| *step == LabelStep::default();
            let is_over = || steps.short.iter().all(is_silent) && steps.long.iter().all(is_silent);
            labels.contains_key(key) || !(is_crowded || is_over())
        });
        kept.last_labels = labels;
    }

    /// The numbers of the first step that is kept, and of the one after the last.
    pub(crate) fn numbers(&self, resolution: Resolution) -> (u64, u64) {
        let kept = self.kept.lock();
        let end = kept.end(resolution);
        (end.saturating_sub(kept.all.of(resolution).len() as u64), end)
    }

    /// The calls of the last so many short steps by their time.
    pub(crate) fn recent_calls(&self, steps: usize) -> [u32; BUCKETS] {
        let kept = self.kept.lock();
        kept.all
            .short
            .iter()
            .rev()
            .take(steps)
            .fold(Step::default(), |sum, step| add_steps(sum, *step))
            .buckets
    }

    /// Steps from `first` to before `end`, at most [`PART_STEPS`], those that are kept; `None` without any.
    pub(crate) fn part(&self, resolution: Resolution, first: u64, end: u64) -> Option<HistoryPart> {
        let kept = self.kept.lock();
        let own_end = kept.end(resolution);
        let end = end.min(first.saturating_add(PART_STEPS)).min(own_end);
        let all = kept.all.of(resolution);
        let first = first.max(own_end.saturating_sub(all.len() as u64));
        let length = usize::try_from(end.checked_sub(first)?).ok().filter(|length| *length > 0)?;
        // Labels may be younger than all traffic: places are counted from the end.
        let back = usize::try_from(own_end - first).ok()?;
        let steps: Vec<Step> = all.iter().skip(all.len() - back).take(length).copied().collect();
        let mut part = HistoryPart::new(first, &steps);
        let mut labels: Vec<(u64, &LabelKey, Vec<LabelStep>)> = kept
            .labels
            .iter()
            .map(|(key, own)| {
                let own = own.of(resolution);
                let missing = back.saturating_sub(own.len()).min(length);
                let mut steps = vec![LabelStep::default(); missing];
                let skipped = own.len().saturating_sub(back);
                steps.extend(own.iter().skip(skipped).take(length - missing));
                (steps.iter().flatten().map(|count| u64::from(*count)).sum(), key, steps)
            })
            .collect();
        labels.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(other.1)));
        for (_, (label, name), steps) in &labels {
            part.push_label(*label, name, steps);
        }
        Some(part)
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
    use crate::telemetry::history_part::SummedHistory;

    fn series(tenant: &str, counts: [u64; 5]) -> Series {
        Series {
            scope: Arc::from("S"),
            model: Arc::from("none"),
            tenant: Arc::from(tenant),
            counts,
            highest: 0.0,
        }
    }

    /// All steps of a label, as one node has them.
    fn read(
        history: &History,
        resolution: Resolution,
        label: Label,
        only: Option<&str>,
    ) -> SummedHistory {
        let (first, end) = history.numbers(resolution);
        let mut all = SummedHistory::new(first, end, label as u8, only);
        let mut at = first;
        while let Some(part) = history.part(resolution, at, end) {
            at = part.end;
            all.add(&part);
        }
        all
    }

    #[test]
    fn steps_report_what_was_added_and_are_bounded() {
        let history = History::default();
        let mut calls = Histogram::default();
        for step in 1..=2_000_u64 {
            calls.buckets[3] += 10;
            let all =
                [series("a", [step * 3, step, 0, 0, step * 2]), series("b", [step, 0, 0, 0, 0])];
            history.step(&all, [step * 4, step, 0, 0, step * 2], &calls, step * STEP_NANOS);
        }
        assert_eq!(history.numbers(Resolution::Short), (2_000 - SHORT_STEPS as u64, 2_000));
        assert_eq!(history.recent_calls(3)[3], 30);
        let short = read(&history, Resolution::Short, Label::Tenant, None);
        assert_eq!(short.steps().len(), SHORT_STEPS);
        assert!(short.steps().iter().all(|step| step.counts == [4, 1, 0, 0, 2]));
        let labels = short.labels(10);
        assert_eq!(labels[0].name.as_ref(), "a");
        assert!(labels[0].steps.iter().all(|step| *step == [3, 1, 2]));
        let long = read(&history, Resolution::Long, Label::Scope, Some("S"));
        assert_eq!(long.steps().len(), 166);
        assert!(long.labels(10)[0].steps.iter().all(|step| *step == [48, 12, 24]));
        let only = read(&history, Resolution::Short, Label::Tenant, Some("b"));
        assert_eq!(only.labels(10).len(), 1);
    }

    #[test]
    fn a_label_that_is_gone_is_forgotten_in_time_and_one_that_is_new_starts_late() {
        let history = History::default();
        let calls = Histogram::default();
        let at = |step: u64| step * STEP_NANOS;
        history.step(&[series("a", [1, 0, 0, 0, 0])], [1, 0, 0, 0, 0], &calls, at(1));
        history.step(&[series("b", [5, 0, 0, 0, 0])], [6, 0, 0, 0, 0], &calls, at(2));
        let labels = read(&history, Resolution::Short, Label::Tenant, None).labels(10);
        let of = |name: &str| labels.iter().find(|one| one.name.as_ref() == name).unwrap();
        assert_eq!(of("a").steps, [[1, 0, 0], [0; 3]]);
        assert_eq!(of("b").steps, [[0; 3], [5, 0, 0]]);
        for step in 3..20_000 {
            history.step(&[series("b", [5, 0, 0, 0, 0])], [6, 0, 0, 0, 0], &calls, at(step));
        }
        assert!(read(&history, Resolution::Short, Label::Tenant, Some("a")).labels(10).is_empty());
        assert!(!history.kept.lock().labels.keys().any(|(_, name)| name.as_ref() == "a"));
    }

    /// Steps keep their places in time, whatever the thread that ends them was kept from.
    #[test]
    fn steps_that_were_missed_are_empty_and_a_clock_set_back_loses_nothing() {
        let history = History::default();
        let calls = Histogram::default();
        let all = |allowed: u64| [series("a", [allowed, 0, 0, 0, 0])];
        history.step(&all(1), [1, 0, 0, 0, 0], &calls, 10 * STEP_NANOS + 7);
        history.step(&all(4), [4, 0, 0, 0, 0], &calls, 13 * STEP_NANOS + 7);
        history.step(&all(9), [9, 0, 0, 0, 0], &calls, 11 * STEP_NANOS);
        assert_eq!(history.numbers(Resolution::Short), (9, 13));
        let read = read(&history, Resolution::Short, Label::Tenant, None);
        let allowed: Vec<u32> = read.steps().iter().map(|step| step.counts[0]).collect();
        assert_eq!(allowed, [1, 0, 0, 8]);
        assert_eq!(read.labels(1)[0].steps, [[1, 0, 0], [0; 3], [0; 3], [8, 0, 0]]);
        // A long sleep is as good as a start.
        history.step(&all(9), [9, 0, 0, 0, 0], &calls, 1_000_000 * STEP_NANOS);
        assert_eq!(history.numbers(Resolution::Short).1, 1_000_000);
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
