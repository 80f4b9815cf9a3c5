//! Lines of those who wait for a slot of a rule (`unit: concurrency`, `action: throttle`).
//!
//! Only the store knows how many slots are free, so the first in a line asks it, again and again: whenever a slot was
//! given back here, and every so often, because other nodes give back too. The order in a line is by weights, and nobody
//! who comes later gets a slot before it is empty.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate_tower::Line;

use crate::fair::{Gate, LineOptions};

/// How often the first in a line asks, where nobody here gives anything back.
pub(crate) const RECHECK: Duration = Duration::from_millis(25);

/// One line.
#[derive(Debug)]
pub(crate) struct Lane {
    /// One place: who has it may ask.
    pub(crate) gate: Arc<Gate>,
    /// A slot was given back.
    pub(crate) freed: Notify,
}

/// All lines in which somebody waits.
#[derive(Debug)]
pub(crate) struct Lanes {
    max_waiting: usize,
    lines: Mutex<HashMap<String, Arc<Lane>>>,
}

impl Lanes {
    pub(crate) fn new(max_waiting: usize) -> Self {
        Self { max_waiting, lines: Mutex::default() }
    }

    /// The line for this lane, which is there for as long as somebody is in it.
    pub(crate) fn join(&self, lane: &str) -> Arc<Lane> {
        let mut lines = self.lines.lock();
        // Those whom nobody is in any more: what is left is bounded by how many wait in all.
        lines.retain(|_, line| Arc::strong_count(line) > 1);
        let line = lines.entry(lane.to_owned()).or_insert_with(|| {
            let options = LineOptions {
                capacity: 1,
                max_waiting: self.max_waiting,
                shares: Vec::new(),
                strict_from_percent: 100,
            };
            Arc::new(Lane { gate: Gate::new(options), freed: Notify::new() })
        });
        Arc::clone(line)
    }

    /// The first of these in which somebody waits.
    pub(crate) fn crowded<'l>(&self, of: &'l [Line]) -> Option<&'l Line> {
        if of.is_empty() {
            return None;
        }
        let lines = self.lines.lock();
        let is_crowded =
            |line: &&Line| lines.get(&line.lane).is_some_and(|known| Arc::strong_count(known) > 1);
        of.iter().find(is_crowded)
    }

    /// Slots of these were given back.
    pub(crate) fn freed(&self, of: &[Line]) {
        let lines = self.lines.lock();
        for lane in of.iter().filter_map(|line| lines.get(&line.lane)) {
            lane.freed.notify_one();
        }
    }
}
