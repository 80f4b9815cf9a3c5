//! The scripts show what the core shows: on the shared vectors, on the suite's edges, and on random
//! histories of random limits, instant by instant.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "these are tests: a panic is how they fail"
)]

mod redis_support;

use redis_support::VirtualClock;
use tollgate_core::{
    Algorithm, Ask, Calendar, CalendarUnit, Examination, Limit, LimitSpec, MAX_MICROS,
    MAX_OPEN_CHARGES, MICRO, Nanos, Outcome, Receipt, Refundable, SlotId, State, Status, Window,
};
use tollgate_store::{
    Adjustment, Change, Charge, Counter, Failure, GiveBack, Home, Mode, Outcomes, Request, Role,
    Settlement, Store,
};

const VECTORS: &str = include_str!("../../tollgate-core/tests/vectors.txt");
const FIRST: Nanos = 1_789_000_000_123_456 * MICRO;

/// One counter on the server.
struct Remote<'a> {
    clock: &'a VirtualClock,
    name: String,
    limit: Limit,
}

impl Remote<'_> {
    fn counter<'k>(&'k self, key: &'k [&'k str]) -> Counter<'k> {
        let home = Home { partition: Some(0), ..Home::default() };
        Counter { rule_id: &self.name, tag: "t", salt: 0, key, home }
    }

    async fn decide(&self, ask: Ask, mode: Mode) -> Outcome {
        let counter = self.counter(&["k"]);
        let charges = [Charge { counter, limit: &self.limit, ask, role: Role::Must }];
        let request = Request { charges: &charges, mode };
        let mut outcomes = Outcomes::new();
        let decided =
            self.clock.store.decide(&[request], self.clock.get(), &mut outcomes).await.unwrap();
        assert_eq!(decided.at, self.clock.get());
        outcomes[0]
    }

    async fn give_back(&self, receipt: Receipt) {
        let counter = self.counter(&["k"]);
        let returned = GiveBack { counter, limit: &self.limit, receipt };
        self.clock.store.give_back(&[returned], self.clock.get()).await.unwrap();
    }

    /// Gives a part of a charge back and makes another part final, under an id.
    async fn settle(&self, id: u128, refund: Receipt, closes: Receipt) {
        let change = Change::GiveBack(refund);
        let counter = self.counter(&["k"]);
        let adjustments = [Adjustment { counter, limit: &self.limit, change, closes }];
        let settlement = Settlement {
            id,
            remember: 1_000_000 * MICRO,
            is_here: false,
            adjustments: &adjustments,
        };
        self.clock.store.settle(&settlement, self.clock.get()).await.unwrap();
    }
}

#[tokio::test]
async fn the_scripts_show_what_the_vectors_say() {
    let clock = VirtualClock::new();
    let (mut remote, mut last, mut limits): (Option<Remote<'_>>, _, _) =
        (None, Receipt::Nothing, 0);
    let mut open: Vec<Receipt> = Vec::new();
    for (number, line) in (1..).zip(VECTORS.lines()) {
        let words: Vec<&str> = line.split(' ').collect();
        let parse = |index: usize| words[index].parse::<u64>().unwrap();
        if line.starts_with('#') {
            continue;
        }
        if words[0] == "limit" {
            let limit = Limit::new(LimitSpec {
                algorithm: Algorithm::from_name(words[1]).unwrap(),
                quota: parse(2),
                window: Window::Every(parse(3) * MICRO),
                burst: words[4].parse().ok(),
                slot_ttl: 0,
            });
            limits += 1;
            let name = format!("limit {limits}");
            remote = Some(Remote { clock: &clock, name, limit: limit.unwrap() });
            clock.set(FIRST);
            open.clear();
            continue;
        }
        let remote = remote.as_ref().unwrap();
        let step = words[0].parse::<i64>().unwrap() * MICRO.cast_signed();
        if step != 0 {
            clock.set(clock.get().checked_add_signed(step).unwrap());
        }
        if words[1] == "give_back" {
            remote.give_back(last).await;
            continue;
        }
        if words[1] == "refund" || words[1] == "close" {
            let part = open[parse(2) as usize].part(parse(3));
            if words[1] == "refund" {
                remote.give_back(part).await;
            } else {
                remote.settle(number, Receipt::Nothing, part).await;
            }
            continue;
        }
        let is_open = words[1] == "open";
        let mode = match words[1] {
            "owe" => Mode::Owe,
            "peek" => Mode::Peek,
            _ => Mode::Charge,
        };
        let cost = Ask::cost(parse(2));
        let ask = if is_open { cost.refundable() } else { cost };
        let outcome = remote.decide(ask, mode).await;
        if outcome.receipt != Receipt::Nothing {
            last = outcome.receipt;
            open.extend(is_open.then_some(last));
        }
        let now = clock.get();
        let (expected, rest) = match words[3] {
            "admit" => (Examination::Admit { wait: parse(4) }, 5),
            "refuse" => (Examination::Refuse { retry_at: Some(now + parse(4)) }, 5),
            _ => (Examination::Refuse { retry_at: None }, 4),
        };
        let status = Status {
            used: parse(rest),
            remaining: parse(rest + 1),
            reset_at: now + parse(rest + 2),
        };
        assert_eq!((outcome.examination, outcome.status), (expected, status), "{number}: {line}");
    }
}

/// Calendar windows: the node sends boundaries by what it takes the server's clock for; the script picks,
/// and has none that fits when the clock has jumped.
#[tokio::test]
async fn calendar_windows_follow_the_server_clock() {
    let clock = VirtualClock::new();
    let mut draw = Draw(7);
    for unit in CalendarUnit::ALL {
        let calendar = Calendar::new(unit, "Europe/Berlin", None).unwrap();
        let (window, nominal) = (Window::Calendar(calendar.clone()), calendar.nominal_nanos());
        let algorithm = Algorithm::FixedWindow;
        let spec = LimitSpec { algorithm, quota: 5, window, burst: None, slot_ttl: 0 };
        let limit = Limit::new(spec).unwrap();
        let remote = Remote { clock: &clock, name: unit.name().to_owned(), limit: limit.clone() };
        let mut state = limit.fresh();
        clock.set(FIRST);
        for _ in 0..60 {
            let now = clock.get();
            let next = match draw.below(6) {
                0 => calendar.bounds(now).1,
                1 => calendar.bounds(now).1 - MICRO,
                2 => now + draw.below(3 * nominal) / MICRO * MICRO,
                _ => now,
            };
            clock.set(next);
            let ask = Ask::cost(1 + draw.below(3));
            let examination = limit.examine(&state, &ask, next);
            let receipt = if examination.admits() {
                limit.charge(&mut state, &ask, next)
            } else {
                Receipt::Nothing
            };
            let expected = Outcome { examination, status: limit.status(&state, next), receipt };
            assert_eq!(remote.decide(ask, Mode::Charge).await, expected, "{unit:?} at {next}");
        }
    }
}

/// More requests in one call than a script call takes, over few counters: in order all the same.
#[tokio::test]
async fn many_requests_in_one_call_are_decided_in_order() {
    let clock = VirtualClock::new();
    let limit = Draw(1).limit(Algorithm::TokenBucket);
    let spec = LimitSpec {
        algorithm: Algorithm::SlidingWindowLog,
        quota: 150,
        window: Window::Every(1_000_000 * MICRO),
        burst: None,
        slot_ttl: 0,
    };
    let remote =
        Remote { clock: &clock, name: "many".to_owned(), limit: Limit::new(spec).unwrap() };
    let counter = remote.counter(&["k"]);
    let other = Counter { rule_id: "other", ..counter };
    let charge = |counter, limit, role| Charge { counter, limit, ask: Ask::cost(1), role };
    let charges = [charge(counter, &remote.limit, Role::Must), charge(other, &limit, Role::Watch)];
    let requests = vec![Request { charges: &charges, mode: Mode::Charge }; 200];
    let mut outcomes = Outcomes::new();
    clock.store.decide(&requests, clock.get(), &mut outcomes).await.unwrap();
    assert_eq!(outcomes.len(), 400);
    for (number, outcome) in (1..).zip(outcomes.iter().step_by(2)) {
        assert_eq!(outcome.status.used, u64::min(number, 150));
        assert_eq!(outcome.examination.admits(), number <= 150);
    }
}

/// The inverse of `a` modulo the prime `p`.
fn inverse(a: i128, p: i128) -> i128 {
    let (mut old, mut new, mut old_sum, mut sum) = (a, p, 1, 0);
    while new != 0 {
        let quotient = old / new;
        (old, new) = (new, old - quotient * new);
        (old_sum, sum) = (sum, old_sum - quotient * sum);
    }
    old_sum.rem_euclid(p)
}

/// Products that differ by one in 10^24, which doubles cannot tell apart.
#[tokio::test]
async fn a_sliding_window_is_compared_exactly_where_doubles_are_not() {
    const WINDOW: u64 = 1_000_000_000_039;
    let clock = VirtualClock::new();
    let mut draw = Draw(3);
    for (number, difference) in (0..60).zip([-1i128, 0, 1].into_iter().cycle()) {
        // before * overlap = room * window + difference
        let overlap = WINDOW / 2 + draw.below(WINDOW / 2);
        let (wide, prime) = (i128::from(overlap), i128::from(WINDOW));
        let before = match difference {
            0 => prime * i128::from(1 + draw.below(8_000)),
            _ => (difference * inverse(wide, prime)).rem_euclid(prime),
        };
        let room = u64::try_from((before * wide - difference) / prime).unwrap();
        let spec = LimitSpec {
            algorithm: Algorithm::SlidingWindowCounter,
            quota: room + 1,
            window: Window::Every(WINDOW * MICRO),
            burst: None,
            slot_ttl: 0,
        };
        let limit = Limit::new(spec).unwrap();
        let remote = Remote { clock: &clock, name: format!("tie {number}"), limit: limit.clone() };
        clock.set(FIRST);
        let end = limit.window_bounds(FIRST).1;
        let owed = Ask::cost(u64::try_from(before).unwrap());
        let mut state = limit.fresh();
        limit.charge(&mut state, &owed, FIRST);
        remote.decide(owed, Mode::Owe).await;
        let now = end + (WINDOW - overlap) * MICRO;
        clock.set(now);
        let outcome = remote.decide(Ask::cost(1), Mode::Peek).await;
        assert_eq!(outcome.examination.admits(), difference <= 0, "{before} x {overlap}");
        assert_eq!(outcome.examination, limit.examine(&state, &Ask::cost(1), now));
    }
}

/// A part of a microsecond that the new quota cannot represent is rounded up, never down.
#[tokio::test]
async fn a_bucket_whose_quota_changes_forgets_no_part() {
    let clock = VirtualClock::new();
    let bucket = |quota| {
        let (algorithm, window) = (Algorithm::TokenBucket, Window::Every(1_000_000 * MICRO));
        let spec = LimitSpec { algorithm, quota, window, burst: None, slot_ttl: 0 };
        let name = "changes".to_owned();
        Remote { clock: &clock, name, limit: Limit::new(spec).unwrap() }
    };
    let now = clock.get();
    let charged = bucket(3).decide(Ask::cost(1), Mode::Charge).await;
    assert_eq!(charged.status.reset_at, now + 333_333_334);
    for quota in [7, 11, 1_000, 7] {
        let outcome = bucket(quota).decide(Ask::cost(1), Mode::Peek).await;
        assert_eq!(outcome.status.reset_at, now + 333_334 * MICRO, "{quota}");
    }
    let outcome = bucket(3).decide(Ask::cost(1), Mode::Peek).await;
    assert_eq!(outcome.status.reset_at, now + 333_333_334, "nothing was written");
}

fn bucket<'a>(clock: &'a VirtualClock, name: &str, quota: u64, window: Nanos) -> Remote<'a> {
    let (algorithm, window) = (Algorithm::TokenBucket, Window::Every(window));
    let spec = LimitSpec { algorithm, quota, window, burst: None, slot_ttl: 0 };
    Remote { clock, name: name.to_owned(), limit: Limit::new(spec).unwrap() }
}

/// Values of 8 and 32 bytes are read as they are, what give-backs had moved in the latter included; other lengths are not
/// ours and are left alone.
#[tokio::test]
async fn values_of_earlier_versions_are_read() {
    let clock = VirtualClock::new();
    let remote = bucket(&clock, "earlier", 100, 86_400_000_000 * MICRO);
    let now = clock.get() / MICRO;
    let token = 864_000_000;
    let key = "tg:{k}:earlier:t:k";
    remote.decide(Ask::cost(1), Mode::Charge).await;
    assert_eq!(clock.server().call(&["EXISTS", key]).unwrap().text(), "1", "its key");
    for (format, rest) in [("<d", ""), ("<dddd", ", 0, 1, 12345")] {
        let write = format!(
            "redis.call('SET', KEYS[1], struct.pack('{format}', {}{rest}))",
            now + 5 * token
        );
        clock.server().call(&["EVAL", &write, "1", key]).unwrap().ok().unwrap();
        assert_eq!(remote.decide(Ask::cost(1), Mode::Peek).await.status.used, 5, "{format}");
        let charged = remote.decide(Ask::cost(2).refundable(), Mode::Charge).await;
        assert_eq!(charged.status.used, 7, "{format}");
        remote.decide(Ask::cost(1), Mode::Charge).await;
        remote.give_back(charged.receipt).await;
        assert_eq!(remote.decide(Ask::cost(1), Mode::Peek).await.status.used, 6, "{format}");
    }
    // A list that was cut, has other first bytes, or is longer than any of ours.
    for foreign in [
        "string.rep('x', 108)",
        "'TGB3' .. string.rep('x', 103)",
        "'TGB3' .. string.rep('x', 64 + 193 * 64)",
    ] {
        let write = format!("redis.call('SET', KEYS[1], {foreign})");
        clock.server().call(&["EVAL", &write, "1", key]).unwrap().ok().unwrap();
        let charges = [Charge {
            counter: remote.counter(&["k"]),
            limit: &remote.limit,
            ask: Ask::cost(1),
            role: Role::Must,
        }];
        let request = Request { charges: &charges, mode: Mode::Charge };
        let refused = clock.store.decide(&[request], clock.get(), &mut Outcomes::new()).await;
        assert_eq!(refused.unwrap_err().failure, Failure::ForeignKey, "{foreign}");
    }
}

/// Any number of open charges takes bounded room; the oldest become final, and are counted; a refund that is repeated
/// returns nothing.
#[tokio::test]
async fn open_charges_of_one_key_stay_bounded() {
    let clock = VirtualClock::new();
    let remote = bucket(&clock, "bounded", 1_000_000, 86_400_000_000 * MICRO);
    let mut receipts = Vec::new();
    for _ in 0..MAX_OPEN_CHARGES + 100 {
        clock.set(clock.get() + MICRO);
        receipts.push(remote.decide(Ask::cost(7).refundable(), Mode::Charge).await.receipt);
    }
    let length = clock.server().call(&["STRLEN", "tg:{k}:bounded:t:k"]).unwrap().text();
    assert_eq!(length, (68 + 64 * MAX_OPEN_CHARGES).to_string());
    assert_eq!(clock.store.metrics().finalized_charges(), 100);
    for receipt in receipts.iter().rev().chain(&receipts) {
        remote.give_back(*receipt).await;
    }
    assert_eq!(remote.decide(Ask::cost(1), Mode::Peek).await.status.used, 700);
    let length = clock.server().call(&["STRLEN", "tg:{k}:bounded:t:k"]).unwrap().text();
    assert!(length == "8" || length == "32", "no list is left: {length}");
}

/// Holds push out no reservation, and reservations no hold.
#[tokio::test]
async fn holds_and_reservations_have_places_of_their_own() {
    let clock = VirtualClock::new();
    let remote = bucket(&clock, "sorts", 1_000_000, 86_400_000_000 * MICRO);
    let hold = Ask { refundable: Refundable::Briefly, ..Ask::cost(3) };
    for order in [[hold, Ask::cost(7).refundable()], [Ask::cost(7).refundable(), hold]] {
        let mut receipts = Vec::new();
        for ask in order {
            for _ in 0..MAX_OPEN_CHARGES {
                clock.set(clock.get() + MICRO);
                receipts.push(remote.decide(ask, Mode::Charge).await.receipt);
            }
        }
        assert_eq!(clock.store.metrics().finalized_charges(), 0);
        for receipt in &receipts {
            remote.give_back(*receipt).await;
        }
        assert_eq!(remote.decide(Ask::cost(1), Mode::Peek).await.status.used, 0);
    }
}

/// The whole suite where every edge is hit exactly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_on_a_clock_that_stands_still() {
    let harness = VirtualClock::new();
    tollgate_store::conformance_in_order!(&harness);
}

/// Numbers that look random and are the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % end.max(1)
    }

    /// Any number of at most `bits` bits, every length as likely.
    fn any_length(&mut self, bits: u64) -> u64 {
        let length = 1 + self.below(bits);
        self.below(1 << length)
    }

    fn limit(&mut self, algorithm: Algorithm) -> Limit {
        let (quota, micros) = match self.below(4) {
            0 => (1 + self.below(20), 1 + self.below(50)),
            1 => (1 + self.below(20), 1_000_000 * (1 + self.below(100))),
            2 => (self.any_length(42).max(1), self.any_length(40).max(1)),
            _ if algorithm.is_bucket() => (MAX_MICROS / 1_000 - self.below(9), 3_600_000_000),
            _ => (MAX_MICROS - self.below(9), 1 << (30 + self.below(14))),
        };
        // Windows of buckets need not be whole microseconds.
        let nanos = micros * MICRO + if algorithm.is_bucket() { self.below(1_000) } else { 0 };
        let burst = 1 + if self.below(2) == 0 { self.below(8) } else { self.below(quota) };
        let spec = LimitSpec {
            algorithm,
            quota,
            window: Window::Every(nanos),
            burst: algorithm.is_bucket().then_some(burst),
            slot_ttl: micros * MICRO,
        };
        Limit::new(spec).unwrap()
    }

    fn step(&mut self, limit: &Limit) -> Nanos {
        let window = limit.window_nanos().max(MICRO);
        let token = window / limit.quota().max(1);
        let nanos = match self.below(10) {
            0..=3 => 0,
            4 => MICRO,
            5 => token,
            6 => self.below(window + 1),
            7 => self.below(window / 8 + 1),
            8 => window,
            _ => window + self.below(2 * window),
        };
        nanos / MICRO * MICRO
    }

    fn cost(&mut self, limit: &Limit) -> u64 {
        let capacity = limit.capacity().min(MAX_MICROS);
        match self.below(8) {
            0..=2 => 1,
            3 => self.below(4),
            4 => capacity,
            5 => capacity / 2 + 1,
            6 => (capacity + 1).min(MAX_MICROS),
            _ => self.below(capacity + 1),
        }
    }
}

async fn random_history(clock: &VirtualClock, algorithm: Algorithm, seed: u64) {
    let mut draw = Draw(seed);
    let limit = draw.limit(algorithm);
    assert!(limit.fits_micros(), "{limit:?}");
    let name = format!("{algorithm} {seed}");
    let remote = Remote { clock, name, limit: limit.clone() };
    let mut state: State = limit.fresh();
    let mut receipts: Vec<Receipt> = Vec::new();
    let mut owed = 0;
    clock.set(FIRST);
    for number in 0..40u128 {
        let step = draw.step(&limit);
        if step > 0 {
            clock.set(clock.get() + step);
        }
        let now = clock.get();
        if draw.below(5) == 0 && !receipts.is_empty() {
            let receipt = receipts.swap_remove(draw.below(receipts.len() as u64) as usize);
            if let Receipt::Open { cost, .. } = receipt {
                // Settled: a part goes back, some of the rest becomes final, and what is left stays open.
                let back = receipt.part(draw.below(cost + 1));
                let closes = receipt.part(draw.below(cost + 1));
                limit.close(&mut state, &closes, now);
                limit.give_back(&mut state, &back, now);
                remote.settle(u128::from(seed) << 64 | number, back, closes).await;
            } else {
                limit.give_back(&mut state, &receipt, now);
                remote.give_back(receipt).await;
            }
            continue;
        }
        let mut ask = Ask { slot: SlotId(number % 7 + 1), ..Ask::cost(draw.cost(&limit)) };
        if algorithm.is_bucket() && draw.below(6) == 0 {
            ask.max_delay = Some(draw.below(2 * limit.window_nanos()));
        }
        if algorithm.is_bucket() {
            ask.refundable = match draw.below(4) {
                0 => Refundable::No,
                1 => Refundable::Briefly,
                _ => Refundable::UntilClosed,
            };
        }
        let mode = match draw.below(8) {
            0 | 1 => Mode::Peek,
            // Debts up to what numbers hold.
            2 if owed < 3 && ask.cost < MAX_MICROS / 8 && limit.quota() < MAX_MICROS / 2 => {
                owed += 1;
                Mode::Owe
            }
            _ => Mode::Charge,
        };
        let before = state.clone();
        let examination = limit.examine(&state, &ask, now);
        let receipt = if mode.charges(examination.admits()) {
            limit.charge(&mut state, &ask, now)
        } else {
            Receipt::Nothing
        };
        let expected = Outcome { examination, status: limit.status(&state, now), receipt };
        let outcome = remote.decide(ask, mode).await;
        assert_eq!(outcome, expected, "{mode:?} {ask:?} of {limit:?} at {now} was {before:?}");
        let is_slot = matches!(receipt, Receipt::Slot(_));
        if receipt != Receipt::Nothing && !(is_slot && receipts.contains(&receipt)) {
            receipts.push(receipt);
        }
    }
}

macro_rules! random_histories {
    ($($name:ident: $algorithm:ident,)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                let clock = VirtualClock::new();
                for seed in 0..100 {
                    random_history(&clock, Algorithm::$algorithm, seed).await;
                }
            }
        )*
    };
}

random_histories! {
    random_fixed_windows: FixedWindow,
    random_sliding_logs: SlidingWindowLog,
    random_sliding_counters: SlidingWindowCounter,
    random_token_buckets: TokenBucket,
    random_leaky_buckets: LeakyBucket,
    random_gcra: Gcra,
    random_concurrency: Concurrency,
}
