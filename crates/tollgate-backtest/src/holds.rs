//! What recorded requests hold, until the recording says what became of it.

use futures_util::FutureExt as _;
use hashbrown::HashMap;
use tollgate_core::Nanos;
use tollgate_engine::{
    Actual, Decision, Engine, MAX_RESERVATION_TTL, Receipts, Refunds, Request, new_reservation_id,
};
use tollgate_recording::{Kind, Part};
use tollgate_store::MemoryStore;

use crate::record::Record;

/// The most requests that hold something at the same time. What becomes of others is not replayed, and is counted.
const MAX_OPEN: usize = 200_000;

/// What requests hold, by the link of the recording.
#[derive(Default)]
pub(crate) struct Holds {
    open: HashMap<u64, Open, foldhash::fast::RandomState>,
    /// Events about something that no replayed request holds.
    pub(crate) unlinked: u64,
}

struct Open {
    until: Nanos,
    held: Held,
}

enum Held {
    /// A record of the store, as callers of the service have it.
    Record(u128),
    /// Receipts, as the gateway keeps them.
    Receipts(Receipts, Refunds),
}

/// Whether the charges of a recorded request could be refunded.
pub(crate) const fn refunds(record: &Record) -> Refunds {
    match record.event.refunds {
        tollgate_recording::Refunds::Never => Refunds::Never,
        tollgate_recording::Refunds::WhileWaiting => Refunds::WhileWaiting,
        tollgate_recording::Refunds::Always => Refunds::Always,
    }
}

impl Holds {
    /// Keeps what a request holds, where the node's request held something.
    pub(crate) fn open(
        &mut self,
        engine: &Engine<MemoryStore>,
        record: &Record,
        request: &Request<'_>,
        decision: &Decision<'_>,
    ) {
        let link = record.event.hold;
        if link == 0 || !decision.is_allowed() {
            return;
        }
        let held = match request.refunds {
            Refunds::Never => decision.reservation_id().map(Held::Record),
            kept => {
                let receipts = engine.receipts(request, decision);
                (!receipts.is_empty()).then_some(Held::Receipts(receipts, kept))
            }
        };
        let Some(held) = held else { return };
        if self.open.len() >= MAX_OPEN {
            self.open.retain(|_, open| open.until > record.at);
        }
        if self.open.len() < MAX_OPEN {
            let ttl = record.event.ttl.unwrap_or(MAX_RESERVATION_TTL);
            let until = record.at.saturating_add(ttl);
            self.open.insert(link, Open { until, held });
        }
    }

    /// Settles, releases or renews what a request holds, as the node did.
    pub(crate) fn change(&mut self, engine: &Engine<MemoryStore>, record: &Record) {
        let event = &record.event;
        let Some(open) = self.open.remove(&event.hold) else {
            self.unlinked += 1;
            return;
        };
        // The memory store answers at once. What fails here failed on the node, too, or its rules are others.
        let (until, left) = match open.held {
            Held::Record(id) => match event.kind {
                Kind::Renewed => {
                    let renewed = engine.renew_reservation(id, event.ttl).now_or_never();
                    let until = renewed.and_then(Result::ok).map(|renewed| renewed.expires_at);
                    (until.unwrap_or(open.until), Some(Held::Record(id)))
                }
                Kind::Settled => {
                    let _ = engine.settle_reservation(id, actual(record)).now_or_never();
                    (0, None)
                }
                _ => {
                    let _ = engine.release_reservation(id).now_or_never();
                    (0, None)
                }
            },
            Held::Receipts(receipts, kept) => {
                let left = change_receipts(engine, record, receipts, kept);
                (open.until, left.map(|receipts| Held::Receipts(receipts, kept)))
            }
        };
        if let Some(held) = left {
            self.open.insert(event.hold, Open { until, held });
        }
    }
}

fn actual(record: &Record) -> Actual {
    Actual::from(record.amounts)
}

/// Changes receipts; returns those that are still open.
fn change_receipts(
    engine: &Engine<MemoryStore>,
    record: &Record,
    receipts: Receipts,
    kept: Refunds,
) -> Option<Receipts> {
    let event = &record.event;
    if event.kind == Kind::Renewed {
        let _ = engine.renew(&receipts).now_or_never();
        return Some(receipts);
    }
    let (changed, left) = match event.part {
        Part::All => (receipts, Receipts::default()),
        Part::Slots => (receipts.clone().slots(), receipts.without_slots()),
        Part::Charges => (receipts.clone().without_slots(), receipts.slots()),
    };
    let id = new_reservation_id();
    if event.kind == Kind::Settled {
        let _ = engine.settle_now(id, &changed, actual(record));
    } else if kept == Refunds::Always && event.part != Part::Slots {
        let _ = engine.release_now(id, &changed);
    } else {
        let _ = engine.give_back_now(&changed);
    }
    (!left.is_empty()).then_some(left)
}
