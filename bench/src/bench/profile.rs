//! Work for an instruction profiler: `valgrind --tool=callgrind --toggle-collect='*measured*'`.

use std::hint::black_box;

use tollgate_bench::limiters::{BURST, Governor, Limiter, Tollgate};
use tollgate_bench::rules;
use tollgate_bench::work::{key, text, zipf};

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
        What::Decide3 | What::Decide1000 => {
            let engine = engine(if matches!(what, What::Decide3) { 3 } else { 1_000 });
            let callers = rules::callers(USERS.min(KEYS), times);
            decide_all(&engine, &callers);
            measured(|| {
                black_box(decide_all(&engine, &callers));
            });
        }
        What::Handler => {
            let (api, bodies) = (api(1_000), bodies(times));
            bodies.iter().for_each(|body| answer(&api, body));
            measured(|| bodies.iter().for_each(|body| answer(&api, body)));
        }
    }
}

fn check(limiter: &impl Limiter, times: usize) {
    let keys: Vec<String> = (0..KEYS as u64).map(|number| text(&key(number)).to_owned()).collect();
    let picks = zipf(KEYS, times);
    limiter.check_all(&keys, &picks, true);
    measured(|| {
        black_box(limiter.check_all(&keys, &picks, true));
    });
}
