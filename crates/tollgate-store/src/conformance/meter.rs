//! A counter under test beside a model of it.
//!
//! Every decision that goes through [`decide`] is compared with what [`tollgate_core`] says about the
//! model at the instant the store decided at: examination and figures must be equal.

use tollgate_core::{
    Algorithm, Ask, Examination, Limit, LimitSpec, Nanos, Outcome, Receipt, Refundable, SECOND,
    SlotId, State, Status, Window,
};
use xxhash_rust::xxh3::xxh3_128;

use super::Harness;
use crate::{
    Adjusted, Adjustment, Change, Charge, Counter, Decided as Answer, GiveBack, Home, Mode,
    Outcomes, Request, Role, Settlement, Store,
};

/// Nothing expires within it while a case runs, and no token comes back.
pub(super) const LONG: Nanos = 30 * 24 * 3600 * SECOND;

/// Short enough to wait for.
pub(super) const SHORT: Nanos = 400_000_000;

/// A quota that [`LONG`] and [`SHORT`] divide into whole microseconds.
pub(super) const QUOTA: u64 = 5;

/// The redis grain.
pub(super) const MICRO: Nanos = 1_000;

pub(super) fn limit(algorithm: Algorithm, quota: u64, window: Nanos) -> Limit {
    let burst = (algorithm.is_bucket() && quota > 0).then_some(quota);
    let window_of = Window::Every(window);
    let spec = LimitSpec { algorithm, quota, window: window_of, burst, slot_ttl: window };
    Limit::new(spec).expect("the limits of the suite are sound")
}

pub(super) fn salt(rule_id: &str, tag: &str) -> u128 {
    let mut bytes = Vec::new();
    for part in [rule_id, tag] {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    xxh3_128(&bytes)
}

/// Spread by the first part of the key, so that on a cluster the counters of one request often live
/// on several nodes.
pub(super) fn home() -> Home {
    Home { partition: Some(0), ..Home::default() }
}

#[derive(Debug, Clone)]
pub(super) struct Meter {
    rule_id: String,
    key: Vec<String>,
    pub(super) limit: Limit,
    tag: String,
    salt: u128,
    /// What the counter should be; unknown once something happened at an instant of the store's
    /// own choice that it did not tell.
    model: Option<State>,
    slots: u128,
    /// Whether its charges can be refunded whenever that is.
    refundable: Refundable,
}

impl Meter {
    pub(super) fn new(rule_id: &str, key: &[&str], limit: Limit) -> Self {
        let tag = format!("{}+{}", limit.algorithm(), limit.window_nanos());
        Self::tagged(rule_id, &tag, key, limit)
    }

    pub(super) fn tagged(rule_id: &str, tag: &str, key: &[&str], limit: Limit) -> Self {
        Self {
            rule_id: rule_id.to_owned(),
            key: key.iter().map(|&part| part.to_owned()).collect(),
            model: Some(limit.fresh()),
            salt: salt(rule_id, tag),
            tag: tag.to_owned(),
            limit,
            slots: 0,
            refundable: Refundable::No,
        }
    }

    /// The same, with charges that are refunded later.
    pub(super) fn refundable(mut self) -> Self {
        self.refundable = Refundable::UntilClosed;
        self
    }

    /// A counter named after its case and algorithm.
    pub(super) fn of(case: &str, algorithm: Algorithm, quota: u64, window: Nanos) -> Self {
        Self::new(case, &[algorithm.name()], limit(algorithm, quota, window))
    }

    pub(super) fn is_slots(&self) -> bool {
        self.limit.algorithm() == Algorithm::Concurrency
    }

    pub(super) fn forget_model(&mut self) {
        self.model = None;
    }

    pub(super) fn change_limit(&mut self, limit: Limit) {
        if let Some(State::Small(small)) = &mut self.model {
            *small = limit.adopt(*small);
        }
        self.limit = limit;
    }

    fn key(&self) -> Vec<&str> {
        self.key.iter().map(String::as_str).collect()
    }

    fn counter<'a>(&'a self, key: &'a [&'a str]) -> Counter<'a> {
        Counter { rule_id: &self.rule_id, tag: &self.tag, salt: self.salt, key, home: home() }
    }

    /// A charge of this cost, of a slot never named before where slots are held.
    pub(super) fn ask(&mut self, cost: u64) -> Ask {
        self.slots += 1;
        let (slot, refundable) = (SlotId(self.slots << 64 | 7), self.refundable);
        Ask { slot, refundable, ..Ask::cost(cost) }
    }

    /// Charges one if it fits.
    pub(super) async fn charge(&mut self, harness: &impl Harness, cost: u64) -> Decided {
        let ask = self.ask(cost);
        decide(harness, Mode::Charge, &mut [(self, ask, Role::Must)]).await
    }

    /// Charges so much, one slot at a time where slots are held.
    pub(super) async fn fill(&mut self, harness: &impl Harness, cost: u64) -> Vec<Receipt> {
        let times = if self.is_slots() { cost } else { 1 };
        let mut receipts = Vec::new();
        for _ in 0..times {
            let decided = self.charge(harness, cost).await;
            assert!(decided.passes, "{self:?} has no room for {cost}");
            receipts.push(decided.outcomes[0].receipt);
        }
        receipts
    }

    pub(super) async fn peek(&mut self, harness: &impl Harness, cost: u64) -> Decided {
        let ask = self.ask(cost);
        decide(harness, Mode::Peek, &mut [(self, ask, Role::Must)]).await
    }

    pub(super) async fn status(&mut self, harness: &impl Harness) -> Status {
        self.peek(harness, 1).await.outcomes[0].status
    }

    pub(super) async fn used(&mut self, harness: &impl Harness) -> u64 {
        self.status(harness).await.used
    }

    /// Gives back to the store, but not to the model.
    pub(super) async fn give_back(&self, harness: &impl Harness, receipt: Receipt) {
        let key = self.key();
        let returned = GiveBack { counter: self.counter(&key), limit: &self.limit, receipt };
        let now = harness.now().await;
        harness.store().give_back(&[returned], now).await.expect("the store answers");
    }

    pub(super) async fn reset(&mut self, harness: &impl Harness) {
        let key = self.key();
        let now = harness.now().await;
        harness.store().reset(&[self.counter(&key)], now).await.expect("the store answers");
        self.model = Some(self.limit.fresh());
    }

    pub(super) async fn release(&mut self, harness: &impl Harness, slot: SlotId) -> bool {
        let now = harness.now().await;
        if let Some(State::Slots(slots)) = &mut self.model {
            slots.release(slot);
        }
        let key = self.key();
        let counter = self.counter(&key);
        harness.store().release(&counter, slot, now).await.expect("the store answers")
    }

    /// The names of the slots that are held.
    pub(super) async fn slots(&self, harness: &impl Harness) -> Vec<SlotId> {
        let now = harness.now().await;
        let key = self.key();
        let held = harness.store().slots(&self.counter(&key), now).await;
        held.expect("the store answers").iter().map(|slot| slot.id).collect()
    }

    pub(super) async fn renew(&mut self, harness: &impl Harness, slot: SlotId) -> bool {
        self.forget_model();
        let now = harness.now().await;
        let key = self.key();
        let counter = self.counter(&key);
        let renewed = harness.store().renew(&counter, &self.limit, slot, now).await;
        renewed.expect("the store answers")
    }
}

/// Settles charges under an id in the store, but not in the models.
pub(super) async fn settle(
    harness: &impl Harness,
    id: u128,
    changes: &[(&Meter, Change)],
) -> Adjusted {
    let keys: Vec<Vec<&str>> = changes.iter().map(|(meter, _)| meter.key()).collect();
    let adjustments: Vec<Adjustment<'_>> = (changes.iter().zip(&keys))
        .map(|((meter, change), key)| Adjustment {
            counter: meter.counter(key),
            limit: &meter.limit,
            change: *change,
            closes: Receipt::Nothing,
        })
        .collect();
    let remember = 60 * SECOND;
    let settlement = Settlement { id, remember, is_here: false, adjustments: &adjustments };
    let now = harness.now().await;
    harness.store().settle(&settlement, now).await.expect("the store answers")
}

/// A decision as the store answered it.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) at: Nanos,
    pub(super) passes: bool,
    pub(super) outcomes: Outcomes,
}

impl Decided {
    pub(super) fn retry_at(&self) -> Option<Nanos> {
        match self.outcomes[0].examination {
            Examination::Refuse { retry_at } => retry_at,
            Examination::Admit { .. } => panic!("it was admitted: {self:?}"),
        }
    }
}

/// The charges of one request: each a counter of its own, what is asked of it, and as what.
pub(super) type Charges<'a> = [(&'a mut Meter, Ask, Role)];

/// Decides one request and checks the answer against the models.
pub(super) async fn decide(harness: &impl Harness, mode: Mode, on: &mut Charges<'_>) -> Decided {
    let mut outcomes = Outcomes::new();
    let now = harness.now().await;
    let answer = {
        let keys: Vec<Vec<&str>> = on.iter().map(|(meter, ..)| meter.key()).collect();
        let charges: Vec<Charge<'_>> = (on.iter().zip(&keys))
            .map(|((meter, ask, role), key)| Charge {
                counter: meter.counter(key),
                limit: &meter.limit,
                ask: *ask,
                role: *role,
            })
            .collect();
        let requests = [Request { charges: &charges, mode }];
        harness.store().decide(&requests, now, &mut outcomes).await.expect("the store answers")
    };
    assert_eq!(outcomes.len(), on.len(), "one outcome per charge");
    let passes = verify(mode, on, &outcomes, &answer);
    Decided { at: answer.at, passes, outcomes }
}

/// Compares the outcomes of one request with the models, and charges those.
pub(super) fn verify(
    mode: Mode,
    on: &mut Charges<'_>,
    outcomes: &[Outcome],
    answer: &Answer,
) -> bool {
    let admits = |index: usize| outcomes[index].examination.admits();
    let any_of: Vec<usize> = (0..on.len()).filter(|i| on[*i].2 == Role::AnyOf).collect();
    let passes = (0..on.len()).all(|index| on[index].2 != Role::Must || admits(index))
        && (any_of.is_empty() || any_of.into_iter().any(admits));
    for (index, (meter, ask, role)) in on.iter_mut().enumerate() {
        let (outcome, at) = (&outcomes[index], answer.of(index));
        let charged = match mode {
            Mode::Charge | Mode::Hold => passes && (admits(index) || *role == Role::Alongside),
            Mode::Peek => false,
            Mode::Owe => true,
        };
        assert_eq!(
            outcome.receipt != Receipt::Nothing,
            charged,
            "a receipt iff charged: {mode:?} {role:?} {meter:?} {outcome:?}"
        );
        let Some(model) = &mut meter.model else { continue };
        let before = model.clone();
        let examination = meter.limit.examine(model, ask, at);
        if charged {
            meter.limit.charge(model, ask, at);
        }
        let status = meter.limit.status(model, at);
        assert_eq!(
            (outcome.examination, outcome.status),
            (examination, status),
            "{mode:?} of {ask:?} as {role:?} at {at}: {:?} was {before:?}",
            meter.limit
        );
    }
    passes
}
