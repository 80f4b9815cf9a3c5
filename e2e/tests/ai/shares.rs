//! Requests for models count among the open reservations of their tenant.

use serde_json::json;
use tollgate_e2e::{EventStream, Model, ServerBuilder, eventually};

use super::{PATH, chat, registered, rules, with};

/// What a tenant may have of 64 reservations: half of what it leaves free.
const SHARE: usize = 22;

#[test]
fn one_tenants_streams_do_not_take_all_reservations() {
    let dir = tempfile::tempdir().expect("a directory");
    let keys = dir.path().join("keys");
    std::fs::write(&keys, registered()).expect("a file");
    let model = Model::start();
    let config = format!(
        "max_reservations: 64
identity: {{api_keys_file: '{}', api_key_as_bearer: true}}
gateway:
  pools: {{gpu: {{targets: [{{url: '{}'}}]}}}}
  routes: [{{name: ai, kind: openai, pool: gpu}}]",
        keys.display(),
        model.url()
    );
    let rules = rules(1_000_000, 10_000);
    let server = ServerBuilder::default().gateway().rules(&rules).config(&config).start();
    let body = with(chat(&json!({"tokens": 5, "hang_after": 1})), "stream", json!(true));
    let open = |key: &str| {
        let bearer = format!("Bearer {key}");
        EventStream::post(server.gateway_addr(), PATH, &[("authorization", &bearer)], &body)
            .expect("an answer")
    };
    // Each stream hangs after its first token, and stays open.
    let mut streams: Vec<EventStream> = (0..SHARE).map(|_| open("sk-acme")).collect();
    assert!(streams.iter().all(|stream| stream.status == 200));
    let mut refused = open("sk-acme");
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").is_some());
    assert!(refused.json()["error"]["message"].is_string(), "in the words of the API");
    let reserve = |tenant: &str| {
        let body = json!({"tenantId": tenant, "ttlMs": 600_000});
        server.client().post("/rate-limit/reserve", &body).status
    };
    assert_eq!(reserve("acme"), 503, "one share for the API and the gateway");
    assert_eq!(open("sk-other").status, 200, "others have theirs");
    assert_eq!(reserve("other"), 200);
    // Streams that end make room.
    streams.truncate(SHARE / 2);
    eventually("there is room again", || open("sk-acme").status == 200);
}
