//! A clock that steps back mints no quota: whatever a store admits, it would have admitted too if its clock had stopped
//! instead of stepping back. The clock steps in both directions between charges of every sort, refunds of all or a part of
//! them in any order, charges that become final, and charges that are undone at once.
//!
//! What is over at an instant that the store has seen may be forgotten, and does not count again when the clock steps back
//! behind that instant: a node's own clock never does, and Redis keeps counters for longer than they count.

use std::fmt::Write as _;

use tollgate_core::{Algorithm, Ask, Limit, Nanos, Receipt, Refundable, SECOND, SlotId};
use tollgate_store::{
    Adjustment, Change, Charge, GiveBack, Mode, Outcomes, Request, Role, Settlement, Store as _,
};
use xxhash_rust::xxh3::xxh3_128;

use crate::draw::Draw;
use crate::driver::{Ground, REMEMBERED, counter};
use crate::history::Meter;
use crate::maker::{cost, meter};
use crate::memory::{Memory, ready};
use crate::oracle::{Account, ChargeId, Wanted};
use crate::redis::{GRAIN, runtime};
use crate::redis_support::VirtualClock;
use crate::run::seeds;

const HISTORIES: u64 = 100_000;
const REDIS_HISTORIES: u64 = 300;
const OPERATIONS: u32 = 40;

/// One counter on a clock that steps.
struct Stepping<'a, G> {
    ground: &'a G,
    key: [&'a str; 2],
    draw: Draw,
    meter: Meter,
    limit: Limit,
    account: Account,
    now: Nanos,
    /// The latest instant at which something was charged.
    charged_at: Nanos,
    open: Vec<Open>,
    /// A charge that was made in the last step and can be undone only in its instant.
    last: Option<Open>,
    charges: u32,
    settlements: u32,
    log: String,
}

/// A charge, and what of it is neither refunded nor final.
#[derive(Clone, Copy)]
struct Open {
    id: ChargeId,
    left: u64,
    receipt: Receipt,
}

impl<G: Ground> Stepping<'_, G> {
    async fn step(&mut self, grain: Nanos) -> Result<(), String> {
        let window = self.meter.shape.window;
        match (self.draw.below(12), self.last.take()) {
            (0..=4, _) => return self.charge().await,
            (5, _) => return self.refund().await,
            (6, _) => return self.close().await,
            (7, Some(last)) => return self.give_back(last, last.left).await,
            (7..=9, _) => self.now += self.draw.below(window / 2).next_multiple_of(grain),
            (10, _) => self.now += self.draw.below(3 * window).next_multiple_of(grain),
            _ => {
                let back = self.draw.below(2 * window).next_multiple_of(grain);
                self.now -= back.min(self.now / 2);
            }
        }
        let _ = writeln!(self.log, "the clock shows {}", self.now);
        self.ground.set_now(self.now).await;
        Ok(())
    }

    async fn ask(&self, ask: Ask, mode: Mode) -> Result<tollgate_core::Outcome, String> {
        let (limit, role) = (&self.limit, Role::Must);
        let charges = [Charge { counter: counter(&self.key), limit, ask, role }];
        let (requests, mut outcomes) = ([Request { charges: &charges, mode }], Outcomes::new());
        let decided = self.ground.store().decide(&requests, self.now, &mut outcomes).await;
        decided.map_err(|error| error.to_string())?;
        outcomes.first().copied().ok_or_else(|| "no outcome".to_owned())
    }

    /// Charges, if there is room for it. Then there must also be room by a clock that stopped at the latest charge.
    async fn charge(&mut self) -> Result<(), String> {
        // What costs nothing may or may not change the window that a counter is in.
        let cost = cost(&mut self.draw, &self.meter).max(1);
        let (slot, terms) = (u128::from(self.charges) + 1, self.meter.terms[0]);
        let refundable = self.draw.pick(&[
            Refundable::No,
            Refundable::No,
            Refundable::Briefly,
            Refundable::UntilClosed,
            Refundable::UntilClosed,
            Refundable::OnLease,
        ]);
        let ask = Ask { slot: SlotId(slot), refundable, ..Ask::cost(cost) };
        let outcome = self.ask(ask, Mode::Charge).await?;
        let is_admitted = outcome.examination.admits();
        let _ = writeln!(self.log, "{cost} at {} ({refundable:?}): {is_admitted}", self.now);
        if !is_admitted {
            return Ok(());
        }
        let wanted = Wanted { cost, max_delay: None, slot };
        let stopped = self.now.max(self.charged_at);
        let fits = self.account.ever_admits(terms, wanted)
            && self.account.admits(terms, wanted, stopped).is_some();
        if !fits {
            return Err(format!("{cost} at {} is admitted, and not at {stopped}", self.now));
        }
        // The window in force is the latest one; other charges count from the instant that the clock shows.
        let at = match self.meter.shape.algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingWindowCounter => stopped,
            _ => self.now,
        };
        let id = (self.charges, 0);
        self.account.charge(id, terms, wanted, self.meter.shape.window, at);
        self.charged_at = stopped;
        self.charges += 1;
        let open = Open { id, left: cost, receipt: outcome.receipt };
        if refundable == Refundable::No {
            self.last = Some(open);
        } else {
            self.open.push(open);
        }
        Ok(())
    }

    /// Takes all or a part of an open charge out of the list: its receipt, and how much of it that is.
    fn draw_part(&mut self) -> Option<(Open, u64)> {
        if self.open.is_empty() {
            return None;
        }
        let place = self.draw.below(self.open.len() as u64) as usize;
        let open = self.open[place];
        let is_slot = self.meter.shape.algorithm == Algorithm::Concurrency;
        let all = is_slot || self.draw.one_in(2);
        let part = if all { open.left } else { 1 + self.draw.below(open.left) };
        if part == open.left {
            self.open.remove(place);
        } else {
            self.open[place].left -= part;
        }
        Some((open, part))
    }

    async fn refund(&mut self) -> Result<(), String> {
        let Some((open, part)) = self.draw_part() else { return Ok(()) };
        self.give_back(open, part).await
    }

    async fn give_back(&mut self, open: Open, part: u64) -> Result<(), String> {
        let Open { id, receipt, .. } = open;
        let _ = writeln!(self.log, "{part} of #{} is refunded at {}", id.0, self.now);
        let (counter, receipt) = (counter(&self.key), receipt.part(part));
        let returns = [GiveBack { counter, limit: &self.limit, receipt }];
        let returned = self.ground.store().give_back(&returns, self.now).await;
        returned.map_err(|error| error.to_string())?;
        if self.meter.shape.algorithm == Algorithm::Concurrency {
            self.account.release(u128::from(id.0) + 1, self.now);
        } else {
            self.account.refund(id, part, self.now);
        }
        Ok(())
    }

    /// Makes a charge final, or a part of it: nothing changes but that it cannot be refunded.
    async fn close(&mut self) -> Result<(), String> {
        if self.meter.shape.algorithm == Algorithm::Concurrency {
            return Ok(());
        }
        let Some((open, part)) = self.draw_part() else { return Ok(()) };
        let _ = writeln!(self.log, "{part} of #{} becomes final at {}", open.id.0, self.now);
        self.settlements += 1;
        let id = xxh3_128(format!("{} {}", self.key[1], self.settlements).as_bytes());
        let (counter, closes) = (counter(&self.key), open.receipt.part(part));
        let (limit, change) = (&self.limit, Change::Keep);
        let adjustments = [Adjustment { counter, limit, change, closes }];
        let (remember, is_here) = (REMEMBERED, false);
        let settlement = Settlement { id, remember, is_here, adjustments: &adjustments };
        let settled = self.ground.store().settle(&settlement, self.now).await;
        settled.map(|_| ()).map_err(|error| error.to_string())
    }

    /// No more is left than by a clock that stopped.
    async fn look(&mut self) -> Result<(), String> {
        let status = self.ask(Ask::cost(1), Mode::Peek).await?.status;
        let stopped = self.now.max(self.charged_at);
        let expected = self.account.status(self.meter.terms[0], stopped);
        let (left, most) = (status.remaining, expected.remaining);
        if left > most {
            return Err(format!("{left} are left at {}, and {most} at {stopped}", self.now));
        }
        self.account.forget(self.now);
        if expected.used == 0 {
            // A counter that equals a fresh one may be dropped: it knows of no earlier instant, and of no earlier charge.
            self.account.reset();
            self.open.clear();
            self.last = None;
            self.charged_at = 0;
        }
        Ok(())
    }
}

async fn play<G: Ground>(ground: &G, seed: u64, grain: Nanos) -> Result<(), String> {
    let mut draw = Draw::new(seed);
    let mut meter = meter(&mut draw);
    meter.terms.truncate(1);
    let now = (1_789_000_000 * SECOND + draw.below(86_400 * SECOND)).next_multiple_of(grain);
    let name = format!("steps-{seed}");
    let mut stepping = Stepping {
        ground,
        key: ["p0", &name],
        draw,
        limit: meter.limit(meter.terms[0]),
        account: Account::new(meter.shape),
        log: format!("seed {seed}: {meter}\n"),
        meter,
        now,
        charged_at: 0,
        open: Vec::new(),
        last: None,
        charges: 0,
        settlements: 0,
    };
    ground.set_now(now).await;
    for _ in 0..OPERATIONS {
        let stepped = match stepping.step(grain).await {
            Ok(()) => stepping.look().await,
            wrong => wrong,
        };
        stepped.map_err(|what| format!("{}{what}", stepping.log))?;
    }
    Ok(())
}

#[test]
fn a_memory_store_on_a_clock_that_steps_mints_no_quota() {
    for seed in seeds(HISTORIES) {
        ready(play(&Memory::new(), seed, 1)).unwrap_or_else(|what| panic!("{what}"));
    }
}

#[test]
fn redis_on_a_clock_that_steps_mints_no_quota() {
    let (runtime, ground) = (runtime(), VirtualClock::new());
    for seed in seeds(REDIS_HISTORIES) {
        runtime.block_on(play(&ground, seed, GRAIN)).unwrap_or_else(|what| panic!("{what}"));
    }
}
