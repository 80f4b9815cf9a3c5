//! The trail that decisions leave for the audit log: noted on the request path, written to the log later.
//!
//! | file | |
//! |---|---|
//! | `mod.rs` | which decisions are noted, and how they are drained |
//! | `note.rs` | one decision, as a note and as a record of the log |
//! | `aggregate.rs` | repeated decisions as one record |
//! | `pool.rs` | where notes wait: in chunks, of which there are so many and no more |

pub(crate) mod aggregate;
mod note;
mod pool;
#[cfg(test)]
mod tests;

use std::cell::Cell;

use parking_lot::Mutex;
use tollgate_control::DecisionRecord;
use tollgate_engine::{Decision, Observer, Request, Verdict};

use note::RecordBuilder;
use pool::{Pool, Reading};

/// The trail of decisions: refused, throttled, queued and would-deny ones, and a sample of the others.
///
/// Noting one costs no allocation and waits for nobody; what there is no room for is dropped and
/// counted.
pub struct AuditTrail {
    pool: Pool,
    /// One in so many allowed decisions is noted; 0: none.
    sample_allowed: u64,
    /// What is being drained.
    draining: Mutex<Draining>,
}

struct Draining {
    builder: RecordBuilder,
    reading: Option<Reading>,
}

/// How much was noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AuditFigures {
    /// Decisions noted.
    pub recorded: u64,
    /// Decisions that there was no room for.
    pub dropped: u64,
    /// Decisions noted and not yet drained.
    pub buffered: u64,
    /// What those take.
    pub buffered_bytes: u64,
}

thread_local! {
    /// How many allowed decisions this thread has let pass since it noted one.
    static PASSED: Cell<u64> = const { Cell::new(0) };
}

impl AuditTrail {
    /// A trail that notes one in `sample_allowed` allowed decisions (0: none), keeps at most so many
    /// bytes, and stores API keys as their hash under this secret.
    pub fn new(sample_allowed: u64, max_buffered_bytes: usize, api_key_secret: &[u8]) -> Self {
        let draining = Draining { builder: RecordBuilder::new(api_key_secret), reading: None };
        let pool = Pool::new(max_buffered_bytes);
        Self { pool, sample_allowed, draining: Mutex::new(draining) }
    }

    /// Takes at most so many decisions off the trail, for the log. API keys are hashed, and `node` is
    /// left to the caller.
    pub fn drain(&self, most: usize) -> Vec<DecisionRecord> {
        let mut draining = self.draining.lock();
        let Draining { builder, reading } = &mut *draining;
        let mut records = Vec::new();
        while records.len() < most {
            if let Some(note) = reading.as_mut().and_then(Reading::next) {
                records.push(builder.build(&note));
                continue;
            }
            if let Some(done) = reading.take() {
                self.pool.put_back(done);
            }
            *reading = self.pool.take();
            if reading.is_none() {
                break;
            }
        }
        self.pool.count_drained(records.len() as u64);
        records
    }

    /// How much was noted.
    pub fn figures(&self) -> AuditFigures {
        self.pool.figures()
    }

    /// Whether this allowed decision is one of those that are noted.
    #[inline]
    fn is_sampled(&self) -> bool {
        if self.sample_allowed == 0 {
            return false;
        }
        PASSED.with(|passed| {
            let count = passed.get() + 1;
            let is_due = count >= self.sample_allowed;
            passed.set(if is_due { 0 } else { count });
            is_due
        })
    }
}

impl Observer for AuditTrail {
    #[inline]
    fn decided(&self, request: &Request<'_>, decision: &Decision<'_>, _: &dyn Fn() -> u64) {
        let is_plain = decision.verdict == Verdict::Allowed && !decision.has_would_deny();
        if !is_plain || self.is_sampled() {
            self.pool.note(request, decision);
        }
    }
}
