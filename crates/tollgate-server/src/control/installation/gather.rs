//! Reads the figures of all nodes and adds them up.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Nanos;

use super::state::{NodeState, NodeView};
use super::{
    Exchange, FORMAT, Installation, LIVE_FOR, MAX_CACHED_PARTS, MAX_GATHERED_BYTES, STATE,
    TOP_HOURS, TOP_MINUTES, part_field,
};
use crate::telemetry::decisions::{Label, TopFigures, Window};
use crate::telemetry::history::{LabelHistory, Resolution, Step};
use crate::telemetry::history_part::{HistoryPart, PART_STEPS, SummedHistory};

/// The last step is held back for a node that has not stored its own, at most by so many steps.
const MAX_STEPS_AWAITED: u64 = 2;

/// What an answer says about other nodes while they cannot be read.
const ALONE: &str = "the figures of other nodes cannot be read, these are of this node alone";

/// Figures of several nodes.
#[derive(Debug)]
pub(crate) struct Gathered<T> {
    pub(crate) figures: T,
    /// How many nodes they are of.
    pub(crate) nodes: usize,
    /// How many nodes' figures are missing: of another version, or too many.
    pub(crate) unread: usize,
    /// Why all others are missing, if they are.
    pub(crate) problem: Option<String>,
}

/// The part of the history that is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HistoryQuery<'a> {
    pub(crate) resolution: Resolution,
    pub(crate) steps: u64,
    pub(crate) label: Label,
    /// One value of the label.
    pub(crate) only: Option<&'a str>,
    pub(crate) max_labels: usize,
    /// One node.
    pub(crate) node: Option<&'a str>,
}

/// What happened lately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InstallationHistory {
    /// When the last step ended.
    pub(crate) until: Nanos,
    pub(crate) steps: Vec<Step>,
    pub(crate) labels: Vec<LabelHistory>,
    pub(crate) labels_left_out: usize,
}

/// Another node, and how long ago it was seen.
type Other = (String, Duration);

/// Figures without their format, if it is the one of this version.
fn of_this_format(figures: Option<Vec<u8>>) -> Option<Vec<u8>> {
    Some(figures?.strip_prefix(FORMAT.as_bytes())?.to_vec())
}

impl Installation {
    /// What this node is called.
    pub(crate) fn own_name(&self) -> &str {
        self.roll.node()
    }

    /// The other nodes that were seen within this time, and why there are none if they cannot be read.
    async fn others(&self, within: Duration) -> (Vec<Other>, Option<String>) {
        let Some(exchange) = &self.exchange else { return (Vec::new(), None) };
        match exchange.nodes().await {
            Ok(mut nodes) => {
                nodes.retain(|(name, age)| name != self.own_name() && *age <= within);
                (nodes, None)
            }
            Err(trouble) => (Vec::new(), Some(format!("{ALONE} ({trouble})"))),
        }
    }

    /// All nodes, this one among them, by host and name; those that have gone last.
    pub(crate) async fn nodes(&self) -> (Vec<NodeView>, Option<String>) {
        let now = crate::admin::now();
        let own = NodeView { state: self.own_state(), last_seen: now, is_live: true };
        let mut all = vec![own];
        let (others, problem) = self.others(Duration::MAX).await;
        if let Some(exchange) = &self.exchange {
            for (name, age) in others {
                let state = exchange.figures(&name, &[STATE.to_owned()]).await.unwrap_or_default();
                let state = state.into_iter().next().and_then(of_this_format);
                let Some(state) = state.and_then(|text| NodeState::read(&name, &text)) else {
                    continue;
                };
                let age_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
                let is_live = age < LIVE_FOR && !state.is_stopped();
                all.push(NodeView { state, last_seen: now.saturating_sub(age_ms), is_live });
            }
        }
        // Nodes of older versions are on the roll alone.
        for state in self.roll.all().iter().filter_map(NodeState::of_roll) {
            if !all.iter().any(|node| node.name() == state.name()) {
                all.push(NodeView { state, last_seen: now, is_live: true });
            }
        }
        all.sort_by(|one, other| one.order().cmp(&other.order()));
        (all, problem)
    }

    /// The keys that were seen most, of one node or of all. `None`: there is no such node.
    pub(crate) async fn top(
        &self,
        window: Window,
        rule: Option<&str>,
        node: Option<&str>,
    ) -> Option<Gathered<TopFigures>> {
        let (field, within) = match window {
            Window::Minutes => (TOP_MINUTES, Duration::from_secs(120)),
            Window::Hours => (TOP_HOURS, Duration::from_secs(2 * 3_600)),
        };
        let own = || self.observed.witness.tops().read(window, rule);
        if node == Some(self.own_name()) {
            return Some(Gathered { figures: own(), nodes: 1, unread: 0, problem: None });
        }
        let (others, problem) = self.wanted(node, within).await?;
        let mut all = match (node, others.is_empty()) {
            (Some(_), _) => None,
            (None, true) => Some(own()),
            // Others shorten long names.
            (None, false) => Some(own().with_short_names()),
        };
        let (mut nodes, mut unread) = (usize::from(all.is_some()), 0);
        let mut room = MAX_GATHERED_BYTES;
        for (name, _) in &others {
            let text = self.read_one(name, field, &mut room).await;
            let Some(mut theirs) = text.and_then(|text| TopFigures::read(&text)) else {
                unread += 1;
                continue;
            };
            theirs.rules.retain(|id, _| rule.is_none_or(|rule| rule == id));
            nodes += 1;
            match &mut all {
                None => all = Some(theirs),
                Some(all) => all.add(&theirs),
            }
        }
        let figures = all.unwrap_or_else(|| TopFigures::new(0));
        Some(Gathered { figures, nodes, unread, problem })
    }

    /// The other nodes that a filter leaves. `None`: there is no such node.
    async fn wanted(
        &self,
        node: Option<&str>,
        within: Duration,
    ) -> Option<(Vec<Other>, Option<String>)> {
        let Some(node) = node else { return Some(self.others(within).await) };
        let (mut others, problem) = self.others(Duration::MAX).await;
        others.retain(|(name, _)| name == node);
        if others.is_empty() && problem.is_none() {
            return None;
        }
        Some((others, problem))
    }

    async fn read_one(&self, node: &str, field: &str, room: &mut usize) -> Option<Vec<u8>> {
        let exchange = self.exchange.as_ref().filter(|_| *room > 0)?;
        let found = exchange.figures(node, &[field.to_owned()]).await.ok()?;
        let text = of_this_format(found.into_iter().next()?)?;
        *room = room.saturating_sub(text.len());
        Some(text)
    }

    /// What happened lately, on one node or on all. `None`: there is no such node.
    pub(crate) async fn history(
        &self,
        query: &HistoryQuery<'_>,
    ) -> Option<Gathered<InstallationHistory>> {
        let resolution = query.resolution;
        let step = Duration::from_secs(resolution.step_seconds());
        let span = step * u32::try_from(query.steps.saturating_add(PART_STEPS)).unwrap_or(u32::MAX);
        let is_own = query.node.is_none_or(|node| node == self.own_name());
        let (others, problem) = match query.node {
            Some(node) if node == self.own_name() => (Vec::new(), None),
            node => self.wanted(node, span).await?,
        };
        let (own_first, own_end) = self.observed.history.numbers(resolution);
        // A node that has just started has no step of its own.
        let seconds = u64::try_from(crate::admin::now() / 1_000).unwrap_or(0);
        let current = own_end.max(seconds / resolution.step_seconds());
        let begin = current.saturating_sub(query.steps);
        let mut parts: Vec<Arc<HistoryPart>> = Vec::new();
        let (mut end, mut first) = if is_own { (own_end, own_first) } else { (0, u64::MAX) };
        if is_own {
            // Its history may begin later.
            let mut at = begin.max(own_first);
            while let Some(part) = self.observed.history.part(resolution, at, own_end) {
                at = part.end;
                parts.push(Arc::new(part));
            }
        }
        let (mut nodes, mut unread) = (usize::from(is_own), 0);
        let mut room = MAX_GATHERED_BYTES;
        let mut live_ends = Vec::new();
        if let Some(exchange) = &self.exchange {
            for (name, age) in &others {
                let theirs =
                    self.parts_of(exchange, name, resolution, (begin, current), &mut room).await;
                let Some(theirs) = theirs else {
                    unread += 1;
                    continue;
                };
                nodes += 1;
                let their_end = theirs.iter().map(|part| part.end).max().unwrap_or(0);
                first = first.min(theirs.iter().map(|part| part.first).min().unwrap_or(u64::MAX));
                end = end.max(their_end);
                if *age < LIVE_FOR && their_end > 0 {
                    live_ends.push(their_end);
                }
                parts.extend(theirs);
            }
        }
        // A clock that is ahead must not make steps that nobody else has.
        end = end.min(current.saturating_add(1));
        // A step that a live node has not stored yet would look like a gap.
        let lowest = live_ends.into_iter().filter(|of| of + MAX_STEPS_AWAITED >= end).min();
        end = lowest.map_or(end, |lowest| lowest.min(end));
        let first = first.max(end.saturating_sub(query.steps)).min(end);
        let mut sum = SummedHistory::new(first, end, query.label as u8, query.only);
        for part in &parts {
            sum.add(part);
        }
        let figures = InstallationHistory {
            until: end.saturating_mul(resolution.step_seconds() * tollgate_core::SECOND),
            steps: sum.steps().to_vec(),
            labels: sum.labels(query.max_labels),
            labels_left_out: sum.labels_left_out,
        };
        Some(Gathered { figures, nodes, unread, problem })
    }

    /// The parts of another node's history between two numbers; those that do not change any more are kept here.
    async fn parts_of(
        &self,
        exchange: &Exchange,
        node: &str,
        resolution: Resolution,
        (begin, end): (u64, u64),
        room: &mut usize,
    ) -> Option<Vec<Arc<HistoryPart>>> {
        let key = |number: u64| (node.to_owned(), resolution.step_seconds(), number);
        let mut parts = Vec::new();
        let mut missing = Vec::new();
        {
            let cached = self.cached.lock();
            for number in begin / PART_STEPS..=end / PART_STEPS {
                match cached.get(&key(number)) {
                    Some(part) => parts.push(Arc::clone(part)),
                    None => missing.push(number),
                }
            }
        }
        if *room == 0 {
            return None;
        }
        let fields: Vec<String> =
            missing.iter().map(|number| part_field(resolution, *number)).collect();
        let found = exchange.figures(node, &fields).await.ok()?;
        let mut is_readable = false;
        let mut is_there = !parts.is_empty();
        for (number, text) in missing.into_iter().zip(found) {
            let Some(text) = text else { continue };
            is_there = true;
            *room = room.saturating_sub(text.len());
            let part = of_this_format(Some(text)).and_then(|text| HistoryPart::read(&text));
            let Some(part) = part else { continue };
            is_readable = true;
            // The field may still have the part that was there a round before.
            if part.first / PART_STEPS != number {
                continue;
            }
            let part = Arc::new(part);
            if part.end == (number + 1) * PART_STEPS {
                let mut cached = self.cached.lock();
                if cached.len() >= MAX_CACHED_PARTS {
                    cached.clear();
                }
                cached.insert(key(number), Arc::clone(&part));
            }
            parts.push(part);
        }
        // A node that has just started has no part yet, and is not missing.
        (is_readable || !parts.is_empty() || !is_there).then_some(parts)
    }
}
