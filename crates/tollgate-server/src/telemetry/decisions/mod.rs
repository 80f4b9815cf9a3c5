//! What is made of decisions: counts by label, keys that are seen most, lines of a log.
//!
//! | file | |
//! |---|---|
//! | `mod.rs` | the witness to which the engine reports every decision |
//! | `labels.rs` | the bounded values of labels |
//! | `tally.rs` | counts by label, without a lock |
//! | `sketch.rs`, `top.rs` | who is seen most, in bounded room, from a sample |
//! | `top_figures.rs` | the same, to be sent and added to that of other nodes |
//! | `log.rs` | a line for a decision |

mod labels;
mod log;
mod sketch;
mod tally;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod thread_tests;
mod top;
mod top_figures;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tollgate_core::Nanos;
use tollgate_engine::{Decision, HoldChange, Observer, Request};

use crate::audit::AuditTrail;
use crate::recorder::Recorder;

pub(crate) use labels::Label;
pub use labels::LabelBounds;
pub use log::{DecisionLog, DecisionLogOptions};
pub(crate) use sketch::Counted;
pub(crate) use tally::{COUNTS, RESULTS, Series, Tally, WOULD_DENY};
pub use top::TopBounds;
pub(crate) use top::{KEY_SEPARATOR, Tops, Window};
pub(crate) use top_figures::{RuleFigures, TopFigures};

/// So many decisions a second are looked at closely; of more than that only some are.
const LOOKS_PER_SECOND: u64 = 4_000;
/// At least one in so many is.
const MAX_SKIPPED: u64 = 256;

/// How much a witness keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WitnessBounds {
    /// Of labels.
    pub labels: LabelBounds,
    /// Of keys.
    pub top: TopBounds,
}

thread_local! {
    /// How many decisions this thread lets pass before it looks at one closely.
    static SKIP: Cell<u32> = const { Cell::new(0) };
    static RANDOM: Cell<u32> = const { Cell::new(0x9e37_79b9) };
}

/// Sees every decision.
pub struct Witness {
    tally: Tally,
    tops: Tops,
    trail: Option<Arc<AuditTrail>>,
    log: Option<Arc<DecisionLog>>,
    recorder: Option<Arc<Recorder>>,
    /// One decision in so many is looked at closely.
    one_in: AtomicU32,
    /// Decisions at the last round.
    last_total: AtomicU64,
}

impl Witness {
    /// One that has seen nothing yet. `seed` is nobody's to know: it keeps names from being chosen so
    /// that they meet.
    pub fn new(bounds: WitnessBounds, seed: u64, api_key_secret: &[u8], now: Nanos) -> Self {
        Self {
            tally: Tally::new(bounds.labels, seed),
            tops: Tops::new(bounds.top, seed, api_key_secret, now),
            trail: None,
            log: None,
            recorder: None,
            one_in: AtomicU32::new(1),
            last_total: AtomicU64::new(0),
        }
    }

    /// The same, which notes decisions for the audit log, too.
    #[must_use]
    pub fn with_trail(mut self, trail: Option<Arc<AuditTrail>>) -> Self {
        self.trail = trail;
        self
    }

    /// The same, which logs decisions, too.
    #[must_use]
    pub fn with_log(mut self, log: Option<Arc<DecisionLog>>) -> Self {
        self.log = log;
        self
    }

    /// The same, which records decisions, too.
    #[must_use]
    pub(crate) fn with_recorder(mut self, recorder: Option<Arc<Recorder>>) -> Self {
        self.recorder = recorder;
        self
    }

    pub(crate) const fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.recorder.as_ref()
    }

    pub(crate) const fn tally(&self) -> &Tally {
        &self.tally
    }

    pub(crate) const fn tops(&self) -> &Tops {
        &self.tops
    }

    pub(crate) fn log(&self) -> Option<&DecisionLog> {
        self.log.as_deref()
    }

    /// Decides anew how many decisions are looked at closely. Called about once a second, with the
    /// decisions there were in all.
    pub fn tune(&self, total: u64) {
        let last = self.last_total.swap(total, Ordering::Relaxed);
        let one_in = (total.saturating_sub(last) / LOOKS_PER_SECOND).clamp(1, MAX_SKIPPED);
        self.one_in.store(one_in as u32, Ordering::Relaxed);
    }

    /// How many decisions this one stands for, if it is one of those that are looked at closely.
    #[inline]
    fn is_sampled(&self) -> Option<u32> {
        let left = SKIP.get();
        let one_in = self.one_in.load(Ordering::Relaxed);
        // A thread that counted down for a flood stops when it is over.
        if left > 0 && left < one_in * 2 {
            SKIP.set(left - 1);
            return None;
        }
        if one_in > 1 {
            // By chance, so that no rhythm of requests hides from it; on average one in so many.
            let mut random = RANDOM.get();
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            RANDOM.set(random);
            SKIP.set(random % (2 * one_in - 1));
        } else {
            SKIP.set(0);
        }
        Some(one_in)
    }
}

impl Observer for Witness {
    #[inline]
    fn decided(&self, request: &Request<'_>, decision: &Decision<'_>, took: &dyn Fn() -> Nanos) {
        self.tally.count(request, decision);
        if let Some(weight) = self.is_sampled() {
            self.tally.note_usage(request, decision);
            self.tops.note(request, decision, u64::from(weight));
        }
        if let Some(trail) = &self.trail {
            trail.decided(request, decision, took);
        }
        if let Some(log) = &self.log {
            log.decided(request, decision, took);
        }
        if let Some(recorder) = &self.recorder {
            recorder.decided(request, decision);
        }
    }

    fn decided_more(&self, request: &Request<'_>, decision: &Decision<'_>) {
        if let Some(recorder) = &self.recorder {
            recorder.decided_more(request, decision);
        }
    }

    fn changed(&self, change: &HoldChange) {
        if let Some(recorder) = &self.recorder {
            recorder.changed(change);
        }
    }

    fn was_reset(&self, request: &Request<'_>, rule_ids: &[String], at: Nanos) {
        if let Some(recorder) = &self.recorder {
            recorder.was_reset(request, rule_ids, at);
        }
    }
}
