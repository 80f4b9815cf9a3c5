//! What happens when the shared store does not answer: every rule's `on_store_failure` says.
//!
//! `local` counters are decided in this node's memory, on its share of the limit, starting from what
//! was last known to be used; `open` ones pass; `closed` ones are refused. When the store is back,
//! this node reports what was admitted without it.
//!
//! | file | what |
//! |---|---|
//! | `ask.rs` | deciding with the store, after what it missed was reported |
//! | `both.rs` | deciding during a hand-over, on the share and on the store |
//! | `fallback.rs` | deciding without the store |
//! | `known.rs` | what was last known of every counter |
//! | `admitted.rs` | what was admitted of one counter, and what the store would count of it |
//! | `report.rs` | what was admitted, until it is reported |
//! | `outage.rs` | losing the store and finding it again |
//! | `handover.rs` | from the shares back to the store: when that is safe |
//! | `heal.rs` | who is alive; coming back to the store |
//! | `settle.rs` | settlements, kept until the store takes them |

mod admitted;
mod ask;
mod both;
mod fallback;
mod figures;
mod handover;
mod heal;
mod known;
mod outage;
mod report;
mod settle;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use tollgate_core::{Ask, Limit, Nanos, Outcome, Receipt, SECOND, Slot, SlotId};

use crate::leased::Leased;
use crate::leased::key::{Fingerprints, Named};
use crate::once::Once;
use crate::placed::Member;
use crate::{
    Adjusted, Charge, Claim, Counter, Decided, GiveBack, Home, Membership, MemoryStore, Mode,
    OnFailure, Outcomes, RecordAnswer, RecordAsk, Request, RequestClaim, Role, Settlement,
    SharedStore, Store, StoreError, check_outcomes,
};
pub use figures::FallbackFigures;
use handover::{Awaited, Handover};
use heal::Heard;
use known::Known;
use outage::{Extent, Outages, extent};
use report::Reports;
use settle::Kept;

/// The store of a node's own records has no counters.
const OWN_RECORDS_COUNTERS: usize = 1;

/// How exactly it is noted when the store last decided something.
const ANSWER_GRAIN: Nanos = SECOND / 10;

/// How a node does without its store.
#[derive(Debug, Clone)]
pub struct ResilientOptions {
    /// The name of this node among all that share the store; no two may have the same.
    pub node: String,
    /// Of how many counters the last known usage is kept, and how many are counted in an outage.
    pub max_counters: usize,
    /// How many counters can wait to be reported.
    pub max_reports: usize,
    /// Who is taken to be alive before the store was ever heard of.
    pub assumed: Membership,
    /// Makes the order in which counters are visited the same in every run, for simulations. `None`,
    /// the default: fingerprints of counters are made under a random secret.
    pub seed: Option<u64>,
}

impl ResilientOptions {
    /// The defaults, for a node of this name.
    pub const fn new(node: String) -> Self {
        Self {
            node,
            max_counters: 200_000,
            max_reports: 100_000,
            assumed: Membership::ALONE,
            seed: None,
        }
    }
}

/// A shared store that always answers.
pub struct Resilient<S> {
    inner: S,
    options: ResilientOptions,
    fingerprints: Fingerprints,
    known: Known,
    reports: Reports,
    /// Slots to be released on the store.
    releases: Mutex<Vec<(Arc<Named>, SlotId)>>,
    /// Which parts of settlements were about charges that waited here.
    settled: Once,
    /// Settlements that the store has not taken.
    settlements: Mutex<Vec<Arc<Kept>>>,
    /// Decides while the store does not. A request that is counted in it holds the read lock until
    /// that is noted in `reports`; code that recounts what is known holds the write lock.
    memory: RwLock<Arc<MemoryStore>>,
    /// Records of what this node admitted without the store: they hold keys as they are, and stay here.
    own_records: MemoryStore,
    outages: Mutex<Outages>,
    /// Where the next attempt to report starts if not all counters could be reported.
    turn: AtomicUsize,
    heard: Mutex<Heard>,
    /// From the shares back to the store, after an outage.
    handover: Handover,
    /// The nodes whose reports a hand-over awaits.
    awaited: Mutex<Awaited>,
    /// When the store last decided something, to within [`ANSWER_GRAIN`].
    last_answer: AtomicU64,
    /// How many counters the store answers for, but cannot decide: they are no reason not to recover.
    unreportable: AtomicUsize,
    figures: FallbackFigures,
}

impl<S: SharedStore> Resilient<S> {
    /// Answers for a store, with it or without it.
    pub fn new(inner: S, options: ResilientOptions) -> Self {
        Self {
            inner,
            fingerprints: Fingerprints::new(options.seed),
            known: Known::new(options.max_counters),
            reports: Reports::new(options.max_reports),
            releases: Mutex::default(),
            settled: Once::default(),
            settlements: Mutex::default(),
            memory: RwLock::new(Arc::new(MemoryStore::new(options.max_counters))),
            own_records: MemoryStore::new(OWN_RECORDS_COUNTERS),
            outages: Mutex::default(),
            turn: AtomicUsize::new(0),
            heard: Mutex::new(Heard::new(options.assumed)),
            handover: Handover::default(),
            awaited: Mutex::default(),
            last_answer: AtomicU64::new(0),
            unreportable: AtomicUsize::new(0),
            options,
            figures: FallbackFigures::default(),
        }
    }

    /// The store behind it.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// What happens without the store, in numbers.
    pub const fn figures(&self) -> &FallbackFigures {
        &self.figures
    }

    /// Since when the store has been lost.
    pub fn degraded_since(&self) -> Option<Nanos> {
        self.outages.lock().since()
    }

    /// Whether requests are decided on this node's share as well as on the store, because other nodes may
    /// not have reported yet what they admitted without it.
    pub fn is_handing_over(&self) -> bool {
        self.handover.is_open()
    }

    /// How many counters wait to be reported.
    pub fn waiting_reports(&self) -> usize {
        self.reports.len()
    }

    /// Refundable charges to this node's shares that became final because their bucket had too many of them.
    pub fn finalized_charges(&self) -> u64 {
        self.memory().usage().finalized_charges
    }

    /// The nodes that are alive, as far as this one has heard.
    pub fn membership(&self) -> Membership {
        self.heard.lock().membership
    }

    /// Keeps what the store has just said of counters that this node may have to decide alone, or to
    /// speak of when it refuses.
    fn remember(
        &self,
        requests: &[Request<'_>],
        outcomes: &[Outcome],
        at: impl Fn(usize) -> Nanos,
    ) {
        let charges = requests.iter().flat_map(|request| request.charges);
        for (number, (charge, outcome)) in charges.zip(outcomes).enumerate() {
            if charge.counter.home.on_failure != OnFailure::Open {
                let fingerprint = self.fingerprints.of(&charge.counter);
                self.known.remember(fingerprint, at(number), &outcome.status);
            }
        }
    }

    /// Notes that the store decides. A load, mostly, because all decisions come by here.
    fn note_answer(&self, now: Nanos) {
        let noted = self.last_answer.load(Ordering::Relaxed);
        if now > noted.saturating_add(ANSWER_GRAIN) {
            self.last_answer.store(now, Ordering::Relaxed);
        }
    }

    fn share(&self, limit: &Limit) -> Limit {
        let Membership { nodes, rank } = self.membership();
        limit.share(rank, nodes)
    }
}

/// The stack that nodes run: fallbacks over leases over a remote store.
impl<S: SharedStore + 'static> Resilient<Leased<S>> {
    /// The leases.
    pub const fn leases(&self) -> &Leased<S> {
        &self.inner
    }

    /// The remote store.
    pub fn remote(&self) -> &S {
        self.inner.inner()
    }
}

impl<S: SharedStore> Member for Resilient<S> {
    fn membership(&self) -> Membership {
        self.membership()
    }
}

impl<S: SharedStore> Store for Resilient<S> {
    async fn decide(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> Result<Decided, StoreError> {
        if let Some(failure) = self.handover.failure() {
            self.end_overdue_handover(now);
            return Ok(Box::pin(self.decide_on_both(requests, failure, now, outcomes)).await);
        }
        if self.reports.len() > 0 {
            // Boxed, so that while all is well nobody pays for it.
            return Ok(Box::pin(self.decide_apart(requests, now, outcomes)).await);
        }
        let first = outcomes.len();
        let decided = self.inner.decide(requests, now, outcomes).await;
        let checked =
            decided.and_then(|decided| check_outcomes(requests, first, outcomes).map(|()| decided));
        match checked {
            Ok(decided) if decided.failed.is_some() => {
                Ok(self.complete(requests, &decided, first, now, outcomes))
            }
            Ok(decided) => {
                self.note_answer(now);
                let appended = outcomes.get(first..).unwrap_or_default();
                self.remember(requests, appended, |charge| decided.of(charge));
                Ok(decided)
            }
            Err(error) => {
                outcomes.truncate(first);
                if requests.len() > 1 && extent(error.failure) == Extent::Counters {
                    return Ok(Box::pin(self.decide_apart(requests, now, outcomes)).await);
                }
                Ok(self.fall_back(requests, error.failure, now, outcomes))
            }
        }
    }

    /// What waits to be reported is taken off that; the rest goes to the store. Where that does not
    /// answer, this node's memory has the room at least, and the store learns of slots later: of the rest it
    /// does not, because it may have given that back already.
    async fn give_back(&self, returns: &[GiveBack<'_>], now: Nanos) -> Result<(), StoreError> {
        let at = self.inner.clock(now);
        let here = |give_back: &GiveBack<'_>| {
            let share = self.share(give_back.limit);
            self.memory().give_back_now(&GiveBack { limit: &share, ..*give_back }, at);
        };
        let mut rest = SmallVec::<[GiveBack<'_>; 8]>::new();
        for give_back in returns {
            let fingerprint = self.fingerprints.of(&give_back.counter);
            if self.reports.take_back(fingerprint, &give_back.receipt, at) {
                here(give_back);
            } else {
                rest.push(*give_back);
            }
        }
        if rest.is_empty() {
            return Ok(());
        }
        if self.inner.give_back(&rest, now).await.is_ok() {
            rest.iter().for_each(|give_back| self.give_back_here(give_back, at));
        } else {
            rest.iter().for_each(here);
            for give_back in &rest {
                if let Receipt::Slot(slot) = give_back.receipt {
                    self.release_later(&give_back.counter, slot);
                }
            }
        }
        Ok(())
    }

    /// Returns an error if the store did not reset the counters; this node forgets them in any
    /// case.
    async fn reset(&self, counters: &[Counter<'_>], now: Nanos) -> Result<(), StoreError> {
        let at = self.inner.clock(now);
        for counter in counters {
            let fingerprint = self.fingerprints.of(counter);
            self.known.forget(fingerprint);
            self.reports.reset(fingerprint, at);
        }
        self.memory().reset(counters, at).await?;
        self.inner.reset(counters, now).await
    }

    async fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        let answer = self.inner.renew(counter, limit, slot, now).await;
        let (at, share) = (self.inner.clock(now), self.share(limit));
        if answer == Ok(true) {
            if self.handover.is_open() {
                self.memory().renew(counter, &share, slot, at).await?;
            }
            return answer;
        }
        let memory = self.memory();
        if memory.renew(counter, &share, slot, at).await? {
            self.reports.renew(self.fingerprints.of(counter), slot, at);
            return Ok(true);
        }
        let Err(error) = answer else { return answer };
        match counter.home.on_failure {
            OnFailure::Closed => Err(error),
            OnFailure::Open => Ok(true),
            // It was taken before the store was lost, and is held by this node from now on.
            OnFailure::Local => {
                let ask = Ask::slot(slot);
                let charge = Charge { counter: *counter, limit, ask, role: Role::Must };
                let memory = self.memory.read();
                memory.decide_single(&Charge { limit: &share, ..charge }, Mode::Owe, at);
                self.note(&charge, &share, at, at);
                Ok(true)
            }
        }
    }

    async fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        now: Nanos,
    ) -> Result<bool, StoreError> {
        let (at, fingerprint) = (self.inner.clock(now), self.fingerprints.of(counter));
        let was_waiting = self.reports.take_back(fingerprint, &Receipt::Slot(slot), at);
        let was_here = self.memory().release(counter, slot, at).await?;
        match self.inner.release(counter, slot, now).await {
            // What is not waiting to be reported is held there, if it is held.
            Ok(was_there) => Ok(was_waiting || was_there),
            Err(_) if was_waiting || was_here => Ok(true),
            // It was taken before the store was lost, and is released when that is back.
            Err(_) => {
                self.release_later(counter, slot);
                Ok(true)
            }
        }
    }

    /// Without the store, those that this node holds by itself.
    async fn slots(&self, counter: &Counter<'_>, now: Nanos) -> Result<Vec<Slot>, StoreError> {
        match self.inner.slots(counter, now).await {
            Ok(slots) => Ok(slots),
            Err(_) => self.memory().slots(counter, self.inner.clock(now)).await,
        }
    }

    async fn settle(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> Result<Adjusted, StoreError> {
        self.settle_or_keep(settlement, now).await
    }

    async fn record(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        now: Nanos,
    ) -> Result<RecordAnswer, StoreError> {
        let is_here = match ask {
            RecordAsk::Keep { is_here, .. } => *is_here,
            _ => self.own_records.has_record(id),
        };
        if is_here {
            return Ok(self.own_records.record_now(id, ask, self.inner.clock(now)));
        }
        self.inner.record(id, ask, now).await
    }

    fn conceal(&self, home: &Home, secret: &str) -> Option<String> {
        self.inner.conceal(home, secret)
    }

    fn names(&self) -> &[String] {
        self.inner.names()
    }

    async fn claim(&self, claim: &RequestClaim) -> Result<Claim, StoreError> {
        self.inner.claim(claim).await
    }

    async fn publish(&self, claim: &RequestClaim, answer: Option<&[u8]>) -> Result<(), StoreError> {
        self.inner.publish(claim, answer).await
    }
}
