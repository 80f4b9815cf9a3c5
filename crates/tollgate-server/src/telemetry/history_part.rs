//! A part of a node's history that can be sent, and the history of several nodes added up.
//!
//! Steps end at whole multiples of their length since 1970, so those of all nodes fall on each other. A part
//! is written in columns, of which zeros at the end are left out.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::decisions::COUNTS;
use super::history::{LabelHistory, LabelStep, Step};
use super::latency::BUCKETS;

/// Steps of a part at most.
pub(crate) const PART_STEPS: u64 = 60;
/// The longest name of a label's value that is taken from another node.
const MAX_NAME_BYTES: usize = 300;
/// Values of a label that are added up at a time; nodes have far fewer.
const MAX_LABELS: usize = 2_000;

type Column = Vec<u32>;

/// The steps of one value of a label: allowed, refused, would-deny.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LabelPart {
    pub(super) label: u8,
    pub(super) name: String,
    pub(super) columns: [Column; 3],
}

/// Some steps of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryPart {
    /// The number of the first step, and of the one after the last.
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(super) counts: [Column; COUNTS.len()],
    /// Buckets of time that any call fell into.
    pub(super) buckets: Vec<(usize, Column)>,
    /// The busiest first.
    pub(super) labels: Vec<LabelPart>,
    /// Values of labels that found no room.
    pub(crate) labels_left_out: usize,
}

/// Without the zeros at its end.
fn trimmed(mut column: Column) -> Column {
    while column.last() == Some(&0) {
        column.pop();
    }
    column
}

impl HistoryPart {
    pub(super) fn new(first: u64, steps: &[Step]) -> Self {
        let column = |get: &dyn Fn(&Step) -> Option<u32>| -> Column {
            trimmed(steps.iter().map(|step| get(step).unwrap_or(0)).collect())
        };
        let counts = std::array::from_fn(|place| column(&|step| step.counts.get(place).copied()));
        let buckets = (0..BUCKETS)
            .map(|place| (place, column(&|step| step.buckets.get(place).copied())))
            .filter(|(_, column)| !column.is_empty())
            .collect();
        let end = first + steps.len() as u64;
        Self { first, end, counts, buckets, labels: Vec::new(), labels_left_out: 0 }
    }

    pub(super) fn push_label(&mut self, label: u8, name: &str, steps: &[LabelStep]) {
        let column = |place: usize| -> Column {
            trimmed(steps.iter().filter_map(|step| step.get(place).copied()).collect())
        };
        let columns = std::array::from_fn(column);
        if columns.iter().any(|column: &Column| !column.is_empty()) {
            self.labels.push(LabelPart { label, name: name.to_owned(), columns });
        }
    }

    /// As text of at most so many bytes: the busiest labels that fit.
    pub(crate) fn into_text(mut self, max_bytes: usize) -> String {
        let labels = std::mem::take(&mut self.labels);
        let mut left = max_bytes.saturating_sub(text_of(&self).len() + 20);
        for label in labels {
            let bytes = serde_json::to_string(&label).map_or(usize::MAX, |text| text.len() + 1);
            if bytes > left || label.name.len() > MAX_NAME_BYTES {
                self.labels_left_out += 1;
            } else {
                left -= bytes;
                self.labels.push(label);
            }
        }
        text_of(&self)
    }

    /// What another node has sent; `None` for what cannot be used.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let part: Self = serde_json::from_slice(text).ok()?;
        let length = part.end.checked_sub(part.first).filter(|length| *length <= PART_STEPS)?;
        let fits = |column: &Column| column.len() as u64 <= length;
        let is_sound = part.counts.iter().all(fits)
            && part.buckets.iter().all(|(place, column)| *place < BUCKETS && fits(column))
            && part
                .labels
                .iter()
                .all(|label| label.name.len() <= MAX_NAME_BYTES && label.columns.iter().all(fits));
        is_sound.then_some(part)
    }
}

fn text_of(part: &HistoryPart) -> String {
    // Numbers and text in memory: this does not fail.
    serde_json::to_string(part).unwrap_or_default()
}

/// The steps of several nodes, added up.
#[derive(Debug, Clone)]
pub(crate) struct SummedHistory {
    /// The number of the first step.
    first: u64,
    label: u8,
    only: Option<String>,
    steps: Vec<Step>,
    labels: HashMap<String, Vec<LabelStep>>,
    pub(crate) labels_left_out: usize,
}

impl SummedHistory {
    /// No traffic in the steps from `first` to before `end`; of labels those of one kind, or one of them.
    pub(crate) fn new(first: u64, end: u64, label: u8, only: Option<&str>) -> Self {
        let length = usize::try_from(end.saturating_sub(first)).unwrap_or(0);
        Self {
            first,
            label,
            only: only.map(str::to_owned),
            steps: vec![Step::default(); length],
            labels: HashMap::new(),
            labels_left_out: 0,
        }
    }

    /// Adds a part of a node; steps outside of this history are skipped.
    pub(crate) fn add(&mut self, part: &HistoryPart) {
        let (first, length) = (self.first, self.steps.len());
        let place = |offset: usize| -> Option<usize> {
            let at = (part.first + offset as u64).checked_sub(first)?;
            usize::try_from(at).ok().filter(|at| *at < length)
        };
        for (count, column) in part.counts.iter().enumerate() {
            for (offset, more) in column.iter().enumerate() {
                let step = place(offset).and_then(|at| self.steps.get_mut(at));
                if let Some(sum) = step.and_then(|step| step.counts.get_mut(count)) {
                    *sum = sum.saturating_add(*more);
                }
            }
        }
        for (bucket, column) in &part.buckets {
            for (offset, more) in column.iter().enumerate() {
                let step = place(offset).and_then(|at| self.steps.get_mut(at));
                if let Some(sum) = step.and_then(|step| step.buckets.get_mut(*bucket)) {
                    *sum = sum.saturating_add(*more);
                }
            }
        }
        for label in part.labels.iter().filter(|one| one.label == self.label) {
            if self.only.as_deref().is_some_and(|only| only != label.name) {
                continue;
            }
            if self.labels.len() >= MAX_LABELS && !self.labels.contains_key(&label.name) {
                self.labels_left_out += 1;
                continue;
            }
            let steps = self
                .labels
                .entry(label.name.clone())
                .or_insert_with(|| vec![LabelStep::default(); length]);
            for (count, column) in label.columns.iter().enumerate() {
                for (offset, more) in column.iter().enumerate() {
                    let step = place(offset).and_then(|at| steps.get_mut(at));
                    if let Some(sum) = step.and_then(|step| step.get_mut(count)) {
                        *sum = sum.saturating_add(*more);
                    }
                }
            }
        }
        self.labels_left_out = self.labels_left_out.max(part.labels_left_out);
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The busiest values of the label.
    pub(crate) fn labels(&self, most: usize) -> Vec<LabelHistory> {
        let busy = |steps: &[LabelStep]| -> u64 {
            steps
                .iter()
                .map(|[allowed, refused, _]| u64::from(*allowed) + u64::from(*refused))
                .sum()
        };
        let mut all: Vec<(u64, &String, &Vec<LabelStep>)> =
            self.labels.iter().map(|(name, steps)| (busy(steps), name, steps)).collect();
        all.retain(|(sum, ..)| self.only.is_some() || *sum > 0);
        all.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(other.1)));
        let view = |(_, name, steps): (u64, &String, &Vec<LabelStep>)| LabelHistory {
            name: name.as_str().into(),
            steps: steps.clone(),
        };
        all.into_iter().take(most).map(view).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(allowed: u32, bucket: usize) -> Step {
        let mut step = Step::default();
        step.counts[0] = allowed;
        step.buckets[bucket] = allowed;
        step
    }

    #[test]
    fn parts_of_nodes_are_added_where_they_belong() {
        let mut one = HistoryPart::new(100, &[step(1, 3), step(2, 3), Step::default()]);
        one.push_label(2, "acme", &[[1, 0, 0], [0, 2, 1], [0; 3]]);
        one.push_label(2, "silent", &[[0; 3]; 3]);
        one.push_label(0, "USER", &[[9, 9, 9]; 3]);
        let other = HistoryPart::new(101, &[step(10, 4), step(20, 5)]);
        let mut all = SummedHistory::new(99, 103, 2, None);
        for part in [one, other] {
            let sent = part.clone().into_text(10_000);
            assert_eq!(HistoryPart::read(sent.as_bytes()).unwrap(), part);
            all.add(&part);
        }
        let allowed: Vec<u32> = all.steps().iter().map(|step| step.counts[0]).collect();
        assert_eq!(allowed, [0, 1, 12, 20]);
        assert_eq!((all.steps()[2].buckets[3], all.steps()[2].buckets[4]), (2, 10));
        let labels = all.labels(10);
        assert_eq!(labels.len(), 1);
        assert_eq!(labels[0].steps, [[0; 3], [1, 0, 0], [0, 2, 1], [0; 3]]);
        // A window that begins later has less of it.
        let mut late = SummedHistory::new(101, 102, 2, Some("acme"));
        late.add(&HistoryPart::new(100, &[step(1, 3), step(2, 3), step(4, 3)]));
        assert_eq!(late.steps()[0].counts[0], 2);
        assert!(late.labels(10).is_empty());
    }

    #[test]
    fn a_part_is_bounded_and_keeps_the_busiest_labels() {
        let steps = vec![step(u32::MAX, 0); 60];
        let mut part = HistoryPart::new(u64::MAX - 60, &steps);
        for number in 0..500 {
            part.push_label(1, &format!("model-{number}"), &vec![[u32::MAX; 3]; 60]);
        }
        let text = part.into_text(32 << 10);
        assert!(text.len() <= 32 << 10, "{}", text.len());
        let read = HistoryPart::read(text.as_bytes()).unwrap();
        assert!(read.labels.len() >= 10 && read.labels_left_out == 500 - read.labels.len());
        assert_eq!(read.labels[0].name, "model-0");
        let mut all = SummedHistory::new(u64::MAX - 60, u64::MAX, 1, None);
        all.add(&read);
        all.add(&read);
        assert_eq!(all.steps()[0].counts[0], u32::MAX, "sums do not wrap");
    }

    #[test]
    fn parts_that_cannot_be_are_not_used() {
        let good = HistoryPart::new(5, &[step(1, 3), step(2, 3)]).into_text(1_000);
        assert!(HistoryPart::read(good.as_bytes()).is_some());
        for (part, wrong) in [
            ("\"first\":5", "\"first\":8"),
            ("\"end\":7", "\"end\":99999"),
            ("\"end\":7", "\"end\":6"),
            ("[3,[1,2]]", "[300,[1,2]]"),
            ("[3,[1,2]]", "[3,[1,2,3]]"),
            ("\"labels\":[]", "\"labels\":[],\"more\":[]"),
        ] {
            let text = good.replacen(part, wrong, 1);
            assert_ne!(text, good, "{part}");
            assert!(HistoryPart::read(text.as_bytes()).is_none(), "{text}");
        }
    }
}
