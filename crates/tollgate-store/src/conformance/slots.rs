//! Slots of a concurrency limit.

use std::sync::Arc;

use tollgate_core::{Algorithm, Ask, SlotId};

use super::Harness;
use super::meter::{LONG, Meter, SHORT, decide};
use crate::{Mode, Role};

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
