//! When which request is due. All threads take their requests from one timetable.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::plan::Length;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// One request that someone is to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// When it is to be sent. Its latency counts from here, whenever it is really sent.
    pub(crate) due: Instant,
    /// False while the server is warming up.
    pub(crate) is_measured: bool,
}

/// Requests in the order they are due.
#[derive(Debug)]
pub(crate) struct Timetable {
    start: Instant,
    measured_from: Instant,
    /// Nothing is sent from here on; `None` if a number of requests is the end.
    end: Option<Instant>,
    /// `None`: each stream sends its next request as soon as the previous one is answered.
    rate_per_second: Option<u64>,
    /// How many are handed out at most.
    most: u64,
    taken: AtomicU64,
    is_halted: AtomicBool,
}

impl Timetable {
    pub(crate) fn new(
        start: Instant,
        warmup: Duration,
        length: Length,
        rate_per_second: Option<u64>,
    ) -> Self {
        let measured_from = start + warmup;
        let due_within = |span| rate_per_second.map_or(0, |rate| due_within(span, rate));
        let (end, most) = match length {
            Length::Duration(span) => {
                let most = rate_per_second.map_or(u64::MAX, |_| due_within(warmup + span));
                (Some(measured_from + span), most)
            }
            Length::Requests(count) => (None, count.saturating_add(due_within(warmup))),
        };
        let taken = AtomicU64::new(0);
        let is_halted = AtomicBool::new(false);
        Self { start, measured_from, end, rate_per_second, most, taken, is_halted }
    }

    /// The next request, unless the end is reached. `now` is the present.
    pub(crate) fn next(&self, now: Instant) -> Option<Slot> {
        if self.is_halted() || self.end.is_some_and(|end| now >= end) {
            return None;
        }
        let Some(rate) = self.rate_per_second else { return self.next_at_once(now) };
        let place = self.taken.fetch_add(1, Ordering::Relaxed);
        if place >= self.most {
            return None;
        }
        let due = self.start + due_after(place, rate);
        Some(Slot { due, is_measured: due >= self.measured_from })
    }

    fn next_at_once(&self, now: Instant) -> Option<Slot> {
        let is_measured = now >= self.measured_from;
        // Only a count that can end is counted: threads would contend for it.
        if is_measured && self.end.is_none() {
            let place = self.taken.fetch_add(1, Ordering::Relaxed);
            if place >= self.most {
                return None;
            }
        }
        Some(Slot { due: now, is_measured })
    }

    /// How many measured requests were due in a run that went on until `until`; `None` without a rate.
    pub(crate) fn due_until(&self, until: Instant) -> Option<u64> {
        let rate = self.rate_per_second?;
        let warmup = due_within(self.measured_from - self.start, rate);
        let until = self.end.map_or(until, |end| end.min(until));
        let all = due_within(until.saturating_duration_since(self.start), rate).min(self.most);
        Some(all.saturating_sub(warmup))
    }

    /// Before it nothing is sent.
    pub(crate) const fn start(&self) -> Instant {
        self.start
    }

    pub(crate) const fn measured_from(&self) -> Instant {
        self.measured_from
    }

    /// When the last request is sent, if time says so.
    pub(crate) const fn end(&self) -> Option<Instant> {
        self.end
    }

    /// Whether requests come at a rate of their own.
    pub(crate) const fn is_open(&self) -> bool {
        self.rate_per_second.is_some()
    }

    /// Nothing more is handed out.
    pub(crate) fn halt(&self) {
        self.is_halted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.is_halted.load(Ordering::Relaxed)
    }
}

/// How long after the start a request is due: counted from the start, so that nothing adds up.
fn due_after(place: u64, rate: u64) -> Duration {
    let nanos = u128::from(place) * NANOS_PER_SECOND / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// How many requests are due before `span` is over.
fn due_within(span: Duration, rate: u64) -> u64 {
    let count = (span.as_nanos() * u128::from(rate)).div_ceil(NANOS_PER_SECOND);
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn all(table: &Timetable, now: Instant) -> Vec<Slot> {
        std::iter::from_fn(|| table.next(now)).collect()
    }

    #[test]
    fn requests_are_due_at_equal_steps_whatever_the_time_is() {
        let start = Instant::now();
        let table = Timetable::new(start, Duration::ZERO, Length::Duration(SECOND), Some(3));
        let due: Vec<u128> =
            all(&table, start).iter().map(|slot| (slot.due - start).as_nanos()).collect();
        assert_eq!(due, [0, 333_333_333, 666_666_666]);
        assert_eq!(table.due_until(start + SECOND * 9), Some(3));
        assert_eq!(table.due_until(start + SECOND / 2), Some(2));
    }

    #[test]
    fn steps_do_not_drift() {
        let day = Duration::from_secs(86_400);
        for rate in [1, 7, 30_000, 999_983] {
            assert_eq!(due_after(rate * 86_400, rate), day);
            assert_eq!(due_within(day, rate), rate * 86_400);
        }
    }

    #[test]
    fn a_warm_up_comes_before_the_count() {
        let start = Instant::now();
        let table = Timetable::new(start, SECOND, Length::Requests(5), Some(10));
        let slots = all(&table, start);
        assert_eq!(slots.len(), 15);
        assert_eq!(slots.iter().filter(|slot| slot.is_measured).count(), 5);
        assert_eq!(table.due_until(start + SECOND * 60), Some(5));
    }

    #[test]
    fn nothing_is_sent_after_the_end_or_a_halt() {
        let start = Instant::now();
        let table = Timetable::new(start, Duration::ZERO, Length::Duration(SECOND), Some(10));
        assert!(table.next(start).is_some());
        assert_eq!(table.next(start + SECOND), None);
        table.halt();
        assert_eq!(table.next(start), None);
    }

    #[test]
    fn without_a_rate_requests_are_due_now() {
        let start = Instant::now();
        let table = Timetable::new(start, SECOND, Length::Requests(2), None);
        let early = table.next(start).expect("a slot");
        assert_eq!(early, Slot { due: start, is_measured: false });
        let later = start + SECOND * 2;
        let slots = all(&table, later);
        assert_eq!(slots, [Slot { due: later, is_measured: true }; 2]);
        assert_eq!(table.due_until(later), None);
    }
}
