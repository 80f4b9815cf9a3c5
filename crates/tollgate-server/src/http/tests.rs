//! The API without a network.

use http_body_util::{BodyExt, Full};
use tollgate_engine::ManualClock;
use tollgate_policy::RuleSet;
use tollgate_store::MemoryStore;

use super::*;
use crate::config::Overrides;
use crate::control::Source;

const RULES: &str = "
default: false
rules:
- {rule_id: slots, scope: s, identifier_type: user_id, unit: concurrency, limit: 2}
";

fn api() -> Api<MemoryStore> {
    let rules = RuleSet::from_yaml(RULES, "t").unwrap();
    let clock = ManualClock::new(1_700_000_000_000_000_000);
    let engine = Engine::new(MemoryStore::new(100), Arc::new(clock), rules);
    let config = Config::load(None, std::iter::empty(), &Overrides::default()).unwrap();
    Api::new(Arc::new(engine), Arc::new(config), Box::new(String::new))
}

async fn answer(api: &Arc<Api<MemoryStore>>, request: Request<&'static str>) -> (u16, String) {
    let request = request.map(|body| Full::new(Bytes::from_static(body.as_bytes())));
    let answer = api.answer(request, Some([127, 0, 0, 1].into())).await.unwrap();
    let status = answer.status().as_u16();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

/// The answer has no id by which a slot could be released.
#[tokio::test]
async fn a_check_takes_no_slot() {
    let api = Arc::new(api());
    for _ in 0..3 {
        let request = Request::post("/rate-limit/check")
            .header("host", "localhost")
            .body(r#"{"userId": "ann", "modelId": "m"}"#)
            .unwrap();
        let (status, body) = answer(&api, request).await;
        assert_eq!(status, 409, "{body}");
        assert!(body.contains("SLOT_NOT_HELD") && body.contains("reserve"), "{body}");
    }
}

#[tokio::test]
async fn a_node_without_rules_is_not_ready_while_its_database_is_migrated() {
    let figures = Arc::new(ControlFigures::default());
    let api = Arc::new(api().reporting(Arc::clone(&figures)));
    let ask = |path| {
        let request = Request::get(path).header("host", "localhost").body("").unwrap();
        answer(&api, request)
    };
    let migrating = figures.migrating();
    assert_eq!(ask("/readyz").await, (503, "migrating the database\n".to_owned()));
    assert_eq!(ask("/healthcheck").await.0, 500);
    assert_eq!(ask("/healthz").await.0, 200);
    drop(migrating);
    assert_eq!(ask("/readyz").await.0, 200);

    // Rules that are there are enforced meanwhile.
    let _migrating = figures.migrating();
    figures.in_force(Source::Kept, 1);
    assert_eq!(ask("/readyz").await.0, 200);
}

#[tokio::test]
async fn a_node_whose_rules_have_not_arrived_is_not_ready() {
    let figures = Arc::new(ControlFigures::default());
    let api = Arc::new(api().reporting(Arc::clone(&figures)));
    let ask = |path| {
        let request = Request::get(path).header("host", "localhost").body("").unwrap();
        answer(&api, request)
    };
    assert_eq!(ask("/readyz").await.0, 200, "no rules are to come");
    figures.await_rules();
    let (status, text) = ask("/readyz").await;
    assert!(status == 503 && text.starts_with("no rule set yet"), "{status} {text}");
    assert_eq!(ask("/healthcheck").await.0, 500);
    assert_eq!(ask("/healthz").await.0, 200);
    figures.know_there_are_no_rules();
    assert_eq!(ask("/readyz").await.0, 200, "the source has none");
    figures.await_rules();
    figures.in_force(Source::Redis, 1);
    assert_eq!(ask("/readyz").await.0, 200);
}

const LOGIN: &str = "
default: false
rules:
- {rule_id: login, identifier_type: global, limit: 0, window: 1m, algorithm: fixed_window, applies_to: {endpoints: [/login]}}
";

/// No spelling of an endpoint passes a rule on it, whichever call it is in.
#[tokio::test]
async fn an_endpoint_is_a_path_or_the_path_of_a_url() {
    let api = Calls::new(LOGIN);
    let auth = async |target: &str| {
        let request = Request::get("/rate-limit/auth").header("host", "localhost");
        let request = request.header("x-original-uri", target).body(Full::default()).unwrap();
        let inner = &api.0;
        inner.answer(request, Some([127, 0, 0, 1].into())).await.unwrap().status().as_u16()
    };
    for target in ["/login", "http://x/login", "https://x:1/a/../login?b", "//x/login", "///login"]
    {
        let asked = serde_json::json!({"endpoint": target});
        for call in ["allow", "peek", "reserve"] {
            let (status, answer) = api.call(call, asked.clone()).await;
            let shown = (status, &answer["ruleId"], &answer["allowed"]);
            assert_eq!(shown, (200, &"login".into(), &false.into()), "{call} {target}: {answer}");
        }
        let (_, batch) = api.call("allow/batch", serde_json::json!({"requests": [asked]})).await;
        assert_eq!(batch["decisions"][0]["allowed"], false, "{target}: {batch}");
        assert_eq!(auth(target).await, 429, "{target}");
    }
    for target in ["login", "*", "\\login", "http:/login", "http:///login"] {
        let asked = serde_json::json!({"endpoint": target});
        for call in ["allow", "peek", "reserve"] {
            let (status, answer) = api.call(call, asked.clone()).await;
            let shown = (status, &answer["error"]["field"]);
            assert_eq!(shown, (400, &"endpoint".into()), "{call} {target}: {answer}");
        }
        let (_, batch) = api.call("allow/batch", serde_json::json!({"requests": [asked]})).await;
        assert!(batch.to_string().contains("endpoint"), "{target}: {batch}");
        assert_eq!(auth(target).await, 400, "{target}");
    }
}

/// Of two tokens, one may be a client's own that a proxy has passed on.
#[tokio::test]
async fn two_tokens_are_ambiguous() {
    let mut config = Config::load(None, std::iter::empty(), &Overrides::default()).unwrap();
    config.data_auth = DataAuth::Token(vec![Sha256::digest(b"good").into()]);
    let mut api = api();
    api.config = Arc::new(config);
    let api = Arc::new(api);
    let ask = |tokens: &[&str]| {
        let request = Request::post("/rate-limit/allow").header("host", "localhost");
        let request = tokens.iter().fold(request, |request, token| {
            request.header("authorization", format!("Bearer {token}"))
        });
        answer(&api, request.body(r#"{"userId": "ann"}"#).unwrap())
    };
    assert_eq!(ask(&["good"]).await.0, 200);
    assert_eq!(ask(&["bad"]).await.0, 401);
    for tokens in [["good", "good"], ["good", "bad"], ["bad", "good"]] {
        let (status, body) = ask(&tokens).await;
        assert!(status == 400 && body.contains("\"field\":\"authorization\""), "{status} {body}");
    }
}

const BUDGETS: &str = r#"
default: false
rules:
- {rule_id: budget, identifier_type: user_id, unit: money, currency: USD, limit: "0.01", calendar: month}
- {rule_id: input, identifier_type: user_id, unit: input_tokens, limit: 5000, calendar: day}
"#;

const PRICES: &str = r#"
prices: [{model: gpt-4, currency: USD, per_million: {input: "2.50", output: "10", cached_read: "1.25"}}]
"#;

/// An API with rules, and how to call it.
struct Calls(Arc<Api<MemoryStore>>);

impl Calls {
    fn new(rules: &str) -> Self {
        let rules = RuleSet::from_yaml(rules, "t").unwrap();
        let clock = ManualClock::new(1_700_000_000_000_000_000);
        let engine = Engine::new(MemoryStore::new(100), Arc::new(clock), rules);
        engine.swap_prices(tollgate_policy::prices::PriceTable::parse(PRICES, "t").unwrap());
        let config = Config::load(None, std::iter::empty(), &Overrides::default()).unwrap();
        Self(Arc::new(Api::new(Arc::new(engine), Arc::new(config), Box::new(String::new))))
    }

    async fn call(&self, path: &str, body: serde_json::Value) -> (u16, serde_json::Value) {
        let body = Full::new(Bytes::from(body.to_string()));
        let request = Request::post(format!("/rate-limit/{path}")).header("host", "localhost");
        let api = &self.0;
        let answer = api.answer(request.body(body).unwrap(), Some([127, 0, 0, 1].into()));
        let answer = answer.await.unwrap();
        let status = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap())
    }
}

#[tokio::test]
async fn a_usage_is_priced_reserved_and_settled() {
    let api = Calls::new(BUDGETS);
    let usage = serde_json::json!({"input": 1000, "output": 500});
    let asked = serde_json::json!({"userId": "ann", "modelId": "gpt-4", "usage": usage});
    let (status, answer) = api.call("reserve", asked.clone()).await;
    assert_eq!((status, &answer["allowed"]), (200, &true.into()), "{answer}");
    let money = serde_json::json!(
        {"currency": "USD", "limit": "0.01", "current": "0.0075", "remaining": "0.0025"});
    assert_eq!(answer["scopes"][0]["money"], money, "{answer}");
    assert_eq!(answer["scopes"][0]["current"], 7_500_000);
    assert_eq!(answer["scopes"][1]["current"], 1000);
    let (_, refused) = api.call("allow", asked).await;
    assert_eq!(refused["reason"], "HIT_BUDGET_LIMIT", "{refused}");

    let truth = serde_json::json!({"reservationId": answer["reservationId"],
        "usage": {"input": 800, "cachedRead": 400, "output": 100}});
    let (status, settled) = api.call("settle", truth.clone()).await;
    let refunded =
        serde_json::json!({"inputTokens": 200, "money": {"currency": "USD", "amount": "0.005"}});
    assert_eq!((status, &settled["refunded"]), (200, &refunded), "{settled}");
    assert_eq!(api.call("settle", truth).await.1, settled, "once");
    let look = serde_json::json!({"userId": "ann", "money": {"currency": "USD", "amount": "0"}});
    let (_, seen) = api.call("peek", look).await;
    assert_eq!(seen["scopes"][0]["money"]["current"], "0.0025", "{seen}");
}

#[tokio::test]
async fn amounts_that_cannot_be_priced_are_refused_and_named() {
    let api = Calls::new(BUDGETS);
    let usage = serde_json::json!({"input": 1});
    for (body, code, field) in [
        (serde_json::json!({"modelId": "llama"}), "UNPRICED_MODEL", "modelId"),
        (serde_json::json!({"usage": usage}), "UNPRICED_MODEL", "modelId"),
        (
            serde_json::json!({"money": {"currency": "EUR", "amount": "1"}}),
            "OTHER_CURRENCY",
            "money",
        ),
        (
            serde_json::json!({"money": {"currency": "USD", "amount": 1}}),
            "INVALID_REQUEST",
            "money",
        ),
        (
            serde_json::json!({"money": {"currency": "USD", "amount": "-1"}}),
            "INVALID_REQUEST",
            "money.amount",
        ),
        (serde_json::json!({"usage": {"inputs": 1}}), "INVALID_REQUEST", "usage"),
        (serde_json::json!({"usage": {"input": -1}}), "INVALID_REQUEST", "usage"),
        (serde_json::json!({"inputTokens": "1"}), "INVALID_REQUEST", "inputTokens"),
    ] {
        let mut asked = body;
        asked["userId"] = "ann".into();
        let (status, answer) = api.call("allow", asked.clone()).await;
        let shown = (status, &answer["error"]["code"], &answer["error"]["field"]);
        assert_eq!(shown, (400, &code.into(), &field.into()), "{asked}: {answer}");
    }
    let look = serde_json::json!({"userId": "ann", "money": {"currency": "USD", "amount": "0"}});
    assert_eq!(api.call("peek", look).await.1["scopes"][0]["current"], 0);
}
