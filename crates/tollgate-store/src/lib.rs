//! Where counters live.
//!
//! A [`Store`] decides requests that each charge several counters, all or none, and owns the
//! atomicity of that; the arithmetic is [`tollgate_core`]'s. Every store passes the one suite in
//! `conformance`.

#[cfg(feature = "conformance")]
pub mod conformance;
mod contract;
mod home;
#[cfg(feature = "redis")]
pub mod leased;
pub mod memory;
mod once;
mod outcome;
#[cfg(feature = "redis")]
pub mod placed;
mod record;
#[cfg(feature = "redis")]
pub mod redis;
mod resets;
#[cfg(feature = "redis")]
pub mod resilient;
#[cfg(feature = "redis")]
mod round_trip;
#[cfg(feature = "redis")]
mod secret;
mod settle;
mod shared;
mod synchronous;

use std::future::Future;

use smallvec::SmallVec;
use tollgate_core::{Ask, Limit, Nanos, Outcome, Receipt, Slot, SlotId};

pub use contract::{REFUSED, check_outcomes, report_broken};
pub use home::{Consistency, Home, OnFailure};
pub use memory::MemoryStore;
pub use outcome::{Claim, Decided, Degraded, Failure, Fallback, RequestClaim, StoreError};
pub use record::{MAX_RECORD_BYTES, RecordAnswer, RecordAsk};
#[cfg(feature = "redis")]
pub use secret::api_key_id;
pub use settle::{Adjusted, Adjustment, Applied, Change, Refunds, Settlement};
pub use shared::{
    Announcement, LeaseAsk, LeaseGrant, MAX_ROLL, Membership, Roll, RollEntry, SharedStore,
};
pub use synchronous::SyncStore;

/// Which counter: one limit of one rule for one combination of key values.
#[derive(Debug, Clone, Copy)]
pub struct Counter<'a> {
    /// The rule the limit belongs to.
    pub rule_id: &'a str,
    /// The algorithm and window, which tell the limits of a rule apart.
    pub tag: &'a str,
    /// A fingerprint of `rule_id` and `tag`, made once.
    pub salt: u128,
    /// The values of the rule's key attributes, in the rule's order.
    pub key: &'a [&'a str],
    /// Where it is kept.
    pub home: Home,
}

/// What becomes of a request when one of its charges does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The request is refused.
    Must,
    /// Charges of this role form one group: the request is refused only if none of them fits, and
    /// those that fit are charged.
    AnyOf,
    /// Nothing: it is charged where it fits, and reported.
    Watch,
    /// Nothing: it is charged wherever the request passes, above the limit too, and reported. So it counts what another
    /// charge of the request admits.
    Alongside,
}

impl Role {
    /// Whether a charge of this role can refuse the request.
    pub const fn can_refuse(self) -> bool {
        matches!(self, Self::Must | Self::AnyOf)
    }
}

/// One limit that a request would be charged to.
#[derive(Debug, Clone, Copy)]
pub struct Charge<'a> {
    /// Which counter.
    pub counter: Counter<'a>,
    /// Its limit, in the variant that applies to this request.
    pub limit: &'a Limit,
    /// What is asked of it.
    pub ask: Ask,
    /// What its refusal means.
    pub role: Role,
}

#[cfg(feature = "redis")]
impl Charge<'_> {
    /// The same as one part of a request: if another part refuses, it is refunded, however much was charged to its
    /// counter meanwhile.
    pub(crate) fn as_hold(&self) -> Self {
        Self { ask: self.ask.refundable_as_hold(), ..*self }
    }
}

/// Whether a decision charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Charge if everything fits.
    Charge,
    /// Charge nothing.
    Peek,
    /// Charge all, above the limit too: the cost was already spent, and is owed.
    Owe,
    /// One part of a request whose other parts are decided in other calls: as `Charge`, but a group
    /// that has no room here refuses nothing. The caller gives back what it does not need.
    Hold,
}

impl Mode {
    /// Whether charges that fit are made, once it is known whether the request passes.
    pub const fn charges(self, passes: bool) -> bool {
        match self {
            Self::Charge | Self::Hold => passes,
            Self::Peek => false,
            Self::Owe => true,
        }
    }

    /// Whether a charge of this role is made although it does not fit, once the request passes.
    pub(crate) fn owes(self, role: Role) -> bool {
        self == Self::Owe || role == Role::Alongside
    }
}

/// The charges of one request: all are made or none is.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// In any order. The same counter may appear more than once.
    pub charges: &'a [Charge<'a>],
    /// Whether to charge.
    pub mode: Mode,
}

/// One outcome per charge, in the order they were given.
pub type Outcomes = SmallVec<[Outcome; 8]>;

/// A charge to be undone.
#[derive(Debug, Clone, Copy)]
pub struct GiveBack<'a> {
    /// The counter that was charged.
    pub counter: Counter<'a>,
    /// The limit it was charged under.
    pub limit: &'a Limit,
    /// What the charge returned.
    pub receipt: Receipt,
}

/// True if these outcomes of one request's charges let it pass. Without one outcome for every charge it
/// does not.
pub fn passes(charges: &[Charge<'_>], outcomes: &[Outcome]) -> bool {
    passes_as(Mode::Charge, charges, outcomes)
}

/// [`passes`], or for [`Mode::Hold`] whether this part of a request lets it pass.
pub fn passes_as(mode: Mode, charges: &[Charge<'_>], outcomes: &[Outcome]) -> bool {
    if charges.len() != outcomes.len() {
        report_broken("a request has another number of outcomes than charges");
        return false;
    }
    let mut any_of = None;
    for (charge, outcome) in charges.iter().zip(outcomes) {
        let admits = outcome.examination.admits();
        match charge.role {
            Role::Must if !admits => return false,
            Role::AnyOf => any_of = Some(any_of.unwrap_or(false) || admits),
            Role::Must | Role::Watch | Role::Alongside => {}
        }
    }
    mode == Mode::Hold || any_of.unwrap_or(true)
}

/// The most slots of one counter that a store returns.
pub const MAX_REPORTED_SLOTS: usize = 1_000;

/// A place where counters live. Several requests at once are decided in order, each atomically.
pub trait Store: Send + Sync {
    /// Decides requests in order and appends one outcome per charge to `outcomes`. `now` is the
    /// caller's clock; a shared store goes by its own, and says by which instant. An answer with another
    /// number of outcomes breaks the contract ([`check_outcomes`]), and every request of the call is
    /// refused.
    fn decide(
        &self,
        requests: &[Request<'_>],
        now: Nanos,
        outcomes: &mut Outcomes,
    ) -> impl Future<Output = Result<Decided, StoreError>> + Send;

    /// Undoes charges, exactly when done at once, never minting quota later.
    fn give_back(
        &self,
        returns: &[GiveBack<'_>],
        now: Nanos,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Resets counters. Charges that were made before give back nothing afterwards.
    fn reset(
        &self,
        counters: &[Counter<'_>],
        now: Nanos,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Holds a slot of a concurrency counter for another lifetime. False if it is no longer held.
    fn renew(
        &self,
        counter: &Counter<'_>,
        limit: &Limit,
        slot: SlotId,
        now: Nanos,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Gives a slot back. False if it was no longer held, which is harmless.
    fn release(
        &self,
        counter: &Counter<'_>,
        slot: SlotId,
        now: Nanos,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The slots of a concurrency counter that are held, the one that expires first before the others,
    /// at most [`MAX_REPORTED_SLOTS`].
    fn slots(
        &self,
        counter: &Counter<'_>,
        now: Nanos,
    ) -> impl Future<Output = Result<Vec<Slot>, StoreError>> + Send;

    /// Makes the changes of a settlement, once under its id, and returns what was given back of each charge. What is given
    /// back is undone as by [`Store::give_back`].
    fn settle(
        &self,
        settlement: &Settlement<'_>,
        now: Nanos,
    ) -> impl Future<Output = Result<Adjusted, StoreError>> + Send;

    /// Keeps, ends or renews the record of a reservation.
    fn record(
        &self,
        id: u128,
        ask: &RecordAsk<'_>,
        now: Nanos,
    ) -> impl Future<Output = Result<RecordAnswer, StoreError>> + Send;

    /// How a secret part of a counter's key is written where others can read it. `None`: not at all; a
    /// store that is not in this process is then not given records of charges to such counters.
    fn conceal(&self, _home: &Home, _secret: &str) -> Option<String> {
        None
    }

    /// Whether all of it is kept in this process: then nothing of a key leaves it, and a counter's [`Home`]
    /// says nothing. Says nothing about names, nor whether calls are answered at once.
    fn is_in_process(&self) -> bool {
        false
    }

    /// The same store without futures, where it answers at once. Callers then use it instead of the
    /// methods that are awaited.
    fn as_sync(&self) -> Option<&dyn SyncStore> {
        None
    }

    /// The names of the stores that rules can choose from; none: there is only one, and it has no name.
    fn names(&self) -> &[String] {
        &[]
    }

    /// The answer that nodes share under a request's id, or the right to make it. A claim that is
    /// repeated is answered as before: so its fate is learned if an answer was lost.
    fn claim(
        &self,
        _claim: &RequestClaim,
    ) -> impl Future<Output = Result<Claim, StoreError>> + Send {
        std::future::ready(Ok(Claim::NotShared))
    }

    /// Shares the answer to a claimed id, unless there is one; `None` forgets the owner's claim.
    fn publish(
        &self,
        _claim: &RequestClaim,
        _answer: Option<&[u8]>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }
}
