//! Hard budgets: what is settled never exceeds them, whatever prices, usages, clients and upstreams do.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tollgate_e2e::{EventStream, Model, Server, ServerBuilder, eventually, eventually_within};
use tollgate_testkit::{Cluster, Postgres, Redis};

use super::budget::spent;
use super::{PATH, chat, gateway, with};

/// Clients at the same time.
const CLIENTS: u64 = 64;

/// How often each is refused before it stops.
const REFUSALS: u64 = 5;

/// The budget, in nanos: $5.
const BUDGET: u64 = 5_000_000_000;

/// What must have been spent of it at least: $4.50.
const LEAST_SPENT: u64 = 4_500_000_000;

/// The longest answer that a request allows.
const MAX_TOKENS: u64 = 400;

/// How long an answer that its client left may be read on, and somewhat more.
const SETTLED_WITHIN: std::time::Duration = std::time::Duration::from_secs(30);

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

fn seed() -> u64 {
    let said = std::env::var("TOLLGATE_BUDGET_SEED").ok().and_then(|seed| seed.parse().ok());
    said.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.expect("a clock").as_nanos() as u64 % 1_000_000
    })
}

const KINDS: [&str; 7] =
    ["input", "output", "cached_read", "cached_write", "reasoning", "audio_input", "audio_output"];

/// Prices of a model, in nanos for a million tokens: below and above so much input.
struct Price {
    per_request: u64,
    base: [u64; 7],
    above: u64,
    long: [u64; 7],
}

impl Price {
    fn random(random: &mut Random) -> Self {
        // Up to $90 for a million tokens, whatever the kind.
        let mut prices = || KINDS.map(|_| random.below(90_000_000_000) + 1);
        let (base, long) = (prices(), prices());
        Self { per_request: random.below(1_000_000), base, above: random.below(120) + 1, long }
    }

    fn yaml(&self, model: &str) -> String {
        let decimal = |nanos: u64| {
            let unit = 1_000_000_000;
            format!("'{}.{:09}'", nanos / unit, nanos % unit)
        };
        let named = |prices: &[u64; 7]| {
            let each =
                KINDS.iter().zip(prices).map(|(kind, it)| format!("{kind}: {}", decimal(*it)));
            each.collect::<Vec<_>>().join(", ")
        };
        let (base, long, above) = (named(&self.base), named(&self.long), self.above);
        let request = decimal(self.per_request);
        format!(
            "  - {{model: {model}, currency: USD, per_request: {request}, per_million: {{{base}}}, \
             long_context: {{above: {above}, {long}}}}}\n"
        )
    }

    /// What an upstream charges for a usage report, rounded up once.
    fn nanos(&self, usage: &Value) -> u64 {
        let of = |path: &str| u128::from(usage.pointer(path).and_then(Value::as_u64).unwrap_or(0));
        let (input, output) = (of("/prompt_tokens"), of("/completion_tokens"));
        let read = of("/prompt_tokens_details/cached_tokens");
        let written = of("/prompt_tokens_details/cache_write_tokens");
        let heard = of("/prompt_tokens_details/audio_tokens");
        let thought = of("/completion_tokens_details/reasoning_tokens");
        let said = of("/completion_tokens_details/audio_tokens");
        let prices = if input > u128::from(self.above) { &self.long } else { &self.base };
        let counts = [
            input - read - written - heard,
            output - thought - said,
            read,
            written,
            thought,
            heard,
            said,
        ];
        let sum: u128 =
            counts.iter().zip(prices).map(|(count, price)| count * u128::from(*price)).sum();
        sum.div_ceil(1_000_000) as u64 + self.per_request
    }
}

const MODELS: [&str; 4] = ["m0", "m1", "m2", "m3"];

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is answered to its end, and its usage is reported.
    Whole,
    /// The upstream reports no usage.
    Silent,
    /// The upstream breaks off.
    Cut,
    /// The client leaves.
    Leaves,
    /// The upstream fails before it works.
    Fails(u16),
}

/// A request, and what it meets. Who it is for says whether its usage is reported.
fn request(random: &mut Random) -> (Value, Fate) {
    let fate = match random.below(20) {
        0..=11 => Fate::Whole,
        12 | 13 => Fate::Silent,
        14 | 15 => Fate::Cut,
        16 | 17 => Fate::Leaves,
        18 => Fate::Fails(429),
        _ => Fate::Fails(500),
    };
    let words = random.below(150) + 10;
    let speaks = random.below(3) == 0;
    let (prompt, answer) = (random.below(words) + 1, random.below(MAX_TOKENS) + 1);
    let part = |random: &mut Random, whole: u64| random.below(whole / 3 + 1);
    let (read, written) = (part(random, prompt), part(random, prompt));
    let (thought, said) = (part(random, answer), part(random, answer));
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
        "completion_tokens_details":
            {"reasoning_tokens": thought, "audio_tokens": if speaks { said } else { 0 }}});
    let tokens = random.below(8) + 2;
    let mut stand_in = json!({"tokens": tokens, "usage": usage, "fate": "unreported"});
    match fate {
        Fate::Whole => stand_in["fate"] = json!("reported"),
        Fate::Silent => stand_in["silent"] = json!(true),
        Fate::Cut => stand_in["cut_after"] = json!(tokens - 1),
        Fate::Leaves => stand_in["hang_after"] = json!(tokens - 1),
        Fate::Fails(status) => {
            stand_in["status"] = json!(status);
            stand_in["fate"] = json!("failed");
        }
    }
    let is_stream = matches!(fate, Fate::Cut | Fate::Leaves) || random.below(2) == 0;
    let user = if fate == Fate::Whole { "reported" } else { "unreported" };
    let body = json!({"model": MODELS[random.below(4) as usize], "max_tokens": MAX_TOKENS, "stream": is_stream,
        "user": user, "modalities": if speaks { json!(["text", "audio"]) } else { json!(["text"]) },
        "messages": [{"role": "user", "content": "word ".repeat(words as usize)}],
        "metadata": {"stand_in": stand_in}});
    (body, fate)
}

struct Ground {
    model: Model,
    nodes: Vec<Server>,
    secret: String,
    prices: Vec<Price>,
    _databases: Vec<Postgres>,
}

/// Rules that only count: what each caller's requests cost, by whether their usage is reported.
const RULES: &str = r#"default: false
rules:
  - {rule_id: money, identifier_type: composite, key_by: [end_user], unit: money, currency: USD, limit: "9000", calendar: year}
  - {rule_id: input, identifier_type: composite, key_by: [end_user], unit: input_tokens, limit: 900000000, calendar: year}
  - {rule_id: output, identifier_type: composite, key_by: [end_user], unit: output_tokens, limit: 900000000, calendar: year}
"#;

impl Ground {
    /// So many gateways on one store, and a key of $5.
    fn new(count: usize, store: &[String], random: &mut Random) -> Self {
        let model = Model::start();
        let prices: Vec<Price> = MODELS.iter().map(|_| Price::random(random)).collect();
        let table: String = MODELS.iter().zip(&prices).map(|(name, it)| it.yaml(name)).collect();
        let config = format!(
            "gateway:
  pools: {{gpu: {{targets: [{{url: '{}'}}]}}}}
  routes: [{{name: ai, kind: openai, pool: gpu}}]
prices:
{table}",
            model.url()
        );
        let mut args = store.to_vec();
        let databases: Vec<Postgres> = (1..count.min(2)).map(|_| Postgres::start()).collect();
        for database in &databases {
            args.extend(["--postgres".to_owned(), database.database()]);
        }
        let start = || {
            let builder = ServerBuilder::default().gateway().rules(RULES).config(&config);
            builder.args(&args).env("TOLLGATE_REDIS_TIMEOUT_MS", "5000").start()
        };
        let nodes: Vec<Server> = (0..count).map(|_| start()).collect();
        let budget = json!({"amount": "5", "currency": "USD", "calendar": "year"});
        let made = nodes[0].admin().put("keys", &json!({"name": "five", "budget": budget}));
        let secret = made["secret"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
        let ground = Self { model, nodes, secret, prices, _databases: databases };
        for node in &ground.nodes {
            eventually("the key is known", || {
                ground.figure(node, "virtual_key.budget", "x") == Some(0)
            });
        }
        ground
    }

    /// What a node says is used of a rule, for requests of this user.
    fn figure(&self, node: &Server, rule: &str, user: &str) -> Option<u64> {
        let body = json!({"apiKey": self.secret, "attributes": {"end_user": user},
            "money": {"currency": "USD", "amount": "0"}});
        let peeked = node.client().post("/rate-limit/peek", &body).json();
        let scopes = peeked["scopes"].as_array()?.clone();
        scopes.iter().find(|scope| scope["ruleId"] == rule)?["current"].as_u64()
    }

    fn used(&self, rule: &str, user: &str) -> u64 {
        self.figure(&self.nodes[0], rule, user).expect("a figure")
    }

    /// Sends a request and lets it meet its fate. Whether the budget had room for it.
    fn send(&self, random: &mut Random) -> bool {
        let node = &self.nodes[random.below(self.nodes.len() as u64) as usize];
        let (body, fate) = request(random);
        let bearer = format!("Bearer {}", self.secret);
        let mut answer =
            EventStream::post(node.gateway_addr(), PATH, &[("authorization", &bearer)], &body)
                .expect("an answer");
        if answer.header("x-should-retry") == Some("false") {
            let error = answer.json()["error"].clone();
            assert_eq!((answer.status, &error["code"]), (429, &json!("insufficient_quota")));
            return false;
        }
        match fate {
            Fate::Fails(status) => assert_eq!(answer.status, status),
            Fate::Leaves => drop(answer.event()),
            _ => {
                let (text, error) = answer.rest();
                assert_eq!((answer.status, error.is_some()), (200, fate == Fate::Cut), "{text}");
            }
        }
        true
    }

    /// What the ledger says was spent with the key.
    fn in_ledger(&self) -> u64 {
        let report = self.nodes[0].admin().get("usage/report?group_by=key");
        let nanos = |row: &Value| {
            let money = row["money"].as_str().unwrap_or("0");
            let (units, rest) = money.split_once('.').unwrap_or((money, ""));
            format!("{units}{rest:0<9}").parse::<u64>().expect("a decimal")
        };
        report["items"].as_array().expect("rows").iter().map(nanos).sum()
    }

    /// What the upstream charges for the requests that arrived with this fate: money, input, output.
    fn charged(&self, fate: &str) -> [u64; 3] {
        let mut sums = [0; 3];
        for arrived in self.model.arrived() {
            let body: Value = serde_json::from_slice(&arrived.body).expect("JSON");
            assert_eq!(body["max_tokens"], MAX_TOKENS);
            let stand_in = &body["metadata"]["stand_in"];
            if stand_in["fate"] != fate {
                continue;
            }
            let place = MODELS.iter().position(|name| body["model"] == *name).expect("a model");
            let usage = &stand_in["usage"];
            let count = |name: &str| usage[name].as_u64().expect("a count");
            let of = [
                self.prices[place].nanos(usage),
                count("prompt_tokens"),
                count("completion_tokens"),
            ];
            sums.iter_mut().zip(of).for_each(|(sum, it)| *sum += it);
        }
        sums
    }

    /// All clients spend until they are refused, and the last one alone.
    fn spend(&self, seed: u64) {
        let passed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let passed = &passed;
                scope.spawn(move || {
                    let mut random = Random(seed.wrapping_mul(1_000).wrapping_add(client));
                    let mut refused = 0;
                    while refused < REFUSALS {
                        if self.send(&mut random) {
                            passed.fetch_add(1, Ordering::Relaxed);
                        } else {
                            refused += 1;
                        }
                    }
                });
            }
        });
        let mut random = Random(seed);
        let settled = || {
            let all = self.used("money", "reported") + self.used("money", "unreported");
            self.model.active() == 0 && self.used("virtual_key.budget", "x") == all
        };
        eventually_within(SETTLED_WITHIN, "all are settled", settled);
        while self.send(&mut random) {
            eventually_within(SETTLED_WITHIN, "it is settled", || self.model.active() == 0);
        }
        println!("{} requests passed", passed.load(Ordering::Relaxed));
    }

    fn holds(&self, seed: u64) {
        self.spend(seed);
        let [money, input, output] = self.charged("reported");
        let exact = || {
            [("money", money), ("input", input), ("output", output)]
                .iter()
                .all(|(rule, sum)| self.used(rule, "reported") == *sum)
        };
        let shown = |user| ["money", "input", "output"].map(|rule| self.used(rule, user));
        let deadline = std::time::Instant::now() + SETTLED_WITHIN;
        while !exact() {
            let late = std::time::Instant::now() > deadline;
            let (counted, sums) = (shown("reported"), [money, input, output]);
            assert!(!late, "seed {seed}: counted {counted:?}, the upstream charged {sums:?}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let unreported = self.charged("unreported");
        let counted = shown("unreported");
        for (counted, used) in counted.iter().zip(&unreported) {
            assert!(counted >= used, "seed {seed}: {counted} counted of {used}");
        }
        let spent = self.used("virtual_key.budget", "x");
        println!(
            "seed {seed}: spent {spent}, reported {money}, unreported {counted:?} of {unreported:?}"
        );
        assert!(
            (LEAST_SPENT..=BUDGET).contains(&spent),
            "seed {seed}: {spent} spent of {BUDGET}: {money} reported, {counted:?} unreported"
        );
        assert_eq!(spent, money + counted[0], "seed {seed}");
        let in_ledger = || self.in_ledger();
        eventually_within(SETTLED_WITHIN, "the ledger is what the counters say", || {
            in_ledger() == spent
        });
        for node in &self.nodes {
            let metrics = node.client().get("/metrics").text();
            let debts =
                metrics.lines().find(|line| line.starts_with("rate_limiter_budget_debts_total{"));
            assert_eq!(debts, None, "seed {seed}");
        }
    }
}

fn run(count: usize, store: &[String]) {
    let seed = seed();
    println!("seed {seed} (TOLLGATE_BUDGET_SEED repeats it)");
    let mut random = Random(seed);
    Ground::new(count, store, &mut random).holds(seed);
}

#[test]
fn five_dollars_are_five_dollars_on_two_gateways() {
    let _alone = tollgate_e2e::alone();
    let redis = Redis::start();
    run(2, &["--redis".to_owned(), redis.url()]);
}

#[test]
fn five_dollars_are_five_dollars_on_a_cluster() {
    let _alone = tollgate_e2e::alone();
    let cluster = Cluster::start(3, 0);
    let mut store = vec!["--redis-cluster".to_owned()];
    for url in cluster.urls() {
        store.extend(["--redis".to_owned(), url]);
    }
    run(2, &store);
}

#[test]
fn five_dollars_are_five_dollars_in_memory() {
    let _alone = tollgate_e2e::alone();
    run(1, &[]);
}

const HARD: &str = r#"default: false
rules:
  - {rule_id: budget, identifier_type: global, unit: money, currency: USD, limit: "0.001", calendar: year, budget_mode: hard}
"#;

const PRICES: &str =
    "  openai: {default_output_tokens: 30, models: [{name: m, max_output_tokens: 50}, {name: n, bound_field: max_completion_tokens}]}
prices: [{model: '*', currency: USD, per_million: {input: '10', output: '10'}}]\n";

#[test]
fn an_upstream_is_asked_for_no_more_than_was_reserved() {
    let model = Model::start();
    let server = gateway(&model, &HARD.replace("0.001", "5"), PRICES).start();
    let without = |body: Value| {
        let mut body = body;
        body.as_object_mut().expect("an object").remove("max_tokens");
        body
    };
    let short = || chat(&json!({"tokens": 1}));
    let responses = json!({"model": "m", "input": "abcd", "max_output_tokens": null});
    for (path, body, field, bound) in [
        (PATH, short(), "max_tokens", 20),
        (PATH, with(short(), "max_tokens", json!(4_000)), "max_tokens", 50),
        (PATH, without(short()), "max_tokens", 30),
        (PATH, with(without(short()), "options", json!({"num_predict": 40})), "max_tokens", 40),
        (PATH, with(without(short()), "model", json!("n")), "max_completion_tokens", 30),
        ("/v1/completions", json!({"model": "m", "prompt": "abcd"}), "max_tokens", 30),
        ("/v1/responses", responses, "max_output_tokens", 30),
    ] {
        let mut answer =
            EventStream::post(server.gateway_addr(), path, &[], &body).expect("an answer");
        let (text, _) = answer.rest();
        assert_eq!(answer.status, 200, "{text}");
        let arrived = model.arrived();
        let sent: Value = serde_json::from_slice(&arrived[arrived.len() - 1].body).expect("JSON");
        assert_eq!(sent[field], bound, "{sent}");
        assert_eq!(sent["messages"], body["messages"]);
    }
    let dropped = with(short(), "drop_params", json!(true));
    assert_eq!(super::post(&server, &dropped).status, 400, "the bound must reach the model");
}

/// An upstream that ignores its bound makes a debt, which is logged and counted, and the budget is exhausted.
#[test]
fn usage_beyond_the_reservation_is_a_debt() {
    let model = Model::start();
    let server = gateway(&model, HARD, PRICES).start();
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 500, "total_tokens": 509});
    let body = chat(&json!({"tokens": 5, "usage": usage}));
    assert_eq!(super::post(&server, &body).rest().1.map(|error| error.to_string()), None);
    let metric = |name: &str| {
        let metrics = server.client().get("/metrics").text();
        let start = format!("rate_limiter_{name}_total{{currency=\"USD\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&start)?.parse::<u64>().ok())
    };
    eventually("the debt is counted", || metric("budget_debts") == Some(1));
    assert_eq!(spent(&server), 5_090_000, "what the upstream reported");
    assert!(
        metric("budget_debt_nanos").is_some_and(|nanos| (4_000_000..5_090_000).contains(&nanos))
    );
    assert!(server.log().contains("more than was reserved from a hard budget"), "{}", server.log());
    let mut refused = super::post(&server, &chat(&json!({})));
    assert_eq!((refused.status, refused.header("x-should-retry")), (429, Some("false")));
    assert_eq!(refused.json()["error"]["code"], "insufficient_quota");
}

#[test]
fn an_exhausted_budget_has_the_shape_of_each_api() {
    let model = Model::start();
    let server = super::anthropic::gateway(&model, HARD, PRICES).start();
    let body = with(super::anthropic::message(&json!({})), "max_tokens", json!(40));
    let send = || {
        EventStream::post(server.gateway_addr(), super::anthropic::PATH, &[], &body)
            .expect("an answer")
    };
    let mut answer = send();
    while answer.status == 200 {
        let _ = answer.rest();
        answer = send();
    }
    assert_eq!((answer.status, answer.header("x-should-retry")), (429, Some("false")));
    assert_eq!(answer.header("retry-after"), None);
    let error = answer.json();
    assert_eq!(
        (&error["type"], &error["error"]["type"]),
        (&json!("error"), &json!("rate_limit_error"))
    );
    assert_eq!(error["error"]["code"], "insufficient_quota", "{error}");
}

/// A stream that outruns its reservation is topped up, or ended.
#[test]
fn a_stream_beyond_its_reservation_is_ended_where_the_budget_is() {
    let model = Model::start();
    // 0.0006: a reservation of about 40 tokens, and a top-up or none.
    let server = gateway(&model, &HARD.replace("0.001", "0.0006"), PRICES).start();
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 20, "total_tokens": 29});
    // The upstream writes 400 tokens although it may write 20.
    let stand_in = json!({"tokens": 400, "usage": usage, "ignores_bound": true});
    let body = with(chat(&stand_in), "stream", json!(true));
    let (text, _) = super::post(&server, &body).rest();
    assert!(text.contains("was stopped"), "{text}");
    eventually("it is over", || model.active() == 0);
    let passed = text.matches("tok ").count();
    assert!(passed < 200, "{passed} tokens passed");
    eventually("it is paid", || spent(&server) >= 290_000);
}
