//! Virtual time: one thread, one heap of events.
//!
//! All tasks run on tokio's single-threaded runtime. When none of them can go on, the runtime is about
//! to park its thread; instead, the next event happens and the clock moves to its instant. So nothing
//! waits for real time, and nothing happens in an order that does not follow from the seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tollgate_core::{Nanos, SECOND};

use crate::draw::Draw;

/// 26 minutes after midnight, so that no window of an hour or longer ends during a run.
pub const START: Nanos = 1_789_000_000 * SECOND;

pub const MILLISECOND: Nanos = SECOND / 1000;

/// What happens at an instant. Returns whether a task can go on because of it.
type Action = Box<dyn FnOnce() -> bool + Send>;

struct Event {
    at: Nanos,
    /// Puts events of the same instant in a random order.
    tie: u64,
    /// The order in which they were scheduled.
    number: u64,
    action: Action,
}

impl Event {
    const fn key(&self) -> (Nanos, u64, u64) {
        (self.at, self.tie, self.number)
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// The clock, the events to come, and what has happened.
pub struct Time(Mutex<Inner>);

struct Inner {
    now: Nanos,
    events: BinaryHeap<Reverse<Event>>,
    scheduled: u64,
    ties: Draw,
    /// Changes with everything that is noted: two runs that end with the same one were the same.
    digest: u64,
    notes: Option<Vec<String>>,
}

impl Time {
    /// `is_noted`: whether to keep what happens as text.
    pub fn new(seed: u64, is_noted: bool) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Inner {
            now: START,
            events: BinaryHeap::new(),
            scheduled: 0,
            ties: Draw::new(seed, 1),
            digest: seed,
            notes: is_noted.then(Vec::new),
        })))
    }

    pub fn now(&self) -> Nanos {
        self.0.lock().now
    }

    /// Does something at an instant, or next if that has passed.
    pub fn schedule(&self, at: Nanos, action: impl FnOnce() -> bool + Send + 'static) {
        let mut inner = self.0.lock();
        let (tie, number) = (inner.ties.next(), inner.scheduled);
        inner.scheduled += 1;
        let at = at.max(inner.now);
        inner.events.push(Reverse(Event { at, tie, number, action: Box::new(action) }));
    }

    pub async fn sleep_until(&self, at: Nanos) {
        let (wake, woken) = oneshot::channel();
        self.schedule(at, move || wake.send(()).is_ok());
        // The sender is dropped only with the whole simulation.
        let _ = woken.await;
    }

    pub async fn sleep(&self, nanos: Nanos) {
        self.sleep_until(self.now() + nanos).await;
    }

    /// Makes the next events happen, until a task can go on.
    fn step(&self) {
        loop {
            let event = {
                let mut inner = self.0.lock();
                let next = inner.events.pop();
                let Reverse(event) = next.expect("all tasks wait, and nothing is going to happen");
                inner.now = event.at;
                event
            };
            if (event.action)() {
                break;
            }
        }
    }

    /// Notes what happened. `digest` stands for it where texts are not kept.
    pub fn note(&self, digest: u64, text: impl FnOnce() -> String) {
        let mut inner = self.0.lock();
        let mixed = inner.digest ^ digest.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ inner.now;
        inner.digest = mixed.rotate_left(23).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let since = inner.now - START;
        if let Some(notes) = &mut inner.notes {
            notes.push(format!("{:>11.3} ms  {}", since as f64 / 1e6, text()));
        }
    }

    pub fn digest(&self) -> u64 {
        self.0.lock().digest
    }

    pub fn take_notes(&self) -> Vec<String> {
        self.0.lock().notes.take().unwrap_or_default()
    }

    /// Runs a future to its end in virtual time.
    pub fn run<T>(self: &Arc<Self>, future: impl Future<Output = T>) -> T {
        let time = Arc::clone(self);
        let runtime = Builder::new_current_thread()
            .on_thread_park(move || time.step())
            .build()
            .expect("a runtime without drivers");
        let result = runtime.block_on(future);
        drop(runtime);
        // Events may hold tasks' wakers, and those hold events.
        self.0.lock().events.clear();
        result
    }
}
