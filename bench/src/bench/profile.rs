//! Work for an instruction profiler: `valgrind --tool=callgrind --toggle-collect='*measured*'`.

use std::hint::black_box;

use tollgate_bench::limiters::{BURST, Governor, Limiter, Tollgate};
use tollgate_bench::rules;
use tollgate_bench::work::{key, text, zipf};
use tollgate_engine::Engine;
use tollgate_store::MemoryStore;

use super::audit;
use super::decide::{USERS, decide_all, engine};
use super::handler::{answer, api, bodies};

const KEYS: usize = 10_000;

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum What {
    /// `MemoryStore::pass` and a clock read
    Check,
    /// governor's check with foldhash
    Governor,
    /// A decision of 3 scopes from 3 rules
    Decide3,
    /// A decision of 3 scopes from 1,000 rules
    Decide1000,
    /// The same, with an audit trail
    Audited,
    /// The same, with the tiers of a million clients
    Tiers,
    /// A refusal by one of 3 scopes from 1,000 rules
    Refused,
    /// The same, with an audit trail
    RefusedAudited,
    /// A decision with metrics, top keys and a sampled log.
    Watched,
    /// The same of a refusal.
    RefusedWatched,
    /// The same with everything that watches.
    Observed,
    RefusedObserved,
    /// The HTTP handler with 1,000 rules
    Handler,
}

/// What is looked at: everything else is preparation.
#[inline(never)]
fn measured(work: impl FnOnce()) {
    work();
}

pub fn run(what: What, times: usize) {
    match what {
        What::Check => check(&Tollgate::new(1_000_000, BURST), times),
        What::Governor => {
            check(&Governor::<foldhash::fast::RandomState>::new("governor", BURST), times);
        }
        What::Decide3 => decide(engine(3), times),
        What::Decide1000 => decide(engine(1_000), times),
        What::Audited => decide(audit::audited(engine(1_000)), times),
        What::Tiers => decide(audit::with_tiers(), times),
        What::Refused => decide(audit::refusing(), times),
        What::RefusedAudited => decide(audit::audited(audit::refusing()), times),
        What::Watched => decide(audit::watched(engine(1_000)), times),
        What::RefusedWatched => decide(audit::watched(audit::refusing()), times),
        What::Observed => decide(audit::observed(engine(1_000)), times),
        What::RefusedObserved => decide(audit::observed(audit::refusing()), times),
        What::Handler => {
            let (api, bodies) = (api(1_000), bodies(times));
            bodies.iter().for_each(|body| answer(&api, body));
            measured(|| bodies.iter().for_each(|body| answer(&api, body)));
        }
    }
}

fn decide(engine: Engine<MemoryStore>, times: usize) {
    let callers = rules::callers(USERS.min(KEYS), times);
    decide_all(&engine, &callers);
    measured(|| {
        black_box(decide_all(&engine, &callers));
    });
}

fn check(limiter: &impl Limiter, times: usize) {
    let keys: Vec<String> = (0..KEYS as u64).map(|number| text(&key(number)).to_owned()).collect();
    let picks = zipf(KEYS, times);
    limiter.check_all(&keys, &picks, true);
    measured(|| {
        black_box(limiter.check_all(&keys, &picks, true));
    });
}
