//! Undoing calls in random orders, among reservations that others make and give back, on a clock that the test sets.
//!
//! The oracle replays the charges that remain, one after another. Undoing never leaves more room than that. Without
//! reservations a call that is undone at once leaves what was there before.

use super::tests::{refunded, set_clock};
use super::*;
use crate::redis::encode::{Encoded, Lines};
use crate::redis::{RedisOptions, RedisStore};
use crate::{Charge, Counter, GiveBack, Home, Mode, Outcomes, Request, Role, Store as _};
use tollgate_core::{Algorithm, Ask, Limit, LimitSpec, MICRO, Receipt, SECOND, Window};
use tollgate_testkit::Redis;

const ORDERS: u64 = 400;
const START: u64 = 1_789_000_000_000_000;

struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % end.max(1)
    }
}

/// What was charged and not undone: its call and place there, instant in microseconds, and cost.
type Live = (usize, u64, u64);

struct Bucket<'a> {
    store: &'a RedisStore,
    server: &'a Redis,
    limit: Limit,
    key: String,
    /// In microseconds.
    now: u64,
    live: Vec<Live>,
    calls: Vec<Option<(Encoded, Sent)>>,
    reserved: Vec<(usize, Receipt)>,
    made: usize,
}

fn limit(quota: u64) -> Limit {
    Limit::new(LimitSpec {
        algorithm: Algorithm::TokenBucket,
        quota,
        window: Window::Every(10 * SECOND),
        burst: Some(100_000),
        slot_ttl: SECOND,
    })
    .unwrap()
}

impl Bucket<'_> {
    fn charge<'c>(&'c self, key: &'c [&'c str], ask: Ask) -> [Charge<'c>; 1] {
        let home = Home { partition: Some(0), ..Home::default() };
        let counter = Counter { rule_id: "orders", tag: "t", salt: 0, key, home };
        [Charge { counter, limit: &self.limit, ask, role: Role::Must }]
    }

    fn advance(&mut self, micros: u64) {
        self.now += micros;
        set_clock(self.server, self.now);
    }

    fn note(&mut self, cost: u64) -> usize {
        self.made += 1;
        self.live.push((self.made, self.now, cost));
        self.made
    }

    /// A call with a request of each cost, whose answer is lost.
    async fn lose(&mut self, costs: &[u64]) {
        let mut encoded = Encoded::default();
        for cost in costs {
            let key = [self.key.as_str()];
            let charges = self.charge(&key, Ask::cost(*cost));
            let request = Request { charges: &charges, mode: Mode::Charge };
            encoded.push(&self.store.hub.speller, &request, 0, &mut Lines::new()).unwrap();
        }
        let mut sent = self.store.hub.unsent();
        let call = Call {
            operation: Operation::Decide,
            script: &self.store.hub.scripts.decide,
            keys: &encoded.keys,
            body: &encoded.elements,
            remember: true,
            slot: 0,
            deadline: self.store.hub.deadline(),
            timeout: self.store.hub.timeout,
            may_split: false,
        };
        self.store.hub.call_as(&call, None, &mut sent).await.unwrap().unwrap();
        self.calls.push(Some((encoded, sent)));
        let id = self.calls.len() - 1;
        for cost in costs {
            self.live.push((id + 1_000_000, self.now, *cost));
        }
    }

    async fn undo(&mut self, id: usize) {
        let Some((encoded, sent)) = self.calls[id].take() else { return };
        let call = Call {
            operation: Operation::Decide,
            script: &self.store.hub.scripts.decide,
            keys: &encoded.keys,
            body: &encoded.elements,
            remember: true,
            slot: 0,
            deadline: self.store.hub.deadline(),
            timeout: self.store.hub.timeout,
            may_split: false,
        };
        let undo = undo_of(&call, &sent, b"uuu", Instant::now());
        assert!(refunded(&self.store.hub.undo(&undo).await.unwrap()) > 0);
        self.live.retain(|(made, ..)| *made != id + 1_000_000);
    }

    async fn reserve(&mut self, cost: u64) {
        let key = [self.key.as_str()];
        let charges = self.charge(&key, Ask::cost(cost).refundable());
        let request = Request { charges: &charges, mode: Mode::Charge };
        let mut outcomes = Outcomes::new();
        self.store.decide(&[request], 0, &mut outcomes).await.unwrap();
        let receipt = outcomes[0].receipt;
        let id = self.note(cost);
        self.reserved.push((id, receipt));
    }

    async fn give_back(&mut self, place: usize) {
        let (id, receipt) = self.reserved.swap_remove(place);
        let key = [self.key.as_str()];
        let [Charge { counter, limit, .. }] = self.charge(&key, Ask::cost(1));
        self.store.give_back(&[GiveBack { counter, limit, receipt }], 0).await.unwrap();
        self.live.retain(|(made, ..)| *made != id);
    }

    /// When the bucket is empty again, in microseconds, as the store says.
    async fn ends(&self) -> u64 {
        let key = [self.key.as_str()];
        let charges = self.charge(&key, Ask::cost(1));
        let mut outcomes = Outcomes::new();
        let request = Request { charges: &charges, mode: Mode::Peek };
        self.store.decide(&[request], 0, &mut outcomes).await.unwrap();
        outcomes[0].status.reset_at.div_ceil(MICRO)
    }

    /// The same by the charges that remain, rounded up.
    fn replayed(&self) -> u64 {
        let quota = u128::from(self.limit.quota());
        let mut ends = 0_u128;
        for (_, at, cost) in &self.live {
            let from = ends.max(u128::from(*at) * quota);
            ends = from + u128::from(*cost) * u128::from(self.limit.window_nanos() / MICRO);
        }
        u64::try_from(ends.div_ceil(quota)).unwrap().max(self.now)
    }
}

/// Where the oldest of two lost calls was undone first, the other one ends sooner than it was charged.
#[tokio::test]
async fn a_call_that_follows_one_that_was_undone_gives_back_no_more_than_it_occupies() {
    let (server, store) = on_clock();
    let mut bucket = bucket(&server, &store, "example", 10);
    bucket.lose(&[4]).await;
    bucket.lose(&[4]).await;
    bucket.undo(0).await;
    bucket.advance(4_500_000);
    bucket.lose(&[6]).await;
    bucket.advance(500_000);
    bucket.undo(1).await;
    assert_eq!(bucket.ends().await - START, 10_500_000);
}

#[tokio::test]
async fn calls_that_are_undone_in_any_order_never_leave_more_room() {
    let (server, store) = on_clock();
    for seed in 0..ORDERS {
        let mut draw = Draw(seed);
        let quota = [10, 7, 1_000][draw.below(3) as usize];
        let mut bucket = bucket(&server, &store, &format!("orders {seed}"), quota);
        let reserves = draw.below(2) == 0;
        let unit = 10_000_000 / quota;
        for step in 0..6 + draw.below(20) {
            let cost = 1 + draw.below(6);
            match draw.below(8) {
                0..=1 => bucket.lose(&[cost]).await,
                2 => bucket.lose(&[cost, 1 + draw.below(6)]).await,
                3 if reserves => bucket.reserve(cost).await,
                4 if !bucket.reserved.is_empty() => {
                    let place = draw.below(bucket.reserved.len() as u64) as usize;
                    bucket.give_back(place).await;
                }
                5..=6 if !bucket.calls.is_empty() => {
                    let id = draw.below(bucket.calls.len() as u64) as usize;
                    bucket.undo(id).await;
                }
                _ => bucket.advance(draw.below(unit * 4)),
            }
            let (ends, replayed) = (bucket.ends().await, bucket.replayed());
            assert!(ends >= replayed, "seed {seed}, step {step}: {ends}, not before {replayed}");
        }
        let before = bucket.ends().await;
        bucket.lose(&[3, 2]).await;
        bucket.undo(bucket.calls.len() - 1).await;
        let ends = bucket.ends().await;
        assert!(ends == before || reserves && ends > before, "seed {seed}: {ends}, not {before}");
    }
}

fn on_clock() -> (Redis, RedisStore) {
    let server = Redis::start();
    let timeout = Duration::from_secs(5);
    let options = RedisOptions { urls: vec![server.url()], timeout, ..RedisOptions::default() };
    let clock = "redis.call('MGET', 'clock:seconds', 'clock:micros')";
    let store = RedisStore::on_clock(&options, clock).unwrap();
    set_clock(&server, START);
    (server, store)
}

fn bucket<'a>(server: &'a Redis, store: &'a RedisStore, key: &str, quota: u64) -> Bucket<'a> {
    set_clock(server, START);
    Bucket {
        store,
        server,
        limit: limit(quota),
        key: key.to_owned(),
        now: START,
        live: Vec::new(),
        calls: Vec::new(),
        reserved: Vec::new(),
        made: 0,
    }
}
