//! An engine on every composition of stores, against a real Redis: no API key is stored in the clear,
//! counters are partitioned by their own keys, and rules' policies hold, however the stores are
//! composed and whether or not they have names.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test")]

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::SECOND;
use tollgate_engine::{Actual, Amounts, Engine, EngineError, Reason, Request, SystemClock};
use tollgate_policy::prices::{Currency, Money, PriceTable, TokenKind, Usage};
use tollgate_policy::{Known, RuleSet};
use tollgate_store::leased::{LeaseOptions, Leased};
use tollgate_store::placed::Placed;
use tollgate_store::redis::{RedisKind, RedisOptions, RedisStore};
use tollgate_store::resilient::{Resilient, ResilientOptions};
use tollgate_store::{Fallback, MemoryStore, Mode, SharedStore, Store, api_key_id};
use tollgate_testkit::{Cluster, Redis, Reply};

const API_KEY: &str = "sk-live-raw-secret";
const SECRET: &[u8] = b"what API keys are hashed with";

/// A composition of stores, and what it promises.
trait Composition: Store + Sized + 'static {
    const NAME: &'static str;
    /// Whether counters are in Redis.
    const IS_SHARED: bool = true;
    /// Whether it honours `on_store_failure`; others fail.
    const FALLS_BACK: bool = false;
    /// Whether it honours `consistency: local`; others count it like `strict`.
    const COUNTS_LOCALLY: bool = false;

    fn on(redis: &Redis) -> Self;

    /// How many counters are on lease, where it honours `consistency: leased`.
    fn leases(&self) -> Option<usize> {
        None
    }
}

impl Composition for MemoryStore {
    const NAME: &'static str = "Memory";
    const IS_SHARED: bool = false;
    const COUNTS_LOCALLY: bool = true;

    fn on(_: &Redis) -> Self {
        Self::new(10_000)
    }
}

impl Composition for RedisStore {
    const NAME: &'static str = "Redis";

    fn on(redis: &Redis) -> Self {
        let options = RedisOptions {
            urls: vec![redis.url()],
            // Patient enough for a machine that does other things as well.
            timeout: Duration::from_secs(5),
            api_key_secret: SECRET.to_vec(),
            ..RedisOptions::default()
        };
        Self::new(&options).unwrap()
    }
}

impl Composition for Leased<RedisStore> {
    const NAME: &'static str = "Leased<Redis>";

    fn on(redis: &Redis) -> Self {
        Self::new(Composition::on(redis), LeaseOptions::new("node".to_owned()))
    }

    fn leases(&self) -> Option<usize> {
        Some(self.usage().leases)
    }
}

impl<S: Composition + SharedStore> Composition for Resilient<S>
where
    Self: Store,
{
    const NAME: &'static str = "Resilient";
    const FALLS_BACK: bool = true;

    fn on(redis: &Redis) -> Self {
        Self::new(S::on(redis), ResilientOptions::new("node".to_owned()))
    }

    fn leases(&self) -> Option<usize> {
        self.inner().leases()
    }
}

impl<S: Composition + SharedStore> Composition for Placed<Resilient<S>> {
    const NAME: &'static str = "Placed";
    const FALLS_BACK: bool = true;
    const COUNTS_LOCALLY: bool = true;

    fn on(redis: &Redis) -> Self {
        // Without a name: that a store is shared does not depend on it.
        Self::new(MemoryStore::new(10_000), vec![Composition::on(redis)], Vec::new())
    }

    fn leases(&self) -> Option<usize> {
        self.shared().first().unwrap().leases()
    }
}

/// Runs a check on every composition, each on a Redis of its own.
macro_rules! on_every_composition {
    ($($check:ident),* $(,)?) => { $(
        mod $check {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn memory() { super::$check::<MemoryStore>().await; }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redis() { super::$check::<RedisStore>().await; }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn leased() { super::$check::<Leased<RedisStore>>().await; }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn resilient() { super::$check::<Resilient<RedisStore>>().await; }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn resilient_leased() { super::$check::<Resilient<Leased<RedisStore>>>().await; }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn placed_resilient() { super::$check::<Placed<Resilient<RedisStore>>>().await; }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn placed_resilient_leased() {
                super::$check::<Placed<Resilient<Leased<RedisStore>>>>().await;
            }
        }
    )* };
}

on_every_composition!(
    no_api_key_is_stored_in_the_clear,
    counters_are_partitioned_by_their_own_keys,
    rules_say_what_happens_when_the_store_fails,
    rules_say_how_exact_a_counter_is,
    what_decide_holds_can_be_given_back,
    money_is_counted_to_the_nano,
);

fn engine<S: Store>(store: S, rules: &str) -> Engine<S> {
    let rules = RuleSet::from_yaml(&format!("default: false\nrules:\n{rules}"), "t").unwrap();
    Engine::new(store, Arc::new(SystemClock::new()), rules)
}

fn request<'a>() -> Request<'a> {
    let mut request = Request { amounts: Amounts::tokens(10), ..Request::default() };
    request.attributes.set(Known::ApiKey, API_KEY);
    request.attributes.set(Known::TenantId, "acme");
    request.attributes.set(Known::UserId, "ann");
    request
}

/// Every key in Redis.
fn keys(redis: &Redis) -> Vec<String> {
    match redis.call(&["KEYS", "*"]).unwrap() {
        Reply::List(keys) => keys.iter().map(Reply::text).collect(),
        other => panic!("{other:?}"),
    }
}

/// Every key and value in Redis, as text.
fn dump(redis: &Redis) -> String {
    let mut text = String::new();
    for key in keys(redis) {
        let kind = redis.call(&["TYPE", &key]).unwrap().text();
        let read: &[&str] = match kind.as_str() {
            "string" => &["GET", &key],
            "hash" => &["HGETALL", &key],
            "zset" => &["ZRANGE", &key, "0", "-1", "WITHSCORES"],
            "set" => &["SMEMBERS", &key],
            "list" => &["LRANGE", &key, "0", "-1"],
            "stream" => &["XRANGE", &key, "-", "+"],
            // It has expired meanwhile.
            "none" => continue,
            other => panic!("{key} is a {other}"),
        };
        let value = redis.call(read).unwrap();
        let _ = writeln!(text, "{key} = {value:?}");
    }
    text
}

const BY_KEY: &str = "
- {rule_id: window, identifier_type: api_key, limit: 1000, window: 1h, algorithm: fixed_window}
- {rule_id: log, identifier_type: api_key, limit: 1000, window: 1h, algorithm: sliding_window_log}
- {rule_id: bucket, identifier_type: client, limit: 1000, window: 1h, algorithm: token_bucket}
- {rule_id: both, key_by: [tenant_id, api_key], limit: 1000, window: 1h, algorithm: sliding_window_counter}
- {rule_id: slots, identifier_type: api_key, unit: concurrency, limit: 1000, slot_ttl: 1h}
- {rule_id: tokens, identifier_type: api_key, unit: tokens, limit: 100000, window: 1h, algorithm: fixed_window}
- {rule_id: chunks, identifier_type: api_key, limit: 1000, window: 1h, algorithm: fixed_window, consistency: leased, max_overshoot: 0.1}
- {rule_id: user, identifier_type: user_id, limit: 1000, window: 1h, algorithm: fixed_window}
- {rule_id: everyone, identifier_type: global, limit: 1000, window: 1h, algorithm: fixed_window}
";

/// Everything that an engine writes: charges, reservations in every state, answers by id, batches.
async fn exercise<S: Store>(engine: &Engine<S>) {
    let rules = engine.rules();
    let reserving = Request { reserve: Some(600 * SECOND), ..request() };
    for ending in 0..4 {
        let decision = engine.decide(&rules, &reserving, Mode::Charge).await.unwrap();
        assert!(decision.is_allowed(), "{}", decision.explain());
        let id = decision.reservation.unwrap().id;
        match ending {
            0 => {
                let actual = Actual::from(Amounts::tokens(3));
                let _ = engine.settle_reservation(id, actual).await.unwrap();
            }
            1 => drop(engine.release_reservation(id).await.unwrap()),
            2 => drop(engine.renew_reservation(id, None).await.unwrap()),
            // It stays open.
            _ => {}
        }
    }
    let with_id = Request { request_id: Some("id"), ..request() };
    engine.decide_once(&rules, &with_id, |decision| assert!(decision.is_allowed())).await.unwrap();
    let batch = [request(), request()];
    engine.decide_batch(&rules, &batch, |decided| assert!(decided.unwrap().is_allowed())).await;
    let decision = engine.decide(&rules, &request(), Mode::Charge).await.unwrap();
    engine.give_back(&engine.receipts(&request(), &decision)).await.unwrap();
}

async fn no_api_key_is_stored_in_the_clear<S: Composition>() {
    let redis = Redis::start();
    let engine = engine(S::on(&redis), BY_KEY);
    exercise(&engine).await;
    let stored = dump(&redis);
    assert!(!stored.contains(API_KEY), "{}: {stored}", S::NAME);
    let hashed = api_key_id(SECRET, API_KEY);
    assert_eq!(stored.contains(&hashed), S::IS_SHARED, "{}: {stored}", S::NAME);
    if S::FALLS_BACK {
        // What is admitted without the store is recorded, too, and stays in this process.
        redis.kill();
        exercise(&engine).await;
        redis.restart();
        let stored = dump(&redis);
        assert!(!stored.contains(API_KEY), "{}, after an outage: {stored}", S::NAME);
    }
}

async fn counters_are_partitioned_by_their_own_keys<S: Composition>() {
    let redis = Redis::start();
    let engine = engine(S::on(&redis), BY_KEY);
    exercise(&engine).await;
    let keys = keys(&redis);
    if !S::IS_SHARED {
        assert_eq!(keys, [""; 0], "{}", S::NAME);
        return;
    }
    let hashed = api_key_id(SECRET, API_KEY);
    let partitions = [
        ("window", hashed.as_str()),
        ("bucket", &hashed),
        ("both", "acme"),
        ("chunks", &hashed),
        ("user", "ann"),
        ("everyone", "everyone"),
    ];
    for (rule, partition) in partitions {
        let expected = format!("tg:{{{partition}}}:{rule}:");
        let own = format!("}}:{rule}:");
        let mut own = keys.iter().filter(|key| key.contains(&own)).peekable();
        assert!(own.peek().is_some(), "{}: nothing of {rule} in {keys:?}", S::NAME);
        assert!(own.all(|key| key.starts_with(&expected)), "{}: {rule}: {keys:?}", S::NAME);
    }
}

async fn rules_say_what_happens_when_the_store_fails<S: Composition>() {
    let redis = Redis::start();
    redis.kill();
    let closed = Fallback::Closed;
    let local = Fallback::Local { nodes: 1 };
    let cases = [
        (", on_store_failure: open", None, Fallback::Open),
        (", on_store_failure: closed", None, closed),
        (", on_store_failure: local", None, local),
        ("", Some("INTERNAL"), Fallback::Open),
        ("", Some("EXTERNAL"), closed),
        ("", None, local),
    ];
    for (policy, client_type, expected) in cases {
        let rule =
            format!("- {{rule_id: r, identifier_type: user_id, limit: 5, window: 1h{policy}}}");
        let engine = engine(S::on(&redis), &rule);
        let rules = engine.rules();
        let mut request = request();
        request.attributes.set(Known::ClientType, client_type.unwrap_or_default());
        let decided = engine.decide(&rules, &request, Mode::Charge).await;
        let name = S::NAME;
        match decided {
            Ok(decision) if !S::IS_SHARED => {
                assert!(decision.is_allowed() && decision.degraded.is_none(), "{name}");
            }
            Ok(decision) => {
                assert!(S::FALLS_BACK, "{name} {policy}: {decision:?}");
                let fallback = decision.degraded.map(|degraded| degraded.fallback);
                assert_eq!(fallback, Some(expected), "{name}{policy} {client_type:?}");
                assert_eq!(decision.is_allowed(), expected != closed, "{name}{policy}");
                assert_eq!(decision.reason == Reason::StoreUnavailable, expected == closed);
            }
            // Without a fallback nothing passes, whatever the rule says.
            Err(EngineError::Store(_)) => {
                assert!(!S::FALLS_BACK && S::IS_SHARED, "{name} {policy}");
            }
            Err(other) => panic!("{name} {policy}: {other}"),
        }
    }
}

async fn rules_say_how_exact_a_counter_is<S: Composition>() {
    let redis = Redis::start();
    let rules = "
- {rule_id: chunks, identifier_type: user_id, limit: 1000, window: 1h, algorithm: fixed_window, consistency: leased, max_overshoot: 0.1}
- {rule_id: here, identifier_type: user_id, limit: 20, window: 1h, algorithm: fixed_window, consistency: local}";
    let engine = engine(S::on(&redis), rules);
    let rules = engine.rules();
    for number in 0..21 {
        let decision = engine.decide(&rules, &request(), Mode::Charge).await.unwrap();
        assert_eq!(decision.is_allowed(), number < 20, "{}: {}", S::NAME, decision.explain());
    }
    if let Some(leases) = engine.store().leases() {
        assert_eq!(leases, 1, "{}", S::NAME);
    }
    let is_in_redis = keys(&redis).iter().any(|key| key.contains("}:here:"));
    assert_eq!(is_in_redis, S::IS_SHARED && !S::COUNTS_LOCALLY, "{}", S::NAME);
}

async fn what_decide_holds_can_be_given_back<S: Composition>() {
    let redis = Redis::start();
    let rules = "
- {rule_id: slots, identifier_type: user_id, unit: concurrency, limit: 1, slot_ttl: 1h}
- {rule_id: tokens, identifier_type: api_key, unit: tokens, limit: 15, window: 1h, algorithm: fixed_window}";
    let engine = engine(S::on(&redis), rules);
    let rules = engine.rules();
    let used = async |rule: &str| {
        let peeked = engine.decide(&rules, &request(), Mode::Peek).await.unwrap();
        let scope = peeked.scopes().find(|scope| scope.rule.id == rule).unwrap();
        scope.outcome.status.used
    };
    // A slot is released by the id that the decision has; tokens stay charged.
    let decision = engine.decide(&rules, &request(), Mode::Charge).await.unwrap();
    assert!(decision.reservation.is_none(), "none was asked for");
    let id = decision.reservation_id().unwrap();
    assert_eq!((used("slots").await, used("tokens").await), (1, 10), "{}", S::NAME);
    engine.release_reservation(id).await.unwrap();
    assert_eq!((used("slots").await, used("tokens").await), (0, 10), "{}", S::NAME);
    // A reservation is made where it is asked for, and all of it is given back.
    let reserving =
        Request { reserve: Some(60 * SECOND), amounts: Amounts::tokens(5), ..request() };
    let decision = engine.decide(&rules, &reserving, Mode::Charge).await.unwrap();
    let id = decision.reservation.unwrap().id;
    assert_eq!((used("slots").await, used("tokens").await), (1, 15), "{}", S::NAME);
    engine.release_reservation(id).await.unwrap();
    assert_eq!((used("slots").await, used("tokens").await), (0, 10), "{}", S::NAME);
    // Other modes make none, and say so.
    let owed = engine.decide(&rules, &reserving, Mode::Owe).await;
    assert_eq!(owed.err(), Some(EngineError::NotReservable), "{}", S::NAME);
    let peeked = engine.decide(&rules, &reserving, Mode::Peek).await.unwrap();
    assert!(peeked.reservation.is_none() && peeked.slot.is_none(), "{}", S::NAME);
}

const BUDGETS: &str = r#"
- {rule_id: a-tenant, identifier_type: tenant_id, unit: money, currency: USD, limit: "9007199.254740991", calendar: year}
- {rule_id: b-user, identifier_type: user_id, unit: money, currency: USD, limit: "0.05", calendar: year}
- {rule_id: c-tokens, identifier_type: user_id, unit: tokens, limit: 100000, calendar: year}
- {rule_id: d-input, identifier_type: user_id, unit: input_tokens, limit: 100000, calendar: year}
"#;

const PRICES: &str = r#"
prices: [{model: m, currency: USD, per_million: {input: "2.50", output: "10", cached_read: "0.333333333"}}]
"#;

async fn money_is_counted_to_the_nano<S: Composition>() {
    let redis = Redis::start();
    count_money(S::on(&redis), S::NAME).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn money_is_counted_to_the_nano_on_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let options = RedisOptions {
        urls: cluster.urls(),
        kind: RedisKind::Cluster,
        timeout: Duration::from_secs(5),
        api_key_secret: SECRET.to_vec(),
        ..RedisOptions::default()
    };
    Box::pin(count_money(RedisStore::new(&options).unwrap(), "Cluster")).await;
}

/// Reserves, settles and refuses by price, and compares every counter with the sum.
async fn count_money<S: Store>(store: S, name: &str) {
    let engine = engine(store, BUDGETS);
    engine.swap_prices(PriceTable::parse(PRICES, "t").unwrap());
    let rules = engine.rules();
    let asked = |usage: Usage| {
        let amounts = Amounts::of_usage(&usage);
        let usage = Some(usage);
        let mut asked = Request { amounts, usage, reserve: Some(60 * SECOND), ..request() };
        asked.attributes.set(Known::ModelId, "m");
        asked
    };
    let usage = Usage::new(7_001, 3_001);
    let decision = engine.decide(&rules, &asked(usage), Mode::Charge).await.unwrap();
    assert!(decision.is_allowed(), "{name}: {}", decision.explain());
    let used = |decision: &tollgate_engine::Decision<'_>| -> Vec<u64> {
        decision.scopes().map(|scope| scope.outcome.status.used).collect()
    };
    let reserved = 7_001 * 2_500 + 3_001 * 10_000;
    assert_eq!(used(&decision), [reserved, reserved, 10_002, 7_001], "{name}");
    // 0.0025 is left for the user: nothing is charged to the tenant or to the tokens either.
    let refused = engine.decide(&rules, &asked(Usage::new(0, 300)), Mode::Charge).await.unwrap();
    assert!(!refused.is_allowed(), "{name}");
    let truth = Usage::new(7_000, 11).with(TokenKind::CachedRead, 6_999);
    let id = decision.reservation.unwrap().id;
    let settled = engine.settle_reservation(id, Actual::of_usage(truth)).await.unwrap();
    // 6,999 cached tokens cost 2332.999997667 micro-dollars, rounded up with the rest.
    let spent = 2_500 + 2_332_999_997_667_u64.div_ceil(1_000_000) + 110_000;
    let money = Money { currency: Currency::USD, nanos: reserved - spent };
    assert_eq!(settled.refunded.money, Some(money), "{name}");
    let look = Request { reserve: None, ..asked(Usage::default()) };
    let look = engine.decide(&rules, &look, Mode::Peek).await.unwrap();
    assert_eq!(used(&look), [spent, spent, 7_011, 7_000], "{name}");
    let all = Money { currency: Currency::USD, nanos: 50_000_000 - spent };
    let amounts = Amounts { money: Some(all), ..Amounts::tokens(0) };
    let last = Request { amounts, ..request() };
    assert!(engine.decide(&rules, &last, Mode::Charge).await.unwrap().is_allowed(), "{name}");
    let one = Amounts { money: Some(Money { nanos: 1, ..all }), ..Amounts::tokens(0) };
    let over = engine.decide(&rules, &Request { amounts: one, ..request() }, Mode::Charge).await;
    assert!(!over.unwrap().is_allowed(), "{name}: not a nano is left");
}
