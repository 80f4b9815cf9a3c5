//! From a request's attributes to a decision.
//!
//! The road is short: lists, then rules ([`tollgate_policy`]), then one atomic check of all their
//! limits ([`tollgate_store`]), then a [`Decision`] that explains itself. The rule set can be
//! swapped at any time; a decision sees one set from beginning to end.

mod amounts;
mod answer;
mod batch;
mod budgets;
mod claims;
mod clock;
mod debt;
mod decide;
mod decide_now;
mod decision;
mod encode;
mod ending;
#[cfg(fuzzing)]
pub mod fuzzed;
mod give_back;
mod holding;
mod idempotency;
mod ledger;
mod limit_checks;
mod limit_override;
mod missing;
mod observer;
mod pricing;
mod receipts;
mod remembered_answers;
mod request;
mod reservations;
mod reset;
mod slots;
mod together;
mod used;
mod verdict;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use arc_swap::ArcSwap;
use tollgate_policy::prices::{Currency, PriceTable};
use tollgate_policy::{RuleSet, VirtualKeys};
use tollgate_store::{Store, StoreError};

pub use amounts::{Actual, Amounts};
pub use budgets::BudgetDebts;
pub use clock::{Clock, ManualClock, SharedClock, SystemClock};
pub use decision::{Decision, Scope, Warning};
pub use ending::Ending;
pub use holding::SlotShares;
pub use idempotency::REMEMBERED_FOR;
pub use ledger::{Appending, SettledUsage, Spender, UsageLedger};
pub use limit_override::{LimitOverride, OVERRIDE_WINDOWS};
pub use missing::MissingKey;
pub use observer::{HoldChange, HoldChanged, Observer, TRACE_TARGET};
pub use receipts::{Receipts, Settled};
pub use request::{MAX_ATTRIBUTES, MAX_COST, MAX_VALUE_BYTES, Refunds, Request};
pub use reservations::{
    DEFAULT_RESERVATION_TTL, ENDED_RETENTION, MAX_RESERVATION_TTL, Renewed, Reservation,
    ReservationCounts, ReservationFigures, new_reservation_id,
};
pub use slots::{HeldSlots, SlotsPage};
pub use together::{Hits, Part, Together};
pub use verdict::{Reason, Verdict};

/// Whether refusals are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enforcement {
    /// They are.
    #[default]
    On,
    /// Everything is decided and counted, nothing is refused.
    Shadow,
    /// Nothing is decided or counted.
    Off,
}

impl Enforcement {
    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Shadow => "shadow",
            Self::Off => "off",
        }
    }

    /// The mode of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::On, Self::Shadow, Self::Off].into_iter().find(|mode| mode.name() == name)
    }

    const fn from_index(index: u8) -> Self {
        match index {
            0 => Self::On,
            1 => Self::Shadow,
            _ => Self::Off,
        }
    }
}

/// Why no decision was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The request id was used within the last minute for another request.
    #[error("this requestId was used for a different request less than 60 s ago")]
    RequestIdReused,
    /// Another node is answering this request id, and takes its time.
    #[error("a call with this requestId is being answered by another node")]
    RequestIdInUse,
    /// Another node answered this request id in a way that this one does not know.
    #[error("this requestId was answered by a node of another version")]
    RequestIdUnreadable,
    /// There is no such reservation, or none any more.
    #[error(
        "there is no such reservation: it has expired and stays as estimated, or never was; settle \
         or renew before expiresAt"
    )]
    ReservationUnknown,
    /// It ended in another way before.
    #[error("this reservation was {} before", .0.name())]
    ReservationEnded(Ending),
    /// Tokens or cost were settled of something that holds none.
    #[error(
        "only slots are held under this id, which an allowed request has: nothing was changed; release \
         it, or reserve what is to be settled"
    )]
    OnlySlots,
    /// There is no room for another.
    #[error(
        "too many reservations are open, and nothing was charged; settle or release those that are \
         done, or raise max_reservations"
    )]
    ReservationsFull,
    /// A node of another version made it.
    #[error("this reservation was made by a node of another version")]
    ReservationUnreadable,
    /// A reservation was asked for in a mode that makes none.
    #[error("only Mode::Charge makes a reservation")]
    NotReservable,
    /// The request would take a slot, and its caller would not release it ([`Request::refuses_slots`]).
    #[error(
        "rule {rule_id:?} limits what runs at the same time: reserve the request, and end the hold when it is \
         done"
    )]
    SlotNotHeld {
        /// The rule.
        rule_id: String,
    },
    /// A rule counts money, and the model has no price.
    #[error(
        "rule {rule_id:?} counts money, and model {model:?} has no price: add it to the price table, state money, or \
         set unpriced: default_price"
    )]
    Unpriced {
        /// The rule.
        rule_id: String,
        /// The model.
        model: String,
    },
    /// A rule counts money, and the tokens are of no model.
    #[error(
        "rule {rule_id:?} counts money, and the tokens are of no model: state modelId, or money"
    )]
    UsageWithoutModel {
        /// The rule.
        rule_id: String,
    },
    /// A rule counts money of one currency, and the request's is of another.
    #[error("rule {rule_id:?} counts {expected}, and the money of this request is in {given}")]
    OtherCurrency {
        /// The rule.
        rule_id: String,
        /// What it counts.
        expected: Currency,
        /// What was stated, or what the price is in.
        given: Currency,
    },
    /// A usage was settled of a reservation that was made with money and has no price.
    #[error("this reservation has no price, because it was made with money: settle it with money")]
    ReservationUnpriced,
    /// The request lacks the key of a rule that it should meet ([`MissingKey`]).
    #[error(
        "rule {rule_id:?} applies to this request, which has no {attribute}: it would not be limited by it. \
         Set the attribute, give the rules that are alternatives one scope, or choose another \
         MissingKey policy"
    )]
    MissingKey {
        /// The rule.
        rule_id: String,
        /// The attribute of its key that is missing.
        attribute: String,
    },
}

/// The rule set in force.
pub struct ActiveRules {
    /// The rules.
    pub set: Arc<RuleSet>,
    /// What models cost.
    pub prices: Arc<PriceTable>,
    /// Counts up with every swap, or is what the swap said.
    pub version: u64,
}

/// Decides requests by the rules in force, on one store.
pub struct Engine<S> {
    store: S,
    clock: Arc<dyn Clock>,
    rules: ArcSwap<ActiveRules>,
    enforcement: AtomicU8,
    remembered: idempotency::Memory,
    observer: Option<Arc<dyn Observer>>,
    reserved: ReservationFigures,
    debts: budgets::DebtBook,
    slot_book: slots::SlotBook,
    slot_shares: Option<Arc<dyn SlotShares>>,
    ledger: Option<Arc<dyn UsageLedger>>,
    missing_key: MissingKey,
    /// Names this process: what it counts alone no other can give back.
    instance: u64,
}

impl<S: Store> Engine<S> {
    /// An engine on this store, with this clock and these rules. A request that lacks the key of a rule
    /// that it should meet is an error, unless [`Engine::with_missing_key`] says otherwise.
    pub fn new(store: S, clock: Arc<dyn Clock>, rules: RuleSet) -> Self {
        missing::log_misspelt(&rules);
        Self {
            store,
            clock,
            rules: ArcSwap::from_pointee(ActiveRules {
                set: Arc::new(rules),
                prices: Arc::default(),
                version: 1,
            }),
            enforcement: AtomicU8::new(Enforcement::On as u8),
            remembered: idempotency::Memory::new(idempotency::MAX_REMEMBERED_BYTES),
            observer: None,
            reserved: ReservationFigures::default(),
            debts: budgets::DebtBook::default(),
            slot_book: slots::SlotBook::default(),
            slot_shares: None,
            ledger: None,
            missing_key: MissingKey::default(),
            instance: new_reservation_id() as u64,
        }
    }

    /// The store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The clock.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// The rules in force now. A decision borrows from them, so they are taken once per request.
    pub fn rules(&self) -> arc_swap::Guard<Arc<ActiveRules>> {
        self.rules.load()
    }

    /// Puts other rules in force, at once and without waiting for decisions under way. Virtual keys stay.
    pub fn swap_rules(&self, mut set: RuleSet) -> u64 {
        missing::log_misspelt(&set);
        set.continue_agreements(&self.rules.load().set);
        let set = Arc::new(set);
        let before = self.rules.rcu(|now| {
            let (mut set, prices) = (Arc::clone(&set), Arc::clone(&now.prices));
            if !now.set.virtual_keys().is_empty() {
                Arc::make_mut(&mut set).set_virtual_keys(Arc::clone(now.set.virtual_keys()));
            }
            ActiveRules { set, prices, version: now.version + 1 }
        });
        before.version + 1
    }

    /// Puts other rules in force under a version that the caller gives, such as the revision of the
    /// database they come from.
    pub fn swap_rules_as(&self, mut set: RuleSet, version: u64) {
        missing::log_misspelt(&set);
        set.continue_agreements(&self.rules.load().set);
        let set = Arc::new(set);
        self.rules.rcu(|now| {
            let (set, prices) = (Arc::clone(&set), Arc::clone(&now.prices));
            ActiveRules { set, prices, version }
        });
    }

    /// Puts other virtual keys in force. The rules stay.
    pub fn swap_virtual_keys(&self, keys: &Arc<VirtualKeys>) {
        self.rules.rcu(|now| {
            let mut set = RuleSet::clone(&now.set);
            set.set_virtual_keys(Arc::clone(keys));
            let prices = Arc::clone(&now.prices);
            ActiveRules { set: Arc::new(set), prices, version: now.version }
        });
    }

    /// Puts other prices in force. What was reserved before is settled at the price of its admission.
    pub fn swap_prices(&self, prices: PriceTable) {
        let prices = Arc::new(prices);
        self.rules.rcu(|now| {
            let (set, prices) = (Arc::clone(&now.set), Arc::clone(&prices));
            ActiveRules { set, prices, version: now.version }
        });
    }

    /// Whether refusals are enforced.
    pub fn enforcement(&self) -> Enforcement {
        Enforcement::from_index(self.enforcement.load(Ordering::Relaxed))
    }

    /// Changes whether refusals are enforced.
    pub fn set_enforcement(&self, mode: Enforcement) {
        self.enforcement.store(mode as u8, Ordering::Relaxed);
    }
}
