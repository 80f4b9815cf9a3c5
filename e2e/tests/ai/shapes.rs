//! Every shape of the table under attack: 50 calls at once against a limit that admits two.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};
use tollgate_e2e::{EventStream, Model, Server, ServerBuilder, eventually};
use tollgate_testkit::{Redis, Shape};

/// Calls of each shape at once.
const CALLS: usize = 50;

/// Shapes whose calls are under way together.
const TOGETHER: usize = 8;

/// The shapes of an API, by the kind of route that it is for.
fn shapes_of(kind: &str) -> Vec<Shape> {
    if kind == "anthropic" { Shape::anthropic() } else { Shape::all() }
}

/// Each shape has a tenant of its own, with room for two charges.
fn start(model: &Model, kind: &str, shapes: &[Shape], mode: &str, redis: Option<&Redis>) -> Server {
    let (mut keys, mut rules) = (String::new(), "default: false\nrules:\n".to_owned());
    for (place, shape) in shapes.iter().enumerate() {
        let mut hash = String::new();
        for byte in Sha256::digest(format!("sk-{place}")) {
            write!(hash, "{byte:02x}").expect("a text");
        }
        writeln!(keys, "sha256:{hash} tenant_id=t{place}").expect("a line");
        let charge = if mode == "default" { shape.charge } else { shape.bound };
        // What uses no tokens is limited by its requests. Where a prompt is hidden, there is room for two of what a model
        // would use that reads it, and for one charge.
        let (unit, limit) = match (&shape.refused, charge) {
            (Some(_), _) => ("tokens", 1_000_000),
            (None, 0) => ("requests", 2),
            (None, charge) => {
                ("tokens", shape.tokens.map_or(2 * charge, |tokens| (2 * tokens).max(charge)))
            }
        };
        writeln!(
            rules,
            "  - {{rule_id: r{place}, identifier_type: tenant_id, unit: {unit}, limit: {limit}, window: 365d, algorithm: fixed_window, on_store_failure: closed, applies_to: {{tenants: [t{place}]}}}}"
        )
        .expect("a line");
    }
    let builder = ServerBuilder::default().gateway().rules(&rules);
    let keys = builder.file("keys", &keys);
    let config = format!(
        "identity: {{api_keys_file: '{}', api_key_as_bearer: true}}
gateway:
  pools: {{gpu: {{targets: [{{url: '{}'}}]}}}}
  routes: [{{name: ai, kind: {kind}, paths: ['/*'], pool: gpu}}]
  openai: {{estimate: {mode}, other_calls: forward}}",
        keys.display(),
        model.url()
    );
    let builder = builder.config(&config);
    match redis {
        None => builder.start(),
        Some(redis) => {
            let store = ["--redis".to_owned(), redis.url()];
            builder.args(&store).env("TOLLGATE_REDIS_TIMEOUT_MS", "10000").start()
        }
    }
}

/// How a call was answered: by the upstream, or with this status and error.
fn call(server: &Server, place: usize, shape: &Shape) -> (u16, String, Option<String>) {
    let bearer = format!("Bearer sk-{place}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let mut client = tollgate_e2e::Client::connect(server.gateway_addr()).expect("a connection");
    let answer = client.request("POST", &shape.path, &headers, shape.text().as_bytes());
    if answer.status == 200 {
        return (200, String::new(), None);
    }
    let error = answer.json()["error"].clone();
    let text = |name: &str| error[name].as_str().map(str::to_owned);
    // Anthropic's errors have a type alone.
    let code = text("code").or_else(|| text("type"));
    (answer.status, code.unwrap_or_default(), text("param"))
}

type Answers = BTreeMap<(u16, String, Option<String>), usize>;

/// The answers of all calls of these shapes, sent at once while the upstream answers nothing.
fn attack(server: &Server, model: &Model, shapes: &[(usize, &Shape)]) -> Vec<Answers> {
    let refused = std::sync::atomic::AtomicUsize::new(0);
    let expected = CALLS * shapes.len();
    model.hold(true);
    let mut answers: Vec<Answers> = vec![Answers::new(); shapes.len()];
    std::thread::scope(|scope| {
        let mut calls = Vec::new();
        for (at, (place, shape)) in shapes.iter().enumerate() {
            for _ in 0..CALLS {
                let refused = &refused;
                calls.push((
                    at,
                    scope.spawn(move || {
                        let answer = call(server, *place, shape);
                        if answer.0 != 200 {
                            refused.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        }
                        answer
                    }),
                ));
            }
        }
        // Every call is either refused or with the upstream: no charge is settled before all are decided.
        eventually("every call is decided", || {
            let refused = refused.load(std::sync::atomic::Ordering::SeqCst);
            refused + model.active() as usize == expected
        });
        model.hold(false);
        for (at, call) in calls {
            *answers[at].entry(call.join().expect("a call")).or_default() += 1;
        }
    });
    answers
}

fn check(kind: &str, mode: &str, redis: Option<&Redis>) {
    let shapes = shapes_of(kind);
    let model = Model::start();
    model.forget_arrivals();
    let server = start(&model, kind, &shapes, mode, redis);
    let all: Vec<(usize, &Shape)> = shapes.iter().enumerate().collect();
    let mut wrong = Vec::new();
    for some in all.chunks(TOGETHER) {
        for ((_, shape), answers) in some.iter().zip(attack(&server, &model, some)) {
            let admitted = answers.get(&(200, String::new(), None)).copied().unwrap_or(0);
            let is_anthropic = kind == "anthropic";
            let limited = if is_anthropic { "rate_limit_error" } else { "rate_limit_exceeded" };
            let refusal = match &shape.refused {
                Some(it) => {
                    (it.status, it.code.clone(), it.param.clone().filter(|_| !is_anthropic))
                }
                None => (429, limited.to_owned(), None),
            };
            let refused = answers.get(&refusal).copied().unwrap_or(0);
            let fits = match (&shape.refused, mode) {
                (Some(_), _) => admitted == 0,
                (None, "default") => (1..=3).contains(&admitted),
                (None, _) if shape.tokens.is_some() => (1..=2).contains(&admitted),
                (None, _) => admitted == 2,
            };
            if !fits || admitted + refused != CALLS {
                wrong.push(format!("{}: {answers:?}", shape.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{mode}, {} shapes:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn two_calls_of_every_shape_are_admitted_in_memory() {
    check("openai", "upper_bound", None);
}

#[test]
fn two_calls_of_every_shape_are_admitted_in_redis() {
    check("openai", "upper_bound", Some(&Redis::start()));
}

#[test]
fn default_estimates_admit_one_to_three_in_memory() {
    check("openai", "default", None);
}

#[test]
fn default_estimates_admit_one_to_three_in_redis() {
    check("openai", "default", Some(&Redis::start()));
}

#[test]
fn two_calls_of_every_shape_of_messages_are_admitted_in_memory() {
    check("anthropic", "upper_bound", None);
}

#[test]
fn two_calls_of_every_shape_of_messages_are_admitted_in_redis() {
    check("anthropic", "upper_bound", Some(&Redis::start()));
}

#[test]
fn default_estimates_of_messages_admit_one_to_three_in_memory() {
    check("anthropic", "default", None);
}

#[test]
fn default_estimates_of_messages_admit_one_to_three_in_redis() {
    check("anthropic", "default", Some(&Redis::start()));
}

/// Conversations that the upstream keeps are refused where nothing is said of their length.
#[test]
fn history_of_unknown_length_is_refused() {
    let model = Model::start();
    let server =
        super::gateway(&model, &super::rules(100_000, 100), "  openai: {history_tokens: 0}")
            .start();
    for (name, value) in [("previous_response_id", "resp_1"), ("conversation", "conv_1")] {
        let body =
            serde_json::json!({"model": "m", "max_output_tokens": 5, "input": "abcd", name: value});
        let answer = EventStream::post(server.gateway_addr(), "/v1/responses", &[], &body);
        let mut answer = answer.expect("an answer");
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &name.into()));
    }
    assert_eq!(model.ledger().requests, 0);
}
