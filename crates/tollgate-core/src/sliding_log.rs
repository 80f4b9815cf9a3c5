//! `sliding_window_log`: every admitted cost with its instant. Exact, at the price of memory.

use std::collections::VecDeque;

use crate::state::{Examination, Receipt, Status};
use crate::{Limit, Nanos};

/// The costs charged at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEntry {
    /// When.
    pub at: Nanos,
    /// How much, summed over all charges of that instant.
    pub cost: u64,
}

/// Room for so many entries is never given back while the log lives.
const SPARE_ENTRIES: usize = 64;

/// Charges in the order of their instants, one entry per instant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlidingLog {
    entries: VecDeque<LogEntry>,
    /// The sum of the entries; wide enough for any number of them.
    total: u128,
}

impl SlidingLog {
    /// A log of these entries, which must ascend in time.
    pub fn from_entries(entries: impl IntoIterator<Item = LogEntry>) -> Self {
        let mut log = Self::default();
        for entry in entries {
            log.push(entry.at, entry.cost);
        }
        log
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &LogEntry> + ExactSizeIterator {
        self.entries.iter()
    }

    /// How many instants are logged.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when nothing is logged.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Drops what has left the window; unobservable as long as time goes forward.
    pub fn prune(&mut self, window: Nanos, now: Nanos) {
        while let Some(front) = self.entries.front() {
            if front.at.saturating_add(window) > now {
                break;
            }
            self.total -= u128::from(front.cost);
            self.entries.pop_front();
        }
        // A spike must not be paid for in memory for as long as the log lives.
        if self.entries.capacity() > SPARE_ENTRIES
            && self.entries.len() < self.entries.capacity() / 4
        {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// From this instant on the log is empty.
    pub fn fresh_at(&self, window: Nanos) -> Nanos {
        self.entries.back().map_or(0, |last| last.at.saturating_add(window))
    }

    fn push(&mut self, at: Nanos, cost: u64) {
        if cost == 0 {
            return;
        }
        match self.entries.back_mut() {
            Some(last) if last.at >= at => {
                let sum = last.cost.saturating_add(cost);
                self.total += u128::from(sum - last.cost);
                last.cost = sum;
            }
            _ => {
                self.entries.push_back(LogEntry { at, cost });
                self.total += u128::from(cost);
            }
        }
    }

    /// The sum of the costs in (now - window, ...]. Instants after `now` count: a clock that
    /// stepped back must not forget them.
    fn sum(&self, window: Nanos, now: Nanos) -> u128 {
        let expired = self.entries.iter().take_while(|e| e.at.saturating_add(window) <= now);
        self.total - expired.map(|e| u128::from(e.cost)).sum::<u128>()
    }

    pub(crate) fn examine(&self, limit: &Limit, cost: u64, now: Nanos) -> Examination {
        let window = limit.window_nanos();
        let used = self.sum(window, now);
        let room = u128::from(limit.quota().saturating_sub(cost));
        if cost <= limit.quota() && used <= room {
            return Examination::Admit { wait: 0 };
        }
        let mut left = self.total;
        for entry in &self.entries {
            left -= u128::from(entry.cost);
            if left <= room {
                return Examination::Refuse { retry_at: Some(entry.at.saturating_add(window)) };
            }
        }
        Examination::Refuse { retry_at: None }
    }

    pub(crate) fn charge(&mut self, limit: &Limit, cost: u64, now: Nanos) -> Receipt {
        self.prune(limit.window_nanos(), now);
        let at = self.entries.back().map_or(now, |last| last.at.max(now));
        self.push(at, cost);
        Receipt::Log { at, cost }
    }

    pub(crate) fn give_back(&mut self, at: Nanos, cost: u64) -> u64 {
        let Ok(index) = self.entries.binary_search_by_key(&at, |entry| entry.at) else {
            return 0;
        };
        let Some(entry) = self.entries.get_mut(index) else { return 0 };
        // A saturated entry no longer says what it is the sum of.
        if entry.cost == u64::MAX {
            return 0;
        }
        let returned = cost.min(entry.cost);
        entry.cost -= returned;
        self.total -= u128::from(returned);
        if entry.cost == 0 {
            self.entries.remove(index);
        }
        returned
    }

    pub(crate) fn status(&self, limit: &Limit, now: Nanos) -> Status {
        let window = limit.window_nanos();
        let used = u64::try_from(self.sum(window, now)).unwrap_or(u64::MAX);
        Status {
            used,
            remaining: limit.quota().saturating_sub(used),
            reset_at: self.fresh_at(window).max(now),
        }
    }
}
