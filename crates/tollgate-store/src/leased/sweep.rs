//! Fetches from take-off to landing, and the way back of what is not spent.

use std::sync::Arc;

use futures_util::future::join;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tollgate_core::{Nanos, SECOND};

use super::figures::LeaseFigures;
use super::flight::{Flight, Landing};
use super::lease::{Fetch, Plan};
use super::returns;
use super::{Leased, Shared};
use crate::{Failure, LeaseAsk, LeaseGrant, SharedStore, StoreError};

/// So many counters are returned at the same time.
const AT_ONCE: usize = 64;

/// For so long a lease with nothing on it is remembered, for what it knows of the demand.
const REMEMBERED: Nanos = 10 * SECOND;

/// The same, when the table is nearly full.
const REMEMBERED_IN_NEED: Nanos = SECOND / 2;

/// A fetch in the air. However it ends, its flight lands: those who wait are never forgotten.
struct Airborne<S: SharedStore + 'static> {
    shared: Arc<Shared<S>>,
    fingerprint: u128,
    plan: Plan,
    flight: Arc<Flight>,
    /// Names what it returns.
    return_id: u128,
    has_landed: bool,
}

impl<S: SharedStore + 'static> Airborne<S> {
    fn land(&mut self, answer: &Result<LeaseGrant, StoreError>) {
        self.has_landed = true;
        let Self { shared, fingerprint, plan, flight, return_id, .. } = self;
        let figures = &shared.figures;
        match answer {
            Ok(grant) => {
                LeaseFigures::add(&figures.taken, u64::from(grant.granted > 0));
                LeaseFigures::add(&figures.granted, grant.granted);
                LeaseFigures::add(&figures.returned, plan.returned);
            }
            Err(error) => {
                LeaseFigures::add(&figures.failed, 1);
                // Whether it was returned is not known.
                if plan.returned > 0 {
                    let (owned, returned) =
                        (Arc::clone(&plan.owned), plan.receipt.part(plan.returned));
                    shared.return_again(*return_id, owned, returned, error.failure);
                }
            }
        }
        let landing = shared
            .table
            .with(*fingerprint, |lease| lease.land(plan, answer, &shared.terms(), figures));
        // Leases in flight are not forgotten, so there always is one.
        let landing = landing.unwrap_or(Landing::Nothing);
        if let Some(receipt) = flight.land(landing) {
            let owned = Arc::clone(&plan.owned);
            shared.put_back(*fingerprint, &plan.owned.limit, receipt, || owned);
        }
    }
}

impl<S: SharedStore + 'static> Drop for Airborne<S> {
    fn drop(&mut self) {
        if !self.has_landed {
            self.land(&Err(Failure::Connection.into()));
        }
    }
}

impl<S: SharedStore + 'static> Shared<S> {
    /// Starts a fetch. False if there is no runtime to do so.
    pub(super) fn start(self: &Arc<Self>, fingerprint: u128, fetch: Fetch) -> bool {
        let flight = self.fly(fingerprint, fetch);
        match Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(flight);
                true
            }
            // Dropped, it lands.
            Err(_) => false,
        }
    }

    fn fly(self: &Arc<Self>, fingerprint: u128, fetch: Fetch) -> impl Future<Output = ()> + use<S> {
        let Fetch { flight, plan } = fetch;
        let shared = Arc::clone(self);
        let return_id = shared.returns.draw_id();
        let has_landed = false;
        let mut airborne = Airborne { shared, fingerprint, plan, flight, return_id, has_landed };
        async move {
            let answer = {
                let Airborne { shared, plan, return_id, .. } = &airborne;
                for receipt in &plan.further {
                    shared.return_later(Arc::clone(&plan.owned), *receipt);
                }
                let parts = plan.owned.parts();
                let ask = LeaseAsk {
                    counter: plan.owned.counter(&parts),
                    limit: &plan.owned.limit,
                    node: &shared.options.node,
                    want: plan.want,
                    least: plan.least,
                    returned: plan.returned,
                    receipt: plan.receipt,
                    return_id: *return_id,
                    remember: returns::RETENTION,
                    closes: &plan.closes,
                    held: plan.held,
                    pool: plan.pool,
                    ttl: plan.sizing.lifetime,
                };
                // A shared store goes by its own clock.
                if plan.further.is_empty() {
                    shared.lease(&ask).await
                } else if plan.least > 0 {
                    // What is returned makes room for what is asked for.
                    shared.send_returns(0).await;
                    shared.lease(&ask).await
                } else {
                    join(shared.send_returns(0), shared.lease(&ask)).await.1
                }
            };
            airborne.land(&answer);
        }
    }

    /// Asks the store, and notes how long it took.
    async fn lease(&self, ask: &LeaseAsk<'_>) -> Result<LeaseGrant, StoreError> {
        let departed = self.inner.clock(0);
        let answer = self.inner.lease(ask).await;
        if answer.is_ok() {
            self.distance.observe(departed, self.inner.clock(0));
        }
        answer
    }

    /// Takes what should go back off the leases: what expired or lies idle, or everything.
    fn retreats(&self, at: Nanos, everything: bool) -> Vec<(u128, Fetch)> {
        let mut retreats = Vec::new();
        for shard in self.table.shards() {
            let mut shard = shard.lock();
            let is_crowded = shard.leases.len() * 4 >= self.table.per_shard() * 3;
            let remembered = if is_crowded { REMEMBERED_IN_NEED } else { REMEMBERED };
            shard.leases.retain(|fingerprint, lease| {
                let idle = at.saturating_sub(lease.asked_at);
                let fetch = if everything || idle >= lease.idle() {
                    lease.retreat(at)
                } else if lease.has_expired(at) {
                    lease.return_expired(at)
                } else {
                    None
                };
                retreats.extend(fetch.map(|fetch| (*fingerprint, fetch)));
                LeaseFigures::add(&self.figures.lost, lease.take_lapsed());
                lease.flight.is_some() || lease.left() > 0 || idle < remembered
            });
        }
        retreats
    }

    /// The fetches that are on their way.
    fn in_flight(&self) -> Vec<Arc<Flight>> {
        let flights = |shard: &parking_lot::Mutex<super::table::Shard>| {
            let shard = shard.lock();
            shard.leases.values().filter_map(|lease| lease.flight.clone()).collect::<Vec<_>>()
        };
        self.table.shards().flat_map(flights).collect()
    }

    async fn send_back(self: &Arc<Self>, retreats: Vec<(u128, Fetch)>) {
        let mut tasks = JoinSet::new();
        for (fingerprint, fetch) in retreats {
            if tasks.len() >= AT_ONCE {
                tasks.join_next().await;
            }
            tasks.spawn(self.fly(fingerprint, fetch));
        }
        while tasks.join_next().await.is_some() {}
    }
}

impl<S: SharedStore + 'static> Leased<S> {
    /// Returns what expired or lies idle, and forgets counters that nobody asks for. To be called
    /// every 100 ms or so, inside a tokio runtime.
    pub async fn sweep(&self, now: Nanos) {
        let at = self.shared.inner.clock(now);
        self.shared.send_back(self.shared.retreats(at, false)).await;
        self.shared.send_returns(now).await;
        self.shared.resend_returns(now).await;
    }

    /// Returns everything, for a node that goes. What is asked for meanwhile may be leased again.
    pub async fn return_all(&self, now: Nanos) {
        let at = self.shared.inner.clock(now);
        for flight in self.shared.in_flight() {
            flight.wait().await;
        }
        self.shared.send_back(self.shared.retreats(at, true)).await;
        self.shared.send_returns(now).await;
        self.shared.resend_returns(now).await;
    }
}
