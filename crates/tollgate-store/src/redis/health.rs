//! What the log says about a Redis node: every change once, however many requests see it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::connect::NO_TLS;
use super::trouble::{is_no_database, is_no_sentinel};
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
    /// A bit for every kind of failure that has been logged since the node was last healthy.
    logged: u32,
    last: Duration,
}

impl Health {
    /// A failure at `now` (the time since some beginning).
    pub(super) fn failed(&self, name: &str, failure: Failure, detail: &str, now: Duration) {
        let mut trouble = self.trouble.lock();
        trouble.last = now;
        let bit = 1u32 << kind(failure);
        if trouble.logged & bit != 0 {
            return;
        }
        trouble.logged |= bit;
        self.troubled.store(true, Ordering::Relaxed);
        let (what, advice) = in_particular(detail).unwrap_or((failure.describe(), advice(failure)));
        tracing::warn!(redis = name, failure = failure.name(), detail, "{what}; {advice}");
    }

    /// A failure at `now` that is not logged, but means that an outage which was logged continues.
    pub(super) fn goes_on(&self, now: Duration) {
        if self.troubled.load(Ordering::Relaxed) {
            self.trouble.lock().last = now;
        }
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
        // One answer among failures is no recovery, and would be logged again and again.
        if trouble.logged != 0 && now >= trouble.last + CALM {
            *trouble = Trouble::default();
            self.troubled.store(false, Ordering::Relaxed);
            tracing::info!(redis = name, "Redis answers again");
        }
    }
}

/// A server that fails over is unreachable, silent, loading and a replica in turn: that is one
/// outage. A failure that an operator must fix is logged separately.
const fn kind(failure: Failure) -> u32 {
    match failure {
        Failure::Timeout
        | Failure::Connection
        | Failure::NotReady
        | Failure::ReadOnly
        | Failure::Overloaded
        | Failure::CircuitOpen => 31,
        other => other as u32,
    }
}

/// What is wrong and what to do about it, where the words we got say it better than the failure.
fn in_particular(detail: &str) -> Option<(&'static str, &'static str)> {
    if is_no_database(detail) {
        Some((
            "the store has no database of this number",
            "correct the number at the end of the URL, or `databases` of Redis",
        ))
    } else if is_no_sentinel(detail) {
        Some((
            "what is at the address is no Sentinel",
            "give the addresses of the sentinels, or leave the name of the master out",
        ))
    } else if detail.contains(NO_TLS) {
        Some((
            "the TLS handshake with the store did not end in time",
            "check the address, and that its port speaks TLS: if not, use redis://, not rediss://",
        ))
    } else {
        None
    }
}

/// What to do about it.
const fn advice(failure: Failure) -> &'static str {
    match failure {
        Failure::Timeout => "look for slow commands, a busy machine or a slow network",
        Failure::Connection => "check the address, that Redis runs, and TLS on both sides",
        Failure::Denied => {
            "check user and password, and that the user may run scripts on our keys: \
             ~<prefix>:* +@read +@write +@scripting +@connection +time +info; docs/redis.md has all of it"
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
        Failure::Contract => "report it: it is a bug, and requests are refused until it is fixed",
    }
}
