//! Slots of a concurrency limit.

use std::sync::Arc;

use tollgate_core::{Algorithm, Ask, Examination, SECOND, SlotId};

use super::Harness;
use super::meter::{LONG, Meter, SHORT, decide, home, limit, salt};
use crate::{Charge, Counter, Mode, Outcomes, Request, Role, Store};

async fn hold(harness: &impl Harness, meter: &mut Meter, slot: u128) -> bool {
    let ask = Ask::slot(SlotId(slot));
    decide(harness, Mode::Charge, &mut [(meter, ask, Role::Must)]).await.passes
}

/// A released slot can be held by another; releasing twice, or what was never held, is harmless.
pub async fn slots_are_held_and_released<H: Harness>(harness: &Arc<H>) {
    let harness = &**harness;
    let mut meter = Meter::of("held", Algorithm::Concurrency, 2, LONG);
    assert!(!meter.release(harness, SlotId(1)).await, "nothing is held yet");
    assert!(hold(harness, &mut meter, 1).await);
    assert!(hold(harness, &mut meter, u128::MAX).await);
    assert!(!hold(harness, &mut meter, 3).await);
    assert!(!meter.release(harness, SlotId(3)).await, "a refused one holds nothing");
    assert!(meter.release(harness, SlotId(1)).await);
    assert!(!meter.release(harness, SlotId(1)).await, "releasing twice");
    assert_eq!(meter.used(harness).await, 1);
    assert!(hold(harness, &mut meter, 3).await);
    assert!(!hold(harness, &mut meter, 4).await);
    assert!(meter.release(harness, SlotId(u128::MAX)).await);
    assert!(meter.release(harness, SlotId(3)).await);
    assert_eq!(meter.used(harness).await, 0);
}

/// A slot comes back by itself after its lifetime, which a renewal starts anew.
pub async fn slots_expire_unless_renewed<H: Harness>(harness: &Arc<H>) {
    let harness = &**harness;
    let mut meter = Meter::of("expire", Algorithm::Concurrency, 1, SHORT);
    assert!(hold(harness, &mut meter, 1).await);
    harness.advance(SHORT / 2).await;
    let before = harness.now().await;
    let renewed = meter.renew(harness, SlotId(1)).await;
    let after = harness.now().await;
    if renewed {
        harness.advance(SHORT * 3 / 4).await;
        let peeked = meter.peek(harness, 1).await;
        if peeked.at < before + SHORT {
            assert!(!peeked.passes, "renewed at {before}, still held at {}", peeked.at);
        }
        harness.advance((after + SHORT).saturating_sub(peeked.at)).await;
    } else {
        harness.advance(SHORT).await;
    }
    let peeked = meter.peek(harness, 1).await;
    assert!(peeked.passes, "renewed by {after}, expired at {}", peeked.at);
    assert!(!meter.renew(harness, SlotId(1)).await, "an expired slot cannot be renewed");
    assert!(!meter.release(harness, SlotId(1)).await, "nor released");
    assert!(hold(harness, &mut meter, 2).await);
    assert!(!meter.renew(harness, SlotId(1)).await, "it is another's now");
}

/// The same name holds one slot, however often it asks.
pub async fn a_slot_held_twice_is_one<H: Harness>(harness: &Arc<H>) {
    let harness = &**harness;
    let mut meter = Meter::of("again", Algorithm::Concurrency, 2, LONG);
    for _ in 0..5 {
        assert!(hold(harness, &mut meter, 9).await);
    }
    assert_eq!(meter.used(harness).await, 1);
    assert!(hold(harness, &mut meter, 8).await);
    assert!(hold(harness, &mut meter, 9).await, "its own slot, though all are held");
    let mut held = meter.slots(harness).await;
    held.sort_unstable();
    assert_eq!(held, [SlotId(8), SlotId(9)]);
    assert!(meter.release(harness, SlotId(9)).await);
    assert_eq!(meter.used(harness).await, 1);
    assert_eq!(meter.slots(harness).await, [SlotId(8)]);
}

/// A request that is refused because of slots that others of the same call have just taken says when the first of
/// those is free again.
pub async fn slots_of_one_call_say_when_to_retry<H: Harness>(harness: &Arc<H>) {
    let limit = limit(Algorithm::Concurrency, 2, LONG);
    let (salt, home) = (salt("slots of one call", "t"), home());
    let counter = Counter { rule_id: "slots of one call", tag: "t", salt, key: &["k"], home };
    let charge = |(slot, seconds)| {
        let ask = Ask { max_slot_ttl: seconds * SECOND, ..Ask::slot(SlotId(slot)) };
        [Charge { counter, limit: &limit, ask, role: Role::Must }]
    };
    let all = [(1, 9_000), (2, 7_000), (3, 100)].map(charge);
    let requests: Vec<Request<'_>> =
        all.iter().map(|charges| Request { charges, mode: Mode::Charge }).collect();
    let (mut outcomes, now) = (Outcomes::new(), harness.now().await);
    let decided = harness.store().decide(&requests, now, &mut outcomes).await.expect("answers");
    let admitted: Vec<bool> = outcomes.iter().map(|one| one.examination.admits()).collect();
    assert_eq!(admitted, [true, true, false]);
    let retry_at = Some(decided.of(1) + 7_000 * SECOND);
    let last = outcomes.last().map(|outcome| outcome.examination);
    assert_eq!(last, Some(Examination::Refuse { retry_at }));
}
