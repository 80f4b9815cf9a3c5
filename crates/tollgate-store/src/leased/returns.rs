//! Quota on its way back to the shared counters.
//!
//! A return that was not answered may have been made. It is sent again under its id, which the store
//! remembers together with the change: it is made once, however often it is sent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tollgate_core::{Algorithm, Nanos, Receipt, SECOND};

use super::Shared;
use super::figures::LeaseFigures;
use super::key::Owned;
use crate::{Adjustment, Change, Failure, Settlement, SharedStore, StoreError};

/// The most returns that wait; what is beyond them is lost until its window has passed.
const MAX_RETURNS: usize = 65_536;

/// For how long the store remembers a return.
pub(super) const RETENTION: Nanos = 180 * SECOND;

/// The store may have made it when it was first sent, and may forget that so long before we think: the two
/// have different clocks.
const MARGIN: Nanos = 10 * SECOND;

/// So many are sent at the same time.
const AT_ONCE: usize = 64;

/// Quota that is to be given back on its shared counter.
pub(super) struct Return {
    id: u128,
    owned: Arc<Owned>,
    receipt: Receipt,
    /// When it was first sent, if the store may have made it.
    sent_at: Option<Nanos>,
}

impl Return {
    /// From then on it is not sent any more: there is nothing left to give back, or the store may have
    /// forgotten that it was made.
    fn ends_at(&self) -> Nanos {
        let limit = &self.owned.limit;
        let counts_until = match self.receipt {
            Receipt::Window { end, .. } if limit.algorithm() == Algorithm::FixedWindow => end,
            Receipt::Window { end, .. } => end.saturating_add(limit.window_nanos()),
            Receipt::Log { at, .. } | Receipt::Open { at, .. } => at
                .saturating_add(limit.window_nanos())
                .max(at.saturating_add(limit.time_of(limit.capacity()))),
            _ => Nanos::MAX,
        };
        let known_until = self.sent_at.map(|at| at.saturating_add(RETENTION - MARGIN));
        counts_until.min(known_until.unwrap_or(Nanos::MAX))
    }

    async fn send(&self, store: &impl SharedStore, now: Nanos) -> Result<(), StoreError> {
        let parts = self.owned.parts();
        let adjustments = [Adjustment {
            counter: self.owned.counter(&parts),
            limit: &self.owned.limit,
            change: Change::GiveBack(self.receipt),
            closes: Receipt::Nothing,
        }];
        let (id, remember, is_here) = (self.id, RETENTION, false);
        let settlement = Settlement { id, remember, is_here, adjustments: &adjustments };
        store.settle(&settlement, now).await.map(|_| ())
    }

    /// Notes that it was not answered.
    fn failed(&mut self, failure: Failure, at: Nanos) {
        // Behind an open circuit nothing is sent.
        if failure != Failure::CircuitOpen {
            self.sent_at.get_or_insert(at);
        }
    }
}

/// What is to be returned.
pub(super) struct Returns {
    /// Ids are this plus a number; no two nodes have the same.
    base: u128,
    drawn: AtomicU64,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    /// Was not sent yet.
    fresh: Vec<Return>,
    /// Was not answered.
    unanswered: VecDeque<Return>,
}

impl Returns {
    pub(super) fn new(base: u128) -> Self {
        Self { base, drawn: AtomicU64::new(0), queues: Mutex::default() }
    }

    /// The id of a return, which does not come again.
    pub(super) fn draw_id(&self) -> u128 {
        self.base.wrapping_add(u128::from(self.drawn.fetch_add(1, Relaxed)))
    }

    fn take_fresh(&self) -> Vec<Return> {
        std::mem::take(&mut self.queues.lock().fresh)
    }

    /// Some that were not answered.
    fn take_unanswered(&self) -> Vec<Return> {
        let mut queues = self.queues.lock();
        let count = queues.unanswered.len().min(AT_ONCE);
        queues.unanswered.drain(..count).collect()
    }

    fn has_room(queues: &Queues) -> bool {
        queues.fresh.len() + queues.unanswered.len() < MAX_RETURNS
    }
}

/// A return that is being sent. Dropped without an answer, it is kept.
struct Sending<'a, S: SharedStore + 'static> {
    shared: &'a Shared<S>,
    content: Option<Return>,
    at: Nanos,
}

impl<S: SharedStore + 'static> Drop for Sending<'_, S> {
    fn drop(&mut self) {
        if let Some(content) = self.content.take() {
            self.shared.keep_return(content, Failure::Timeout, self.at);
        }
    }
}

impl<S: SharedStore + 'static> Shared<S> {
    /// Quota that could not be put back where it was taken is to go back to the store.
    pub(super) fn return_later(&self, owned: Arc<Owned>, receipt: Receipt) {
        let content = Return { id: self.returns.draw_id(), owned, receipt, sent_at: None };
        let mut queues = self.returns.queues.lock();
        if Returns::has_room(&queues) {
            queues.fresh.push(content);
        } else {
            LeaseFigures::add(&self.figures.lost, content.receipt.cost());
        }
    }

    /// A fetch under this id that was to return quota has failed.
    pub(super) fn return_again(
        &self,
        id: u128,
        owned: Arc<Owned>,
        receipt: Receipt,
        failure: Failure,
    ) {
        let content = Return { id, owned, receipt, sent_at: None };
        self.keep_return(content, failure, self.inner.clock(0));
    }

    fn keep_return(&self, mut content: Return, failure: Failure, at: Nanos) {
        content.failed(failure, at);
        let mut queues = self.returns.queues.lock();
        if failure != Failure::ForeignKey && Returns::has_room(&queues) {
            queues.unanswered.push_back(content);
        } else {
            LeaseFigures::add(&self.figures.lost, content.receipt.cost());
        }
    }

    /// Sends what was not sent yet.
    pub(super) async fn send_returns(&self, now: Nanos) {
        let fresh = self.returns.take_fresh();
        if !fresh.is_empty() {
            self.send_all(fresh, now).await;
        }
    }

    /// Sends what was not answered, while the store answers.
    pub(super) async fn resend_returns(&self, now: Nanos) {
        loop {
            let mut waiting = self.returns.take_unanswered().into_iter();
            let mut is_answered = false;
            // Where the store does not answer, one is enough to find out: the others stay unsent.
            for content in waiting.by_ref() {
                match self.send_return(self.sending(content, now), now).await {
                    Ok(()) => is_answered = true,
                    Err(Failure::CircuitOpen) => continue,
                    Err(_) => {}
                }
                break;
            }
            if !is_answered {
                let mut queues = self.returns.queues.lock();
                for content in waiting.rev() {
                    queues.unanswered.push_front(content);
                }
                return;
            }
            self.send_all(waiting.collect(), now).await;
        }
    }

    fn sending(&self, content: Return, now: Nanos) -> Sending<'_, S> {
        Sending { shared: self, content: Some(content), at: self.inner.clock(now) }
    }

    async fn send_all(&self, returns: Vec<Return>, now: Nanos) {
        let mut rest: Vec<_> = returns.into_iter().map(|it| self.sending(it, now)).collect();
        while !rest.is_empty() {
            let these = rest.drain(..rest.len().min(AT_ONCE));
            join_all(these.map(|it| self.send_return(it, now))).await;
        }
    }

    async fn send_return(&self, mut sending: Sending<'_, S>, now: Nanos) -> Result<(), Failure> {
        let Some(content) = &sending.content else { return Ok(()) };
        let cost = content.receipt.cost();
        if sending.at >= content.ends_at() {
            sending.content = None;
            LeaseFigures::add(&self.figures.lost, cost);
            return Ok(());
        }
        let settled = content.send(&self.inner, now).await;
        let Some(content) = sending.content.take() else { return Ok(()) };
        match settled {
            Ok(()) => {
                LeaseFigures::add(&self.figures.returned, cost);
                Ok(())
            }
            Err(error) => {
                self.keep_return(content, error.failure, sending.at);
                Err(error.failure)
            }
        }
    }
}
