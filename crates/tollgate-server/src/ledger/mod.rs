//! The ledger of usage, on the side of requests: what settled requests used waits here until it is stored.
//!
//! With a Redis that nodes share, an event is stored there before its request is settled, and a node with a database
//! moves it into the ledger. Without one, events go to the database directly, off the request path.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tollgate_control::{UsageAmounts, UsageEvent};
use tollgate_core::Nanos;
use tollgate_engine::{Appending, SettledUsage, Spender, UsageLedger, new_reservation_id};
use tollgate_policy::prices::TokenKind;
use tollgate_store::api_key_id;

use crate::control::ControlFigures;

/// Events that wait in this process at most. Further ones are lost, and counted.
const MAX_WAITING: usize = 65_536;

/// Clients whose refusals are counted apart within a second; those of others are counted together.
const MAX_REFUSED: usize = 4_096;

/// A settlement waits for its event to be stored for so long at most.
const STORED_WITHIN: Duration = Duration::from_secs(1);

/// What stands for several clients.
const SEVERAL: &str = "(several)";

/// Nanoseconds of a millisecond.
const MILLI: u64 = 1_000_000;

/// An event on its way.
pub(crate) struct Waiting {
    pub(crate) event: UsageEvent,
    /// Notified when the event is stored.
    stored: Option<oneshot::Sender<()>>,
}

impl Waiting {
    /// The event is stored.
    pub(crate) fn done(self) {
        if let Some(stored) = self.stored {
            // Nobody may wait for it any more.
            let _ = stored.send(());
        }
    }
}

/// Takes what settled requests used.
pub(crate) struct Ledger {
    /// What API keys are hashed with.
    secret: Arc<[u8]>,
    /// Whether events are stored where other nodes settle, too.
    is_shared: bool,
    queue: Mutex<VecDeque<Waiting>>,
    refused: Mutex<HashMap<Spender, (u64, Nanos)>>,
    arrived: Notify,
    /// Whether events could not be stored lately: nobody waits for it then.
    is_failing: AtomicBool,
    figures: Arc<ControlFigures>,
}

impl Ledger {
    pub(crate) fn new(secret: Arc<[u8]>, is_shared: bool, figures: Arc<ControlFigures>) -> Self {
        Self {
            secret,
            is_shared,
            queue: Mutex::default(),
            refused: Mutex::default(),
            arrived: Notify::new(),
            is_failing: AtomicBool::new(false),
            figures,
        }
    }

    /// Waits until there is something to store, or for so long.
    pub(crate) async fn arrived(&self, most: Duration) {
        // In either case the queue is looked at.
        let _ = tokio::time::timeout(most, self.arrived.notified()).await;
    }

    /// Takes up to so many events off the queue.
    pub(crate) fn take(&self, most: usize) -> Vec<Waiting> {
        let mut queue = self.queue.lock();
        let count = most.min(queue.len());
        queue.drain(..count).collect()
    }

    /// Puts events back that could not be stored, in front of all others.
    pub(crate) fn put_back(&self, events: Vec<Waiting>) {
        self.is_failing.store(true, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        for waiting in events.into_iter().rev() {
            queue.push_front(waiting);
        }
    }

    /// Events are stored again.
    pub(crate) fn works(&self) {
        self.is_failing.store(false, Ordering::Relaxed);
    }

    /// How many events wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().len()
    }

    /// Makes events of the refusals that were counted.
    pub(crate) fn flush_refused(&self) {
        let refused = std::mem::take(&mut *self.refused.lock());
        for (spender, (refusals, at)) in refused {
            let amounts = UsageAmounts { refusals, ..UsageAmounts::default() };
            self.push(event(new_reservation_id(), at, spender, amounts, ""), None);
        }
    }

    fn push(&self, event: UsageEvent, stored: Option<oneshot::Sender<()>>) {
        let mut queue = self.queue.lock();
        if queue.len() >= MAX_WAITING {
            drop(queue);
            self.figures.usage_lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.push_back(Waiting { event, stored });
        drop(queue);
        self.figures.usage_noted.fetch_add(1, Ordering::Relaxed);
        self.arrived.notify_one();
    }
}

fn millis(at: Nanos) -> i64 {
    i64::try_from(at / MILLI).unwrap_or(i64::MAX)
}

fn event(
    id: u128,
    at: Nanos,
    spender: Spender,
    amounts: UsageAmounts,
    currency: &str,
) -> UsageEvent {
    let Spender { api_key_id, tenant_id, user_id, model_id } = spender;
    UsageEvent {
        event_id: format!("{id:032x}"),
        at: millis(at),
        api_key_id: api_key_id.unwrap_or_default(),
        tenant_id: tenant_id.unwrap_or_default(),
        user_id: user_id.unwrap_or_default(),
        model_id: model_id.unwrap_or_default(),
        currency: currency.to_owned(),
        amounts,
        ..UsageEvent::default()
    }
}

fn settled(used: SettledUsage) -> UsageEvent {
    let SettledUsage { id, at, spender, requests, tokens, usage, money } = used;
    let of = |kind| usage.tokens(kind);
    let amounts = UsageAmounts {
        requests,
        refusals: 0,
        tokens,
        input_tokens: usage.whole(TokenKind::Input),
        output_tokens: usage.whole(TokenKind::Output),
        cached_read_tokens: of(TokenKind::CachedRead),
        cached_write_tokens: of(TokenKind::CachedWrite),
        reasoning_tokens: of(TokenKind::Reasoning),
        audio_tokens: of(TokenKind::AudioInput).saturating_add(of(TokenKind::AudioOutput)),
        images: usage.images(),
        nanos: money.map_or(0, |money| money.nanos),
    };
    event(id, at, spender, amounts, money.map_or("", |money| money.currency.code()))
}

impl UsageLedger for Ledger {
    fn conceal(&self, api_key: &str) -> String {
        api_key_id(&self.secret, api_key)
    }

    fn note(&self, usage: SettledUsage) {
        self.push(settled(usage), None);
    }

    fn append(&self, usage: SettledUsage) -> Appending<'_> {
        let event = settled(usage);
        // A database is never waited for.
        if !self.is_shared || self.is_failing.load(Ordering::Relaxed) {
            self.push(event, None);
            return Box::pin(std::future::ready(()));
        }
        let (stored, is_stored) = oneshot::channel();
        self.push(event, Some(stored));
        Box::pin(async move {
            // What is not stored in time stays in the queue.
            let _ = tokio::time::timeout(STORED_WITHIN, is_stored).await;
        })
    }

    fn opened(&self, estimate: SettledUsage, expires_at: Nanos) {
        let open = UsageEvent { expires_at: Some(millis(expires_at)), ..settled(estimate) };
        self.push(open, None);
    }

    fn released(&self, id: u128, at: Nanos) {
        let event = event(id, at, Spender::default(), UsageAmounts::default(), "");
        self.push(UsageEvent { is_released: true, ..event }, None);
    }

    fn refused(&self, spender: Spender, at: Nanos) {
        let mut refused = self.refused.lock();
        let spender = if refused.len() < MAX_REFUSED || refused.contains_key(&spender) {
            spender
        } else {
            let several = || Some(SEVERAL.to_owned());
            Spender {
                api_key_id: several(),
                tenant_id: spender.tenant_id.filter(|_| refused.len() < 2 * MAX_REFUSED),
                user_id: several(),
                model_id: several(),
            }
        };
        let counted = refused.entry(spender).or_insert((0, at));
        *counted = (counted.0.saturating_add(1), at);
    }
}

#[cfg(test)]
mod tests;
