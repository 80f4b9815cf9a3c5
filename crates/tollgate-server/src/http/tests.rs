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
