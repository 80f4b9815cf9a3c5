//! The observer of decisions, and of what becomes of their charges.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::Nanos;

use crate::decision::Scope;
use crate::{Actual, Decision, Engine, Request};

/// The target of the spans that traces are made of. They have the lowest level, so that logs do not take
/// them for their own.
pub const TRACE_TARGET: &str = "tollgate_trace";

/// Whether somebody may want spans of the lowest level: one comparison, so that nobody else pays for them.
#[inline]
pub(crate) fn is_traced() -> bool {
    tracing::level_filters::LevelFilter::current() == tracing::level_filters::LevelFilter::TRACE
}

/// Receives every final decision exactly once. It receives none of `Mode::Peek`, which charges
/// nothing, and none on more of a request that was decided before (`Request::only`).
///
/// It is called on the path of a request, so it must neither block nor do much work.
pub trait Observer: Send + Sync {
    /// A decision was made about a request. `took` reads the clock and says how long that was, for
    /// those who want to know.
    fn decided(&self, request: &Request<'_>, decision: &Decision<'_>, took: &dyn Fn() -> Nanos);

    /// More of a request that was decided before was decided ([`Request::is_more`]).
    fn decided_more(&self, _request: &Request<'_>, _decision: &Decision<'_>) {}

    /// What a request holds changed.
    fn changed(&self, _change: &HoldChange) {}

    /// The counters of the client of this request were reset, under these rules.
    fn was_reset(&self, _request: &Request<'_>, _rule_ids: &[String], _at: Nanos) {}
}

/// A change of what a request holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HoldChange {
    /// Which request: [`Decision::hold_link`].
    pub link: u64,
    /// When.
    pub at: Nanos,
    /// Whether it is about slots.
    pub has_slots: bool,
    /// Whether it is about other charges than slots.
    pub has_charges: bool,
    /// What became of it.
    pub how: HoldChanged,
}

/// How what a request holds changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HoldChanged {
    /// It was settled with the truth.
    Settled(Actual),
    /// It was given back.
    Released,
    /// It is held for so long from now on, or for its own lifetime again.
    Renewed(Option<Nanos>),
}

/// What links a reservation to its decision, without being its id: who knows the id can end it.
pub(crate) fn link_of(id: u128) -> u64 {
    xxhash_rust::xxh3::xxh3_64(&id.to_le_bytes()).max(1)
}

/// Numbers of one thread: the highest bits name the thread.
const THREAD_SHIFT: u32 = 44;

/// A number that no other request of this process has. Threads count for themselves, so that they do not wait for
/// each other.
pub(crate) fn new_link(instance: u64) -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NEXT: Cell<u64> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed) << THREAD_SHIFT);
    }
    let number = NEXT.get();
    NEXT.set(number.wrapping_add(1));
    // Other nodes have other instances.
    (number ^ instance).max(1)
}

impl<S> Engine<S> {
    /// The same engine with an observer of its decisions.
    #[must_use]
    pub fn with_observer(mut self, observer: std::sync::Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    #[inline]
    pub(crate) fn notify_observer(&self, request: &Request<'_>, decision: &Decision<'_>) {
        note_agreement(decision);
        let Some(observer) = &self.observer else { return };
        if request.is_more {
            observer.decided_more(request, decision);
        } else {
            let took = || self.clock.now().saturating_sub(decision.asked_at);
            observer.decided(request, decision, &took);
        }
    }

    pub(crate) fn notify_change(&self, change: impl FnOnce() -> HoldChange) {
        if let Some(observer) = &self.observer {
            observer.changed(&change());
        }
    }
}

/// Notes for every candidate that was tried whether it agrees with the limits in force.
#[inline]
fn note_agreement(decision: &Decision<'_>) {
    if decision.scopes.iter().any(|scope| scope.limit.is_candidate) {
        note_agreements(decision);
    }
}

#[cold]
fn note_agreements(decision: &Decision<'_>) {
    let scopes = &decision.scopes;
    let mut noted = None;
    for scope in scopes.iter().filter(|scope| scope.limit.is_candidate) {
        let Some(candidate) = &scope.rule.candidate else { continue };
        // The limits of one rule follow each other.
        if noted == Some(scope.applied()) {
            continue;
        }
        noted = Some(scope.applied());
        let refuses = |is_candidate: bool| {
            let mut own = scopes.iter().filter(|one| {
                one.applied() == scope.applied() && one.limit.is_candidate == is_candidate
            });
            own.any(Scope::refuses)
        };
        candidate.agreement.note(refuses(false), refuses(true));
    }
}
