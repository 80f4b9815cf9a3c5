//! However long a log is, no call may keep the server from its other clients.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "these are tests: a panic is how they fail"
)]

mod redis_support;

use redis_support::VirtualClock;
use tollgate_core::{
    Algorithm, Ask, Examination, Limit, LimitSpec, Nanos, Outcome, Receipt, SECOND, Window,
};
use tollgate_store::{
    Charge, Counter, Failure, GiveBack, Home, Mode, Outcomes, Request, Role, Store,
};

const KEY: &str = "tg:{k}:long:t:k";
const ENTRIES: u64 = 150_000;
/// Between two entries.
const STEP: Nanos = 100_000;

struct Log {
    clock: std::sync::Arc<VirtualClock>,
    limit: Limit,
    /// When the first entry was made.
    first: Nanos,
}

impl Log {
    /// A log of many entries of 1, the last of which was made now.
    fn full() -> Self {
        let clock = VirtualClock::new();
        let first = clock.get();
        let limit = Limit::new(LimitSpec {
            algorithm: Algorithm::SlidingWindowLog,
            quota: ENTRIES,
            window: Window::Every(60 * SECOND),
            burst: None,
            slot_ttl: 0,
        });
        // As the script writes them; that it does is what the first charge shows.
        let fill = "for i = 1, tonumber(ARGV[1]) do redis.call('ZADD', KEYS[1], \
            string.format('%.0f', ARGV[2] + (i - 1) * ARGV[3]), i .. ':1') end";
        let (entries, from, step) =
            (ENTRIES.to_string(), (first / 1_000).to_string(), (STEP / 1_000).to_string());
        let words = ["EVAL", fill, "1", KEY, &entries, &from, &step];
        clock.server().call(&words).unwrap().ok().unwrap();
        clock.set(first + (ENTRIES - 1) * STEP);
        Self { clock, limit: limit.unwrap(), first }
    }

    fn counter<'k>(key: &'k [&'k str]) -> Counter<'k> {
        let home = Home { partition: Some(0), ..Home::default() };
        Counter { rule_id: "long", tag: "t", salt: 0, key, home }
    }

    async fn decide(&self, cost: u64, mode: Mode) -> Outcome {
        let (counter, ask) = (Self::counter(&["k"]), Ask::cost(cost));
        let charges = [Charge { counter, limit: &self.limit, ask, role: Role::Must }];
        let request = Request { charges: &charges, mode };
        let mut outcomes = Outcomes::new();
        self.clock.store.decide(&[request], self.clock.get(), &mut outcomes).await.unwrap();
        outcomes[0]
    }

    /// The longest that a script has taken since the last time, in microseconds.
    fn slowest(&self) -> u64 {
        let server = self.clock.server();
        let stats = server.call(&["INFO", "commandstats"]).unwrap().ok().unwrap().text();
        server.call(&["CONFIG", "RESETSTAT"]).unwrap().ok().unwrap();
        let of = |name: &str| {
            let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:")))?;
            line.split("usec=").nth(1)?.split(',').next()?.parse::<u64>().ok()
        };
        // One call each time, so the sum is the call.
        of("evalsha").unwrap_or(0) + of("eval").unwrap_or(0)
    }
}

/// Far less than the half second that walking such a log takes, and enough for a busy machine.
const BRIEF: u64 = 20_000;

#[tokio::test]
async fn a_refusal_on_a_long_log_is_brief_and_exact() {
    let log = Log::full();
    log.decide(1, Mode::Peek).await;
    log.slowest();
    for cost in [1, 2, 500, 100_000, ENTRIES] {
        let outcome = log.decide(cost, Mode::Charge).await;
        let at = log.first + (cost - 1) * STEP + 60 * SECOND;
        let refused = Examination::Refuse { retry_at: Some(at) };
        assert_eq!((outcome.examination, outcome.status.used), (refused, ENTRIES), "{cost}");
        let took = log.slowest();
        assert!(took < BRIEF, "{cost}: {took} us");
    }
}

#[tokio::test]
async fn what_has_left_a_long_log_is_summed_and_removed_briefly() {
    let log = Log::full();
    log.decide(1, Mode::Peek).await;
    // 100,001 have left.
    log.clock.set(log.first + 100_000 * STEP + 60 * SECOND);
    log.slowest();
    assert_eq!(log.decide(1, Mode::Peek).await.status.used, ENTRIES - 100_001);
    assert!(log.slowest() < BRIEF);
    for paid in 1..=3 {
        let outcome = log.decide(1, Mode::Charge).await;
        assert_eq!(outcome.status.used, ENTRIES - 100_001 + paid);
        assert!(log.slowest() < BRIEF);
    }
    // All have.
    log.clock.set(log.clock.get() + 61 * SECOND);
    for (mode, used) in [(Mode::Peek, 0), (Mode::Charge, 5), (Mode::Charge, 10)] {
        assert_eq!(log.decide(5, mode).await.status.used, used, "{mode:?}");
        assert!(log.slowest() < BRIEF);
    }
    let left = log.clock.server().call(&["ZCARD", KEY]).unwrap().ok().unwrap().text();
    assert_eq!(left, "1", "one entry per instant");
}

#[tokio::test]
async fn a_give_back_in_time_is_exact_and_one_that_is_late_mints_nothing() {
    let log = Log::full();
    log.decide(1, Mode::Peek).await;
    log.slowest();
    let counter = Log::counter(&["k"]);
    for (back, used) in [(1, ENTRIES - 1), (100, ENTRIES - 2), (100_000, ENTRIES - 2)] {
        let at = log.first + (ENTRIES - back) * STEP;
        let receipt = Receipt::Log { at, cost: 1 };
        let returned = GiveBack { counter, limit: &log.limit, receipt };
        log.clock.store.give_back(&[returned], log.clock.get()).await.unwrap();
        assert!(log.slowest() < BRIEF);
        assert_eq!(log.decide(1, Mode::Peek).await.status.used, used, "{back}");
        log.slowest();
    }
    // The sums are right behind it too.
    log.clock.set(log.first + (ENTRIES - 50) * STEP + 60 * SECOND);
    assert_eq!(log.decide(1, Mode::Peek).await.status.used, 48);
}

#[tokio::test]
async fn an_entry_that_is_not_ours_fails_its_own_request_only() {
    let clock = VirtualClock::new();
    let limit = Limit::new(LimitSpec {
        algorithm: Algorithm::SlidingWindowLog,
        quota: 10,
        window: Window::Every(60 * SECOND),
        burst: None,
        slot_ttl: 0,
    });
    let limit = limit.unwrap();
    let now = (clock.get() / 1_000).to_string();
    let foreign: [&[&str]; 6] = [
        &["-5", "t", "1", "foo"],
        &["-5", "t"],
        &["1", "1:1:x"],
        &["inf", "1:1"],
        &["1.5", "1:1"],
        &["5", "foo", &now, "1:1"],
    ];
    for entries in foreign {
        clock.server().call(&["DEL", KEY]).unwrap().ok().unwrap();
        clock.server().call(&[&["ZADD", KEY], entries].concat()).unwrap().ok().unwrap();
        for mode in [Mode::Peek, Mode::Charge, Mode::Owe, Mode::Charge, Mode::Charge, Mode::Charge]
        {
            let key = ["k"];
            let (counter, ask) = (Log::counter(&key), Ask::cost(1));
            let charges = [Charge { counter, limit: &limit, ask, role: Role::Must }];
            let request = Request { charges: &charges, mode };
            let decided = clock.store.decide(&[request], 0, &mut Outcomes::new()).await;
            // What has long left the window is not looked at.
            if entries.len() < 4 || entries[1] == "t" {
                assert_eq!(decided.unwrap_err().failure, Failure::ForeignKey, "{entries:?}");
            } else {
                decided.unwrap();
            }
        }
        assert_eq!(clock.store.metrics().open_breakers(), 0, "{entries:?}");
    }
}
