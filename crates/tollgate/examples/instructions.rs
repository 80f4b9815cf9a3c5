//! Work for an instruction profiler, to compare the library with its own store:
//!
//! ```text
//! cargo build --release -p tollgate --example instructions
//! for what in store limiter gate; do
//!   valgrind --tool=callgrind --toggle-collect='*measured*' --callgrind-out-file=/dev/null \
//!     target/release/examples/instructions $what 100000
//! done
//! ```

use std::hint::black_box;

use tollgate::{Client, Clock as _, Gate, Limiter, Quota, Rule, SystemClock};
use tollgate_core::{Algorithm, Ask, Limit, LimitSpec, SECOND, Window};
use tollgate_store::{MemoryStore, Mode};

/// More than is ever asked for, so that every check passes.
const AMOUNT: u64 = 1_000_000_000;

const KEYS: [&str; 4] = ["ann", "bob", "eve", "joe"];

/// What is looked at: everything else is preparation.
#[inline(never)]
fn measured(times: usize, mut check: impl FnMut(&str) -> bool) {
    for key in KEYS.iter().cycle().take(times) {
        assert!(black_box(check(key)));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let what = arguments.get(1).map_or("limiter", String::as_str);
    let times = arguments.get(2).map_or(Ok(100_000), |text| text.parse())?;
    match what {
        "store" => {
            let (store, clock) = (MemoryStore::new(1_000_000), SystemClock::new());
            let spec = LimitSpec {
                algorithm: Algorithm::TokenBucket,
                quota: AMOUNT,
                window: Window::Every(SECOND),
                burst: None,
                slot_ttl: SECOND,
            };
            let limit = Limit::new(spec)?;
            measured(times, |key| {
                let ask = Ask::cost(1);
                let now = clock.now();
                store.decide_keyed(key, &limit, &ask, Mode::Charge, now).examination.admits()
            });
        }
        "limiter" => {
            let limiter = Limiter::keyed(Quota::per_second(AMOUNT));
            measured(times, |key| limiter.check(key).is_ok());
        }
        "gate" => {
            let rule = Rule::per("user_id").quota(Quota::per_second(AMOUNT));
            let gate = Gate::builder().rule(rule).build()?;
            measured(times, |key| {
                gate.check_now(&Client::user(key)).is_ok_and(|verdict| verdict.is_allowed())
            });
        }
        other => return Err(format!("store, limiter or gate, not {other}").into()),
    }
    println!("{what}: {times} checks");
    Ok(())
}
