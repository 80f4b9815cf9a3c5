//! Virtual keys: issued by the admin API, enforced wherever a request shows one.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tollgate_e2e::{
    Admin, Client, EventStream, Model, PATIENCE, Response, Server, ServerBuilder, alone, eventually,
};
use tollgate_testkit::{Postgres, Redis};

const NO_RULES: &str = "default: false\nrules: []\n";

const CHAT: &str = "/v1/chat/completions";

/// A key with these further fields: its id and its secret.
fn create(admin: &mut Admin, more: &Value) -> (String, String) {
    let mut body = json!({"name": "test"});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    let made = admin.put("keys", &body);
    let text = |name: &str| made[name].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    (text("id"), text("secret"))
}

fn allow(server: &Server, secret: &str) -> Value {
    server.client().allow(&json!({"apiKey": secret}))
}

fn is_allowed(server: &Server, secret: &str) -> bool {
    allow(server, secret)["allowed"] == true
}

fn hex_digest(secret: &str) -> String {
    let digest = Sha256::digest(secret.as_bytes());
    digest.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn in_two_seconds() -> String {
    let format = ["-u", "-d", "+2 seconds", "+%Y-%m-%dT%H:%M:%SZ"];
    let date = std::process::Command::new("date").args(format).output().expect("the date");
    String::from_utf8_lossy(&date.stdout).trim().to_owned()
}

fn chat(model: &str) -> Value {
    json!({"model": model, "max_tokens": 20, "messages": [{"role": "user", "content": "abcd"}],
           "metadata": {"stand_in": {"tokens": 5}}})
}

fn post(server: &Server, secret: &str, body: &Value) -> EventStream {
    let bearer = format!("Bearer {secret}");
    EventStream::post(server.gateway_addr(), CHAT, &[("authorization", &bearer)], body).unwrap()
}

/// A gateway in front of a model, whose clients have virtual keys alone.
fn gateway(model: &Model, kind: &str) -> Server {
    let builder = ServerBuilder::default().gateway().rules(NO_RULES);
    let own = builder.file("own", "sk-operator");
    let prices = "
prices:
  - {model: '*', currency: USD, per_million: {input: '1', output: '1'}}";
    let config = format!(
        "gateway:
  pools: {{gpu: {{targets: [{{url: '{}'}}], api_key_file: '{}'}}}}
  routes: [{{name: ai, kind: {kind}, paths: ['/*'], pool: gpu}}]{prices}",
        model.url(),
        own.display()
    );
    builder.config(&config).start()
}

#[test]
fn a_key_is_shown_once_and_stored_as_a_hash() {
    let server = Server::start();
    let mut admin = server.admin();
    let (id, secret) = create(&mut admin, &json!({"owner": "ann", "tags": {"team": "search"}}));
    assert!(secret.starts_with("tg_live_") && secret.len() == "tg_live_".len() + 64);
    let shown = admin.get(&format!("keys/{id}"));
    assert_eq!((&shown["owner"], &shown["status"]), (&json!("ann"), &json!("active")));
    let audit = admin.get("audit?entry_kind=key");
    assert_eq!(audit["items"][0]["action"], "key.create");
    let digest = hex_digest(&secret);
    for text in [shown.to_string(), audit.to_string(), admin.get("keys").to_string()] {
        assert!(!text.contains(&secret) && !text.contains(&digest), "{text}");
    }
    let database = std::fs::read(server.dir().join("data/control.db")).unwrap();
    let log = std::fs::read(server.dir().join("data/control.db-wal")).unwrap_or_default();
    for bytes in [database, log] {
        assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()));
    }
    // A request with the key is one of its id and its owner.
    admin.put(
        "rules",
        &json!({"rule_id": "team", "identifier_type": "composite", "key_by": ["team", "user_id"],
                "limit": 2, "window": "365d", "algorithm": "fixed_window"}),
    );
    assert_eq!(allow(&server, &secret)["scopes"][0]["current"], 1);
    assert!(is_allowed(&server, &secret) && !is_allowed(&server, &secret), "by its tag and owner");
    // The id is no credential.
    assert_eq!(allow(&server, &id)["reason"], "INVALID_API_KEY");
    assert_eq!(allow(&server, "tg_live_0000")["reason"], "INVALID_API_KEY");
    assert!(is_allowed(&server, "an-ordinary-key"));
}

#[test]
fn limits_of_a_key_are_enforced_with_all_others() {
    let server = Server::start();
    let mut admin = server.admin();
    let limits = json!([{"limit": 3, "window": "365d", "algorithm": "fixed_window"},
                        {"unit": "tokens", "limit": 100, "window": "365d"}]);
    let (id, secret) = create(&mut admin, &json!({"limits": limits}));
    let (_, other) = create(&mut admin, &json!({"limits": limits}));
    admin.put(
        "rules",
        &json!({"rule_id": "all", "identifier_type": "global", "limit": 5, "window": "365d",
                "algorithm": "fixed_window"}),
    );
    for _ in 0..3 {
        assert!(is_allowed(&server, &secret));
    }
    let refused = allow(&server, &secret);
    assert_eq!(refused["scopeHit"], "VIRTUAL_KEY_REQUESTS", "{refused}");
    assert_eq!(refused["ruleId"], "virtual_key.requests");
    assert!(is_allowed(&server, &other), "keys with equal limits have counters of their own");
    // A refusal charged nothing on the rule of all.
    assert!(is_allowed(&server, &other) && !is_allowed(&server, &other));
    // A changed limit keeps what was counted; a rotated key its counters.
    let wider = json!({"name": "test", "limits": [
        {"limit": 4, "window": "365d", "algorithm": "fixed_window"}]});
    let put = admin.call("PUT", &format!("keys/{id}"), &[("if-match", "\"1\"")], Some(&wider));
    assert_eq!(put.status, 200, "{}", put.text());
    let stale = admin.call("PUT", &format!("keys/{id}"), &[("if-match", "\"1\"")], Some(&wider));
    assert_eq!(stale.status, 412);
    let rotated = admin.put(&format!("keys/{id}/rotate"), &json!({}));
    let next = rotated["secret"].as_str().unwrap();
    assert_eq!(allow(&server, &secret)["reason"], "INVALID_API_KEY", "no overlap was asked for");
    let now = server.client().post("/rate-limit/peek", &json!({"apiKey": next})).json();
    let own = now["scopes"].as_array().unwrap();
    let own = own.iter().find(|scope| scope["ruleId"] == "virtual_key.requests").unwrap();
    assert_eq!((&own["current"], &own["limit"]), (&json!(3), &json!(4)));
}

#[test]
fn a_rotated_secret_overlaps_and_disabled_keys_are_refused() {
    let server = Server::start();
    let mut admin = server.admin();
    let (id, first) = create(&mut admin, &json!({}));
    let rotated = admin.put(&format!("keys/{id}/rotate"), &json!({"overlap": "1h"}));
    let second = rotated["secret"].as_str().unwrap().to_owned();
    assert!(rotated["previous_secret_until"].is_string());
    assert!(is_allowed(&server, &first) && is_allowed(&server, &second));
    let (status, wrong) = admin.post(&format!("keys/{id}/rotate"), &json!({"overlap": "900d"}));
    assert_eq!((status, &wrong["field"]), (400, &json!("overlap")));
    assert_eq!(admin.put(&format!("keys/{id}/disable"), &json!({}))["status"], "disabled");
    assert!(!is_allowed(&server, &first) && !is_allowed(&server, &second));
    assert_eq!(admin.put(&format!("keys/{id}/enable"), &json!({}))["status"], "active");
    assert!(is_allowed(&server, &first) && is_allowed(&server, &second));
    // A rotation without an overlap ends both secrets before it.
    let third = admin.put(&format!("keys/{id}/rotate"), &json!({}))["secret"].clone();
    assert!(!is_allowed(&server, &first) && !is_allowed(&server, &second));
    assert!(is_allowed(&server, third.as_str().unwrap()));
    let (_, expiring) = create(&mut admin, &json!({"expires_at": in_two_seconds()}));
    eventually("it expires", || !is_allowed(&server, &expiring));
    assert_eq!(admin.delete(&format!("keys/{id}")).0, 200);
    assert_eq!(allow(&server, third.as_str().unwrap())["reason"], "INVALID_API_KEY");
    // Keys survive a restart, in every state.
    let (disabled_id, disabled) = create(&mut admin, &json!({}));
    let (_, active) = create(&mut admin, &json!({}));
    admin.put(&format!("keys/{disabled_id}/disable"), &json!({}));
    let mut server = server;
    server.restart();
    assert!(is_allowed(&server, &active) && !is_allowed(&server, &disabled));
}

#[test]
fn tenant_admins_manage_their_own_keys_and_loosen_nothing() {
    let server = Server::start();
    let mut admin = server.admin();
    let (_, token) = admin.token("tenant_admin", Some("acme"));
    let mut acme = Admin::with_token(server.admin_addr(), &token);
    let budget = json!({"limits": [{"limit": 1, "window": "1h"}], "tenant_id": "acme"});
    let (given, secret) = create(&mut admin, &budget);
    let (foreign, _) = create(&mut admin, &json!({"tenant_id": "umbrella"}));
    let (own, _) = create(&mut acme, &json!({}));
    assert_eq!(acme.get(&format!("keys/{own}"))["tenant_id"], "acme");
    let listed = acme.get("keys?tenant_id=umbrella");
    let ids: Vec<&str> =
        listed["items"].as_array().unwrap().iter().map(|key| key["id"].as_str().unwrap()).collect();
    assert!(ids.len() == 2 && ids.contains(&&*given) && ids.contains(&&*own), "{ids:?}");
    // Nothing of another tenant can be seen or changed.
    let update = json!({"name": "mine"});
    for (method, path) in [
        ("GET", format!("keys/{foreign}")),
        ("PUT", format!("keys/{foreign}")),
        ("DELETE", format!("keys/{foreign}")),
        ("POST", format!("keys/{foreign}/rotate")),
        ("POST", format!("keys/{foreign}/disable")),
        ("POST", format!("keys/{foreign}/enable")),
    ] {
        let body = if method == "PUT" { update.clone() } else { json!({}) };
        assert_eq!(acme.call(method, &path, &[], Some(&body)).status, 404, "{method} {path}");
    }
    let (status, answer) = acme.post("keys", &json!({"name": "x", "tenant_id": "umbrella"}));
    assert_eq!((status, &answer["field"]), (400, &json!("tenant_id")));
    let digest = json!({"name": "x", "sha256": "0".repeat(64)});
    assert_eq!(acme.post("keys", &digest).0, 400, "only the installation imports secrets");
    // What the installation has set can only be tightened.
    let put = acme.call("PUT", &format!("keys/{given}"), &[], Some(&update));
    assert_eq!(put.status, 409, "{}", put.text());
    admin.put(&format!("keys/{given}/disable"), &json!({}));
    assert_eq!(acme.post(&format!("keys/{given}/enable"), &json!({})).0, 409);
    admin.put(&format!("keys/{given}/enable"), &json!({}));
    assert!(is_allowed(&server, &secret) && !is_allowed(&server, &secret));
    assert_eq!(acme.post(&format!("keys/{given}/disable"), &json!({})).0, 200);
    assert_eq!(allow(&server, &secret)["reason"], "INVALID_API_KEY");
    // Its own keys are its own to change, until the installation disables one.
    assert_eq!(acme.call("PUT", &format!("keys/{own}"), &[], Some(&update)).status, 200);
    admin.put(&format!("keys/{own}/disable"), &json!({}));
    assert_eq!(acme.post(&format!("keys/{own}/enable"), &json!({})).0, 409);
}

/// Rules, tiers and lists of an installation that favour some users and attributes.
const FAVOURS: &str = "
default: false
allow_list: [{type: user_id, value: root}]
tiers: [gold]
client_tiers: [{type: user_id, value: vip, tier: gold}]
rules:
  - {rule_id: acme, scope: T, identifier_type: tenant_id, limit: 3, window: 365d, tier_limits: {gold: unlimited}}
  - {rule_id: gold, scope: T, identifier_type: tenant_id, limit: 100, window: 365d,
     applies_to: {attributes: {plan: gold}}}
  - {rule_id: user, identifier_type: user_id, limit: 1, window: 365d}
";

#[test]
fn a_key_of_a_tenant_admin_names_no_user_and_no_attribute() {
    let server = ServerBuilder::default().rules(FAVOURS).start();
    let mut admin = server.admin();
    let (_, token) = admin.token("tenant_admin", Some("acme"));
    let mut acme = Admin::with_token(server.admin_addr(), &token);
    let mut admitted = 0;
    let mut keys = Vec::new();
    for more in [
        json!({}),
        json!({"owner": "root"}),
        json!({"owner": "vip"}),
        json!({"owner": "victim"}),
        json!({"tags": {"plan": "gold"}}),
    ] {
        let (id, secret) = create(&mut acme, &more);
        eventually("the key is known", || allow(&server, &secret)["reason"] != "INVALID_API_KEY");
        admitted += (0..5).filter(|_| is_allowed(&server, &secret)).count();
        keys.push((id, secret));
    }
    assert!(admitted <= 3, "{admitted} passed a limit of 3");
    let victim = server.client().allow(&json!({"userId": "victim"}));
    assert_eq!(victim["allowed"], true, "another's counter was used: {victim}");
    // What a tenant's admin wrote does not count because an admin of the installation disabled and enabled the key.
    let (id, secret) = &keys[1];
    admin.put(&format!("keys/{id}/disable"), &json!({}));
    admin.put(&format!("keys/{id}/enable"), &json!({}));
    eventually("the key is enabled", || allow(&server, secret)["reason"] != "INVALID_API_KEY");
    assert!(!is_allowed(&server, secret));
    assert_eq!(admin.get(&format!("keys/{id}"))["labels_only"], true);
    // Nor because one gave it another name.
    let renamed = json!({"name": "renamed", "owner": "root"});
    assert_eq!(admin.call("PUT", &format!("keys/{id}"), &[], Some(&renamed)).status, 200);
    let shown = admin.get(&format!("keys/{id}"));
    assert_eq!((&shown["name"], &shown["labels_only"]), (&json!("renamed"), &json!(true)));
    assert!(!is_allowed(&server, secret));
    // A tenant's admin cannot say that they count; one of the installation can.
    let owned = json!({"name": "test", "owner": "root", "labels_only": false});
    let (status, error) = acme.post("keys", &owned);
    assert_eq!(status, 400, "{error}");
    assert_eq!(admin.call("PUT", &format!("keys/{id}"), &[], Some(&owned)).status, 200);
    eventually("the owner counts", || allow(&server, secret)["reason"] == "ALLOW_LISTED");
}

#[test]
fn wrong_keys_are_refused_by_field() {
    let server = Server::start();
    let mut admin = server.admin();
    for (body, field) in [
        (json!({}), "name"),
        (json!({"name": "x", "cow": 1}), "cow"),
        (json!({"name": "x", "limits": [{"limit": 1, "window": "sometimes"}]}), "limits.window"),
        (json!({"name": "x", "budget": {"amount": 5, "currency": "USD"}}), "budget"),
        (json!({"name": "x", "expires_at": "2001-01-01T00:00:00Z"}), "expires_at"),
        (json!({"name": "x", "sha256": "abc"}), "sha256"),
        (json!({"name": "x", "models": ["x".repeat(300)]}), "models"),
        (json!({"keys": []}), "keys"),
        (json!({"keys": [{"name": "a"}, {"name": "b", "tags": 1}]}), "keys[1].tags"),
    ] {
        let (status, answer) = admin.post("keys", &body);
        let said = answer["field"].as_str().unwrap_or_default();
        assert!(status == 400 && said.starts_with(field), "{body}: {status} {answer}");
    }
    assert_eq!(admin.get("keys")["items"], json!([]), "nothing was written");
    let twice = json!({"keys": [{"name": "a", "sha256": "1".repeat(64)}]});
    assert_eq!(admin.post("keys", &twice).0, 201);
    assert_eq!(admin.post("keys", &twice).0, 400, "a secret belongs to one key");
}

#[test]
fn a_model_behind_the_gateway_is_called_with_a_virtual_key() {
    let model = Model::start();
    let server = gateway(&model, "openai");
    let mut admin = server.admin();
    let (id, secret) = create(
        &mut admin,
        &json!({"models": ["m", "gpt-*"], "owner": "ann", "tenant_id": "acme",
                "budget": {"amount": "0.00005", "currency": "USD", "calendar": "year"}}),
    );
    // Anonymous callers and unknown keys are refused as soon as there is a key.
    let answer = EventStream::post(server.gateway_addr(), CHAT, &[], &chat("m")).unwrap();
    assert_eq!(answer.status, 401);
    let mut unknown = post(&server, "tg_live_1234", &chat("m"));
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (401, &json!("invalid_api_key"))
    );
    let mut other = post(&server, &secret, &chat("claude"));
    assert_eq!((other.status, &other.json()["error"]["code"]), (403, &json!("model_not_allowed")));
    assert_eq!(model.ledger().requests, 0, "nothing of that arrived");
    assert_eq!(post(&server, &secret, &chat("m")).rest().1.map(|error| error.to_string()), None);
    for arrived in model.arrived() {
        for name in ["authorization", "x-api-key"] {
            let value = arrived.header(name).unwrap_or_default();
            assert!(!value.contains(&secret), "the key's secret stays here");
        }
    }
    // The holder sees its own limits, on the gateway and on the API, and that charges nothing.
    let bearer = format!("Bearer {secret}");
    let holder = |addr, path: &str| -> Response {
        Client::connect(addr).unwrap().request("GET", path, &[("authorization", &bearer)], b"")
    };
    let used = |answer: &Response| answer.json()["budget"]["used"].clone();
    eventually("it is settled", || used(&holder(server.addr(), "/v1/budget")) == "0.000014");
    let at_gateway = holder(server.gateway_addr(), "/v1/budget");
    assert_eq!(used(&at_gateway), "0.000014", "{}", at_gateway.text());
    let usage = holder(server.addr(), "/v1/usage").json();
    assert_eq!((&usage["key_id"], &usage["limits"][0]["currency"]), (&json!(id), &json!("USD")));
    // The budget is reserved before the model is called.
    let mut last = post(&server, &secret, &chat("gpt-4o"));
    while last.status == 200 {
        let _ = last.rest();
        last = post(&server, &secret, &chat("gpt-4o"));
    }
    assert_eq!((last.status, &last.json()["error"]["code"]), (429, &json!("insufficient_quota")));
    let spent = holder(server.addr(), "/v1/budget").json();
    assert_eq!(spent["budget"]["limit"], "0.00005");
    admin.put(&format!("keys/{id}/disable"), &json!({}));
    assert_eq!(post(&server, &secret, &chat("m")).status, 401);
    assert_eq!(holder(server.addr(), "/v1/usage").status, 401);
}

#[test]
fn a_revoked_key_is_refused_in_the_shape_of_anthropic() {
    let model = Model::start();
    let server = gateway(&model, "anthropic");
    let mut admin = server.admin();
    let (id, secret) = create(&mut admin, &json!({"models": ["m"]}));
    let body = json!({"model": "m", "max_tokens": 20,
                      "messages": [{"role": "user", "content": "abcd"}], "stand_in": {"tokens": 5}});
    let post = |body: &Value| {
        let headers = [("x-api-key", secret.as_str())];
        EventStream::post(server.gateway_addr(), "/v1/messages", &headers, body).unwrap()
    };
    assert_eq!(post(&body).status, 200);
    let mut other = body.clone();
    other["model"] = json!("n");
    let mut answer = post(&other);
    let kind = answer.json()["error"]["type"].clone();
    assert_eq!((answer.status, kind), (403, json!("permission_error")));
    admin.put(&format!("keys/{id}/disable"), &json!({}));
    let mut answer = post(&body);
    let kind = answer.json()["error"]["type"].clone();
    assert_eq!((answer.status, kind), (401, json!("authentication_error")));
}

#[test]
fn a_stream_goes_on_when_its_key_is_disabled() {
    let model = Model::start();
    let server = gateway(&model, "openai");
    let mut admin = server.admin();
    let limits = json!([{"unit": "tokens", "limit": 1_000, "window": "1h"}]);
    let (id, secret) = create(&mut admin, &json!({"limits": limits}));
    let mut body = chat("m");
    body["stream"] = json!(true);
    body["metadata"]["stand_in"] = json!({"tokens": 5, "gated": true});
    let mut stream = post(&server, &secret, &body);
    assert_eq!(stream.status, 200);
    model.go_on(1);
    assert!(stream.event().unwrap().is_some());
    admin.put(&format!("keys/{id}/disable"), &json!({}));
    assert_eq!(post(&server, &secret, &chat("m")).status, 401, "the next request is refused");
    model.go_on(10);
    let (rest, error) = stream.rest();
    assert!(error.is_none() && rest.contains("[DONE]"), "{error:?} {rest}");
    // What it used is settled on the key's own limit.
    admin.put(&format!("keys/{id}/enable"), &json!({}));
    let bearer = format!("Bearer {secret}");
    eventually("it is settled", || {
        let mut client = server.client();
        let usage = client.request("GET", "/v1/usage", &[("authorization", &bearer)], b"").json();
        usage["limits"][0]["used"] == 14
    });
}

#[test]
fn a_revoked_key_is_refused_on_every_node() {
    let _alone = alone();
    let (redis, postgres) = (Redis::start(), Postgres::start());
    let database = postgres.database();
    let start = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        ServerBuilder::default().args(&args).env("TOLLGATE_REDIS_TIMEOUT_MS", "5000").start()
    };
    let url = redis.url();
    let nodes = [
        start(&["--redis", &url, "--postgres", &database]),
        start(&["--redis", &url, "--postgres", &database]),
        start(&["--role", "data", "--redis", &url]),
    ];
    let mut admin = nodes[0].admin();
    let mut took = Vec::new();
    for _ in 0..20 {
        let limits = json!([{"limit": 3, "window": "1h"}]);
        let (id, secret) = create(&mut admin, &json!({"limits": limits}));
        let mut clients: Vec<Client> = nodes.iter().map(Server::client).collect();
        let body = json!({"apiKey": secret});
        let ready = |client: &mut Client| {
            let peeked = client.post("/rate-limit/peek", &body).json();
            peeked["allowed"] == true && peeked["ruleId"] == "virtual_key.requests"
        };
        for client in &mut clients {
            eventually("the key arrives", || ready(client));
        }
        // One counter for all nodes.
        for client in &mut clients {
            assert_eq!(client.allow(&body)["allowed"], true);
        }
        assert_eq!(clients[2].allow(&body)["scopeHit"], "VIRTUAL_KEY_REQUESTS");
        let start = Instant::now();
        admin.put(&format!("keys/{id}/disable"), &json!({}));
        for client in &mut clients {
            while client.allow(&body)["reason"] != "INVALID_API_KEY" {
                assert!(start.elapsed() < PATIENCE, "a node still accepts the key");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        took.push(start.elapsed());
    }
    took.sort();
    println!("revoked on 3 nodes after p50 {:?}, most {:?}", took[10], took[19]);
}

#[test]
fn a_hundred_thousand_keys_are_imported() {
    let _alone = alone();
    let server = Server::start();
    let key = |number: usize| {
        json!({"name": format!("key {number}"), "sha256": hex_digest(&format!("sk-{number}")),
               "tenant_id": format!("tenant-{}", number % 1_000),
               "limits": [{"limit": 2, "window": "1h"}]})
    };
    let keys: Vec<Value> = (0..100_000).map(key).collect();
    let file = server.dir().join("keys.json");
    std::fs::write(&file, Value::Array(keys).to_string()).unwrap();
    let start = Instant::now();
    let mut import = std::process::Command::new(tollgate_e2e::server::binary());
    import.args(["keys", "import"]).arg(&file).env("TOLLGATE_TOKEN", tollgate_e2e::ADMIN_TOKEN);
    import.env("TOLLGATE_URL", format!("http://{}", server.admin_addr()));
    let imported = import.output().unwrap();
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    println!("100,000 keys after {:?}", start.elapsed());
    let mut admin = server.admin();
    let start = Instant::now();
    let (id, _) = create(&mut admin, &json!({}));
    println!("one more after {:?}", start.elapsed());
    assert!(is_allowed(&server, "sk-99999") && is_allowed(&server, "sk-99999"));
    assert!(!is_allowed(&server, "sk-99999") && is_allowed(&server, "sk-0"));
    assert_eq!(admin.delete(&format!("keys/{id}")).0, 200);
    let page = admin.get("keys?tenant_id=tenant-7&limit=1000");
    assert_eq!(page["items"].as_array().unwrap().len(), 100);
}
