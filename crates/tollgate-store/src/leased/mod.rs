//! Leases: quota of a shared counter that a node takes ahead, so as to decide without asking.
//!
//! A charge on a counter whose home says [`Consistency::Leased`] is spent from a chunk that was
//! charged on the shared counter before. What all nodes together have taken and not spent stays
//! within the counter's pool, a part of its quota: that is how far they can be wrong, either way.
//! Everything else goes to the inner store unchanged.
//!
//! | file | what |
//! |---|---|
//! | `chunk.rs` | one charge on the shared counter, spent piece by piece |
//! | `lease.rs` | one counter: its chunks, and what is known of it |
//! | `lease/fetch.rs`, `lease/land.rs` | when to fetch and how much; what a fetch brought |
//! | `demand.rs` | the rate at which a counter is asked for |
//! | `sizing.rs` | how much to hold, and for how long: demand times distance |
//! | `flight.rs` | one fetch on its way, and those who wait for it |
//! | `table.rs` | all leases |
//! | `decide.rs` | a request over several counters: all or none |
//! | `sweep.rs` | what is not spent is returned |
//! | `returns.rs` | returns are sent until they are answered |

mod chunk;
mod decide;
mod demand;
mod figures;
mod flight;
pub(crate) mod key;
mod lease;
mod returns;
mod sizing;
mod sweep;
mod table;

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Limit, Nanos, Refundable, SECOND, Slot, SlotId};

use crate::{
    Adjusted, Announcement, Charge, Claim, Consistency, Counter, Decided, GiveBack, Home, LeaseAsk,
    LeaseGrant, Mode, Outcomes, RecordAnswer, RecordAsk, Request, RequestClaim, Role, Roll,
    Settlement, SharedStore, Store, StoreError,
};
pub use figures::{LeaseFigures, Overshoot};
use key::Fingerprints;
use lease::Wanted;
use returns::Returns;
use sizing::{Distance, Terms};
use table::Table;

const MILLISECOND: Nanos = SECOND / 1000;

/// How a node leases.
#[derive(Debug, Clone)]
pub struct LeaseOptions {
    /// The name of this node among all that share the store; no two may have the same.
    pub node: String,
    /// How many counters are leased at the same time; others are decided on the shared store.
    pub max_leases: usize,
    /// How long a lease lasts at least; up to 20 round trips for counters that are asked for seldom.
    /// What a crashed node held is unusable for so long.
    pub ttl: Nanos,
    /// How long before that it is no longer spent, in case this node's idea of the store's clock lags:
    /// at least half a round trip.
    pub margin: Nanos,
    /// For how long a chunk should last on a store that is near; the round trip is added to it.
    pub horizon: Nanos,
    /// For how long a refusal is repeated without asking.
    pub refusal: Nanos,
    /// After how long without a request unspent quota goes back, at least.
    pub idle: Nanos,
    /// Makes the order in which counters are visited the same in every run, for simulations. `None`,
    /// the default: fingerprints of counters are made under a random secret.
    pub seed: Option<u64>,
}

impl LeaseOptions {
    /// The defaults, for a node of this name.
    pub const fn new(node: String) -> Self {
        Self {
            node,
            max_leases: 65_536,
            ttl: SECOND,
            margin: 50 * MILLISECOND,
            horizon: 100 * MILLISECOND,
            refusal: 50 * MILLISECOND,
            idle: 200 * MILLISECOND,
            seed: None,
        }
    }
}

/// What a node holds on lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeaseUsage {
    /// Counters that are leased, or were lately.
    pub leases: usize,
    /// Charges that were decided without asking, since the start.
    pub local: u64,
}

/// A shared store, with leases in front of it. Wants a tokio runtime around it; without one it leases
/// nothing.
pub struct Leased<S> {
    shared: Arc<Shared<S>>,
}

/// What fetches on their way need to know.
struct Shared<S> {
    inner: S,
    options: LeaseOptions,
    fingerprints: Fingerprints,
    table: Table,
    figures: LeaseFigures,
    /// How far the store is.
    distance: Distance,
    /// Quota that could not be put back where it was taken, and must go back to the store.
    returns: Returns,
}

impl<S> Shared<S> {
    #[inline]
    const fn terms(&self) -> Terms<'_> {
        Terms { options: &self.options, distance: &self.distance }
    }
}

impl<S: SharedStore + 'static> Leased<S> {
    /// Leases in front of a store.
    pub fn new(inner: S, mut options: LeaseOptions) -> Self {
        // Chunks that hardly live must still be spent for most of their life.
        options.margin = options.margin.min(options.ttl / 4);
        options.horizon = options.horizon.min(options.ttl / 2);
        let fingerprints = Fingerprints::new(options.seed);
        let shared = Shared {
            inner,
            returns: Returns::new(fingerprints.of_text(&options.node)),
            fingerprints,
            table: Table::new(options.max_leases),
            options,
            figures: LeaseFigures::default(),
            distance: Distance::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The store behind it.
    pub fn inner(&self) -> &S {
        &self.shared.inner
    }

    /// What leasing does, in numbers.
    pub fn figures(&self) -> &LeaseFigures {
        &self.shared.figures
    }

    /// The usual round trip of a fetch, as measured; 0 before the first.
    pub fn round_trip(&self) -> Nanos {
        self.shared.distance.smoothed()
    }

    /// What is held. Visits every shard.
    pub fn usage(&self) -> LeaseUsage {
        let (leases, local) = self.shared.table.usage();
        LeaseUsage { leases, local }
    }
}

/// What may be out on lease of a limit: nothing where leases make no sense.
#[inline]
fn pool(counter: &Counter<'_>, limit: &Limit) -> u64 {
    match counter.home.consistency {
        Consistency::Leased { max_overshoot_ppm } if !limit.holds_slots() => {
            let scaled = u128::from(limit.quota()) * u128::from(max_overshoot_ppm);
            u64::try_from(scaled / 1_000_000).unwrap_or(u64::MAX)
        }
        _ => 0,
    }
}

/// What a charge asks of a lease; `None` if it is the inner store's business.
#[inline]
fn wanted<'a>(charge: &Charge<'a>, mode: Mode) -> Option<Wanted<'a>> {
    let Charge { counter, limit, ask, role } = charge;
    let is_plain = *role == Role::Must
        && matches!(mode, Mode::Charge | Mode::Hold)
        && ask.max_delay.is_none()
        && (1..=limit.capacity()).contains(&ask.cost);
    let pool = if is_plain { pool(counter, limit) } else { 0 };
    let is_final =
        ask.refundable == Refundable::No && mode == Mode::Charge && limit.algorithm().is_bucket();
    (pool > 0).then_some(Wanted { limit, cost: ask.cost, pool, is_final })
}

impl<S: SharedStore + 'static> Store for Leased<S> {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        let at = self.shared.inner.clock(now);
        let begun = match requests {
            [request] if is_leased(request) => {
                let Some(steps) = self.shared.decide_at_once(request, at, outcomes) else {
                    return Ok(Decided::at(at));
                };
                Some(steps)
            }
            _ if requests.iter().any(is_leased) => None,
            _ => return self.shared.inner.decide(requests, now, outcomes).await,
        };
        // Boxed, so that what is decided at once does not pay for it.
        Box::pin(self.shared.decide(requests, begun, now, outcomes)).await
    }

    /// A charge that was spent from a lease goes back into it if that is still open and the store's
    /// record of this node covers it; otherwise to the store.
    async fn give_back(&self, returns: &[GiveBack<'_>], now: Nanos) -> Result<(), StoreError> {
        let mut rest = SmallVec::<[GiveBack<'_>; 8]>::new();
        for give_back in returns {
            let GiveBack { counter, limit, receipt } = give_back;
            let put_back = pool(counter, limit) > 0 && {
                let fingerprint = self.shared.fingerprints.of(counter);
                let lease = |lease: &mut lease::Lease| lease.put_back(limit, receipt);
                self.shared.table.with(fingerprint, lease).unwrap_or(false)
            };
            if !put_back {
                rest.push(*give_back);
            }
        }
        if rest.is_empty() { Ok(()) } else { self.shared.inner.give_back(&rest, now).await }
    }

    /// What this node has on lease is forgotten; other nodes may spend theirs until it expires.
    async fn reset(&self, counters: &[Counter<'_>], now: Nanos) -> Result<(), StoreError> {
        let forget = || {
            for counter in counters {
                let fingerprint = self.shared.fingerprints.of(counter);
                self.shared.table.with(fingerprint, lease::Lease::forget);
            }
        };
        // Before, so that nothing is spent of what is being reset; after, for what was fetched
        // meanwhile.
        forget();
        let done = self.shared.inner.reset(counters, now).await;
        forget();
        done
    }

    async fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        self.shared.inner.renew(counter, limit, slot, now).await
    }

    async fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        self.shared.inner.release(counter, slot, now).await
    }

    async fn slots(&self, counter: &Counter<'_>, now: Nanos) -> Result<Vec<Slot>, StoreError> {
        self.shared.inner.slots(counter, now).await
    }

    /// What was spent from a lease was charged on the shared counter before, and its receipt is good
    /// there: it is settled there, where all nodes see that it was.
    async fn settle(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> Result<Adjusted, StoreError> {
        let applied = self.shared.inner.settle(settlement, now).await?;
        for adjustment in settlement.adjustments {
            if pool(&adjustment.counter, adjustment.limit) > 0 {
                let fingerprint = self.shared.fingerprints.of(&adjustment.counter);
                self.shared.table.with(fingerprint, lease::Lease::forget_refusal);
            }
        }
        Ok(applied)
    }

    async fn record(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        now: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        self.shared.inner.record(id, ask, now).await
    }

    fn conceal(&self, home: &Home, secret: &str) -> Option<String> {
        self.shared.inner.conceal(home, secret)
    }

    fn names(&self) -> &[String] {
        self.shared.inner.names()
    }

    async fn claim(&self, claim: &RequestClaim) -> Result<Claim, StoreError> {
        self.shared.inner.claim(claim).await
    }

    async fn publish(&self, claim: &RequestClaim, answer: Option<&[u8]>) -> Result<(), StoreError> {
        self.shared.inner.publish(claim, answer).await
    }
}

fn is_leased(request: &Request<'_>) -> bool {
    request.charges.iter().any(|charge| wanted(charge, request.mode).is_some())
}

impl<S: SharedStore + 'static> SharedStore for Leased<S> {
    async fn lease(&self, ask: &LeaseAsk<'_>) -> Result<LeaseGrant, StoreError> {
        self.shared.inner.lease(ask).await
    }

    async fn announce(&self, announcement: &Announcement<'_>) -> Result<Roll, StoreError> {
        self.shared.inner.announce(announcement).await
    }

    fn has_parts(&self) -> bool {
        self.shared.inner.has_parts()
    }

    fn clock(&self, now: Nanos) -> Nanos {
        self.shared.inner.clock(now)
    }

    async fn request_timeout(&self) {
        self.shared.inner.request_timeout().await;
    }
}
