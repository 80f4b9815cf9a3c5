//! What the log says about a Redis node: every change once, however many requests see it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::Failure;

/// So long without a failure, and the node has recovered.
const CALM: Duration = Duration::from_secs(1);

/// How one node has been lately.
#[derive(Debug, Default)]
pub(super) struct Health {
    troubled: AtomicBool,
    trouble: Mutex<Trouble>,
}

#[derive(Debug, Default)]
struct Trouble {
    /// A bit for every failure that has been told since the node was last well.
    told: u32,
    last: Duration,
}

impl Health {
    /// A failure at `now` (the time since some beginning).
    pub(super) fn failed(&self, name: &str, failure: Failure, detail: &str, now: Duration) {
        let mut trouble = self.trouble.lock();
        trouble.last = now;
        let bit = 1u32 << (failure as u32);
        if trouble.told & bit != 0 {
            return;
        }
        trouble.told |= bit;
        self.troubled.store(true, Ordering::Relaxed);
        tracing::warn!(
            redis = name,
            failure = failure.name(),
            detail,
            "{failure}; {}",
            advice(failure)
        );
    }

    /// An answer at `now`.
    #[inline]
    pub(super) fn succeeded(&self, name: &str, now: Duration) {
        if self.troubled.load(Ordering::Relaxed) {
            self.recover(name, now);
        }
    }

    #[cold]
    fn recover(&self, name: &str, now: Duration) {
        let mut trouble = self.trouble.lock();
        // One answer among failures is no recovery, and would be told again and again.
        if trouble.told != 0 && now >= trouble.last + CALM {
            *trouble = Trouble::default();
            self.troubled.store(false, Ordering::Relaxed);
            tracing::info!(redis = name, "Redis answers again");
        }
    }
}

/// What to do about it.
const fn advice(failure: Failure) -> &'static str {
    match failure {
        Failure::Timeout => "look for slow commands, a busy machine or a slow network",
        Failure::Connection => "check the address, that Redis runs, and TLS on both sides",
        Failure::Denied => {
            "check user and password, and that the user may run scripts on our keys: \
             ~<prefix>:* +@read +@write +@scripting +time +info +role"
        }
        Failure::NotReady => "it is asked again until it is ready",
        Failure::ReadOnly => {
            "point the address at the master, or use Sentinel; or see to its replicas"
        }
        Failure::OutOfMemory => "raise maxmemory, or give counters a Redis of their own",
        Failure::ForeignKey => "give counters a Redis or a prefix of their own",
        Failure::WrongKind => "set the kind of this store to what is at the address",
        Failure::Script => "look into the log of Redis, and whether someone kills scripts",
        Failure::Overloaded => "Redis is slower than requests come in",
        Failure::CircuitOpen => "it is asked again in a moment",
        Failure::Protocol => "check that a Redis 6.2 or later, or Valkey, is at the address",
    }
}
