//! One Redis server as this process sees it: its clock, its breaker, and a lane per runtime.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;
use tollgate_core::MICRO;

use super::breaker::{Breaker, BreakerState};
use super::clock::Estimate;
use super::connect::Endpoint;
use super::health::Health;
use super::metrics::RedisMetrics;
use super::node_connection::NodeConnection;
use crate::round_trip::RoundTrip;
use crate::{Failure, Nanos};

/// More lanes than this belong to runtimes that have gone.
const MAX_LANES: usize = 256;

/// One Redis server.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) endpoint: Endpoint,
    pub(super) health: Health,
    breaker: Mutex<Breaker>,
    /// The server's clock against the time since `began`.
    seen: Mutex<Option<Estimate>>,
    /// How far the server is, from calls of any kind.
    round_trip: Mutex<RoundTrip>,
    began: Instant,
    metrics: Arc<RedisMetrics>,
    lanes: RwLock<Vec<(Id, Arc<NodeConnection>)>>,
}

impl Node {
    pub(super) fn new(endpoint: Endpoint, metrics: Arc<RedisMetrics>) -> Self {
        Self {
            name: endpoint.name(),
            endpoint,
            health: Health::default(),
            breaker: Mutex::default(),
            seen: Mutex::default(),
            round_trip: Mutex::default(),
            began: Instant::now(),
            metrics,
            lanes: RwLock::default(),
        }
    }

    /// The lane of the runtime that the caller runs on.
    pub(super) fn lane(self: &Arc<Self>) -> Arc<NodeConnection> {
        let id = Handle::current().id();
        let of_mine = |(of, _): &&(Id, Arc<NodeConnection>)| *of == id;
        if let Some((_, lane)) = self.lanes.read().iter().find(of_mine) {
            return Arc::clone(lane);
        }
        let mut lanes = self.lanes.write();
        if let Some((_, lane)) = lanes.iter().find(of_mine) {
            return Arc::clone(lane);
        }
        if lanes.len() >= MAX_LANES {
            lanes.remove(0);
        }
        let lane = Arc::new(NodeConnection::default());
        lanes.push((id, Arc::clone(&lane)));
        lane
    }

    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn elapsed_micros(&self, at: Instant) -> i64 {
        i64::try_from(at.saturating_duration_since(self.began).as_micros()).unwrap_or(i64::MAX)
    }

    /// The server said that its clock shows `micros`, between these instants of ours.
    pub(super) fn saw_clock(&self, micros: u64, sent: Instant, received: Instant) {
        let took = received.saturating_duration_since(sent).as_nanos();
        self.round_trip.lock().observe(u64::try_from(took).unwrap_or(Nanos::MAX));
        let (sent, received) = (self.elapsed_micros(sent), self.elapsed_micros(received));
        let newer = Estimate::new(i64::try_from(micros).unwrap_or(i64::MAX), sent, received);
        let mut seen = self.seen.lock();
        *seen = Some(seen.map_or(newer, |older| older.or(newer)));
    }

    /// The shortest round trip lately: how far the server is, however busy; zero before the first.
    pub(super) fn shortest_round_trip(&self) -> Duration {
        let error = self.seen.lock().map_or(0, |seen| seen.error());
        Duration::from_micros(u64::try_from(error).unwrap_or(0).saturating_mul(2))
    }

    /// A round trip that is seldom exceeded.
    pub(super) fn long_round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip.lock().high())
    }

    /// What the server's clock shows at `at`, in microseconds, if we have seen it.
    pub(super) fn clock_at(&self, at: Instant) -> Option<u64> {
        let seen = *self.seen.lock();
        seen?.at(self.elapsed_micros(at))
    }

    /// The same now, in nanoseconds.
    pub(super) fn clock(&self) -> Option<Nanos> {
        self.clock_at(Instant::now()).map(|micros| micros.saturating_mul(MICRO))
    }

    /// Whether a call may go. If so, its result must be reported: [`Node::succeeded`] or
    /// [`Node::failed`].
    pub(super) fn admits(&self) -> bool {
        self.breaker.lock().admits(self.elapsed())
    }

    /// An answer came, of whatever content.
    pub(super) fn succeeded(&self) {
        let mut breaker = self.breaker.lock();
        let before = breaker.state();
        breaker.succeeded();
        drop(breaker);
        self.moved(before, BreakerState::Closed);
        self.health.succeeded(&self.name, self.elapsed());
    }

    /// An attempt failed. It is logged if it opens the breaker, else only if the caller gives up: a
    /// connection that was closed because it was idle is not worth a log line.
    pub(super) fn failed(&self, failure: Failure, detail: &str, spread: u8) {
        let mut breaker = self.breaker.lock();
        let before = breaker.state();
        breaker.failed(self.elapsed(), spread);
        let after = breaker.state();
        drop(breaker);
        self.moved(before, after);
        if before == BreakerState::Closed && after == BreakerState::Open {
            self.gave_up(failure, detail);
        } else {
            self.health.goes_on(self.elapsed());
        }
    }

    /// A call failed and is not retried.
    pub(super) fn gave_up(&self, failure: Failure, detail: &str) {
        self.health.failed(&self.name, failure, detail, self.elapsed());
    }

    fn moved(&self, before: BreakerState, after: BreakerState) {
        let is_open = |state| i64::from(state != BreakerState::Closed);
        let by = is_open(after) - is_open(before);
        if by != 0 {
            self.metrics.breaker_moved(by);
            if by > 0 {
                tracing::debug!(
                    redis = self.name,
                    "Redis failed again and again; leaving it alone"
                );
            } else {
                tracing::debug!(redis = self.name, "Redis is asked again");
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.breaker.lock().state() != BreakerState::Closed {
            self.metrics.breaker_moved(-1);
        }
    }
}
