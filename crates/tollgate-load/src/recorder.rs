//! What one thread has seen, second by second. The thread sends each completed second to the one
//! that builds the report, so that nothing is shared while requests are under way.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

use crate::endpoint::Traffic;
use crate::outcome::{Answer, Fault};
use crate::plan::MAX_DURATION;
use crate::timetable::Slot;

/// Latencies are exact to three digits, and to 64 ns.
const DIGITS: u8 = 3;
const LEAST_NANOS: u64 = 100;
/// A request can be as late as its run is long.
const MAX_NANOS: u64 = MAX_DURATION.as_nanos() as u64;

/// The steps of the time series.
pub(crate) const STEP: Duration = Duration::from_secs(1);

/// A request that has ended.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) slot: Slot,
    /// Its lane waited for it, so that a delay is the generator's own.
    pub(crate) was_free: bool,
    pub(crate) sent: Instant,
    pub(crate) done: Instant,
    pub(crate) result: Result<Answer, Fault>,
}

/// Times in nanoseconds.
pub(crate) type Times = Histogram<u64>;

/// An empty histogram; `None` only if the bounds above made no sense.
pub(crate) fn times() -> Option<Times> {
    Histogram::new_with_bounds(LEAST_NANOS, MAX_NANOS, DIGITS).ok()
}

/// What was seen in a time.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    pub(crate) refused: u64,
    pub(crate) faults: BTreeMap<Fault, u64>,
    /// Requests that found no free lane when they were due.
    pub(crate) waited: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// From when the request was due.
    pub(crate) corrected: Option<Times>,
    /// From when it was sent.
    pub(crate) service: Option<Times>,
    /// By how much the generator itself was late.
    pub(crate) lag: Option<Times>,
}

impl Seen {
    fn new() -> Self {
        Self { corrected: times(), service: times(), lag: times(), ..Self::default() }
    }

    fn add_sample(&mut self, sample: &Sample, is_open: bool) {
        let Sample { slot, was_free, sent, done, result } = sample;
        self.requests += 1;
        match result {
            Ok(answer) => {
                self.allowed += u64::from(answer.allowed);
                self.refused += u64::from(answer.refused);
                if answer.failed > 0 {
                    *self.faults.entry(Fault::Part).or_default() += u64::from(answer.failed);
                }
            }
            Err(fault) => *self.faults.entry(*fault).or_default() += 1,
        }
        // A request that never got to the server says nothing about how fast it is.
        if *result != Err(Fault::Connect) {
            record(&mut self.service, *done - *sent);
            record(&mut self.corrected, *done - slot.due);
        }
        if is_open && *was_free {
            record(&mut self.lag, *sent - slot.due);
        } else if is_open && sent > &slot.due {
            self.waited += 1;
        }
    }

    /// Adds what another thread, or another time, has seen.
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.allowed += other.allowed;
        self.refused += other.refused;
        self.waited += other.waited;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        for (fault, count) in &other.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        merge(&mut self.corrected, other.corrected.as_ref());
        merge(&mut self.service, other.service.as_ref());
        merge(&mut self.lag, other.lag.as_ref());
    }

    pub(crate) fn faults_sum(&self) -> u64 {
        self.faults.values().sum()
    }
}

fn record(times: &mut Option<Times>, time: Duration) {
    if let Some(times) = times {
        times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
}

fn merge(times: &mut Option<Times>, other: Option<&Times>) {
    let Some(other) = other.filter(|other| !other.is_empty()) else { return };
    let times = match times {
        Some(times) => times,
        None => match self::times() {
            Some(new) => times.insert(new),
            None => return,
        },
    };
    // All have the same bounds, so nothing can be out of them.
    let _ = times.add(other);
}

/// What a thread reports.
pub(crate) enum News {
    /// A second is over.
    Second { thread: usize, index: u64, seen: Box<Seen> },
    /// The thread is done.
    Done { thread: usize, unfinished: u64, cpu: Duration, last: Option<Instant> },
}

/// Gathers what one thread sees.
pub(crate) struct Recorder {
    state: RefCell<State>,
    traffic: Rc<Traffic>,
    thread: usize,
    news: Sender<News>,
    measured_from: Instant,
    is_open: bool,
}

struct State {
    index: u64,
    index_ends: Instant,
    seen: Seen,
    /// Measured requests under way.
    under_way: u64,
    has_begun: bool,
    counted_sent_bytes: u64,
    counted_received_bytes: u64,
    last: Option<Instant>,
}

impl Recorder {
    pub(crate) fn new(
        thread: usize,
        news: Sender<News>,
        traffic: Rc<Traffic>,
        measured_from: Instant,
        is_open: bool,
    ) -> Self {
        let state = State {
            index: 0,
            index_ends: measured_from + STEP,
            seen: Seen::new(),
            under_way: 0,
            has_begun: false,
            counted_sent_bytes: 0,
            counted_received_bytes: 0,
            last: None,
        };
        Self { state: RefCell::new(state), traffic, thread, news, measured_from, is_open }
    }

    /// A request is sent.
    pub(crate) fn begin(&self, slot: Slot) {
        if !slot.is_measured {
            return;
        }
        let mut state = self.state.borrow_mut();
        state.under_way += 1;
        if !state.has_begun {
            // Traffic until now was the warm-up's.
            state.has_begun = true;
            state.counted_sent_bytes = self.traffic.sent_bytes.get();
            state.counted_received_bytes = self.traffic.received_bytes.get();
        }
    }

    /// It has ended.
    pub(crate) fn end(&self, sample: &Sample) {
        if !sample.slot.is_measured {
            return;
        }
        let mut state = self.state.borrow_mut();
        if sample.done >= state.index_ends {
            self.turn(&mut state, sample.done);
        }
        state.under_way -= 1;
        state.last = Some(sample.done);
        state.seen.add_sample(sample, self.is_open);
    }

    /// Looks whether a second is over, for when no request ends.
    pub(crate) fn tick(&self, now: Instant) {
        let mut state = self.state.borrow_mut();
        if now >= state.index_ends {
            self.turn(&mut state, now);
        }
    }

    /// The thread has ended; `cpu` is what it used.
    pub(crate) fn finish(&self, cpu: Duration) {
        let mut state = self.state.borrow_mut();
        self.send(&mut state);
        let (unfinished, last) = (state.under_way, state.last);
        let _ = self.news.send(News::Done { thread: self.thread, unfinished, cpu, last });
    }

    /// Sends the second that is over and begins the one that `now` is in.
    fn turn(&self, state: &mut State, now: Instant) {
        self.send(state);
        let index = (now - self.measured_from).as_secs();
        state.index = index;
        state.index_ends = self.measured_from + Duration::from_secs(index + 1);
    }

    fn send(&self, state: &mut State) {
        let mut seen = Box::new(std::mem::replace(&mut state.seen, Seen::new()));
        let (sent, received) = (self.traffic.sent_bytes.get(), self.traffic.received_bytes.get());
        seen.sent_bytes = sent - state.counted_sent_bytes;
        seen.received_bytes = received - state.counted_received_bytes;
        state.counted_sent_bytes = sent;
        state.counted_received_bytes = received;
        // Nobody listens any more only if the run was given up.
        let _ = self.news.send(News::Second { thread: self.thread, index: state.index, seen });
    }
}
