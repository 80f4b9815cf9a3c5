//! Virtual keys: how they are read, found and enforced.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_policy::{
    Attributes, KeyRefusal, Known, RuleSet, SECRET_PREFIX, Unit, VirtualKeys, check_key, key_bucket,
};

const SECOND: u64 = 1_000_000_000;

fn key(number: u32, more: &Value) -> Value {
    let mut body = json!({
        "id": format!("key_{:02x}00000000{number:06x}", number % 256),
        "digest": format!("{:064x}", u128::from(number) << 100 | 7),
    });
    let fields = body.as_object_mut().unwrap();
    for (name, value) in more.as_object().unwrap() {
        fields.insert(name.clone(), value.clone());
    }
    body
}

fn id(body: &Value) -> &str {
    body["id"].as_str().unwrap()
}

fn digest(body: &Value) -> [u8; 32] {
    tollgate_policy::parse_digest(body["digest"].as_str().unwrap()).unwrap()
}

fn with_bucket(keys: &VirtualKeys, bucket: u16, bodies: &[Value]) -> VirtualKeys {
    keys.with_buckets([(bucket, bodies)]).unwrap()
}

fn keys(bodies: &[Value]) -> VirtualKeys {
    let of = |bucket| {
        let own = bodies.iter().filter(move |body| key_bucket(id(body)) == Some(bucket));
        (bucket, own.cloned().collect::<Vec<Value>>())
    };
    let buckets: Vec<(u16, Vec<Value>)> = (0..256).map(of).collect();
    let buckets = buckets.iter().map(|(bucket, bodies)| (*bucket, bodies.as_slice()));
    VirtualKeys::default().with_buckets(buckets).unwrap()
}

fn set(rules: &str, bodies: &[Value]) -> RuleSet {
    let mut set = RuleSet::from_yaml(rules, "t").unwrap();
    set.set_virtual_keys(Arc::new(keys(bodies)));
    set
}

#[test]
fn limits_of_a_key_come_on_top_of_all_rules() {
    let limits = json!([
        {"limit": 10, "window": "1m"},
        {"limit": 100, "window": "1h"},
        {"unit": "tokens", "limit": 5_000, "window": "1d", "algorithm": "fixed_window"},
    ]);
    let budget = json!({"amount": "5.00", "currency": "USD", "calendar": "month"});
    let one = key(1, &json!({"limits": limits, "budget": budget}));
    let rules = "rules: [{rule_id: per-key, identifier_type: api_key, limit: 3, window: 1m}]";
    let set = set(rules, std::slice::from_ref(&one));
    let mut request = Attributes::default();
    request.set(Known::ApiKey, id(&one));
    let resolution = set.resolve(&request, SECOND);
    let applied: Vec<_> = resolution
        .enforced
        .iter()
        .map(|applied| (applied.rule.id.as_str(), applied.rule.unit, applied.rule.limits.len()))
        .collect();
    let expected = [
        ("virtual_key.budget", Unit::Money, 1),
        ("virtual_key.requests", Unit::Requests, 2),
        ("virtual_key.tokens", Unit::Tokens, 1),
        ("per-key", Unit::Requests, 1),
    ];
    assert_eq!(applied, expected);
    assert!(resolution.enforced.iter().all(|applied| applied.key[..] == [id(&one)]));
}

#[test]
fn a_key_neither_replaces_the_default_rule_nor_counts_as_a_match() {
    let one = key(1, &json!({"limits": [{"limit": 1_000_000, "window": "1m"}]}));
    let mut request = Attributes::default();
    request.set(Known::ApiKey, id(&one));
    request.set(Known::UserId, "ann");
    request.set(Known::ModelId, "m");
    let with_default = set("", std::slice::from_ref(&one));
    let resolution = with_default.resolve(&request, SECOND);
    assert!(resolution.enforced.iter().any(|applied| applied.rule.is_default));
    let without = set("default: false\nno_match: deny", std::slice::from_ref(&one));
    assert!(without.resolve(&request, SECOND).has_unmatched_reading());
}

#[test]
fn disabled_expired_and_unknown_keys_are_refused() {
    let bodies = [
        key(1, &json!({"expires_at": "1970-01-01T00:00:10Z"})),
        key(2, &json!({"disabled_at": "1970-01-01T00:00:00Z"})),
        key(3, &json!({"models": ["gpt-4o", "claude-*"]})),
    ];
    let set = set("", &bodies);
    let refused = |api_key: &str, model: &str, at: u64| {
        let mut request = Attributes::default();
        request.set(Known::ApiKey, api_key);
        request.set(Known::ModelId, model);
        set.refused_key(&request, at)
    };
    let [expiring, disabled, restricted] = [0, 1, 2].map(|place| id(&bodies[place]));
    assert_eq!(refused(expiring, "m", 10 * SECOND - 1), None);
    assert_eq!(refused(expiring, "m", 10 * SECOND), Some(KeyRefusal::Invalid));
    assert_eq!(refused(disabled, "m", 0), Some(KeyRefusal::Invalid));
    assert_eq!(refused(restricted, "gpt-4o", 0), None);
    assert_eq!(refused(restricted, "claude-9-opus", 0), None);
    assert_eq!(refused(restricted, "gpt-4o-mini", 0), Some(KeyRefusal::Model));
    assert_eq!(refused(restricted, "", 0), None, "a request without a model");
    assert_eq!(refused(&format!("{SECRET_PREFIX}x"), "m", 0), Some(KeyRefusal::Invalid));
    assert_eq!(refused("an-ordinary-key", "m", 0), None);
}

#[test]
fn the_secret_before_a_rotation_is_found_until_its_end() {
    let before = key(1, &json!({}));
    let former = digest(&before);
    let mut after = key(900, &json!({"id": id(&before)}));
    after["previous"] = json!({"digest": before["digest"], "until": "1970-01-01T00:00:05Z"});
    let first = keys(std::slice::from_ref(&before));
    let bucket = key_bucket(id(&before)).unwrap();
    let rotated = with_bucket(&first, bucket, std::slice::from_ref(&after));
    let found = |keys: &VirtualKeys, digest, at| keys.find(&digest, at).is_some();
    assert!(found(&rotated, digest(&after), 0) && found(&rotated, former, 5 * SECOND - 1));
    assert!(!found(&rotated, former, 5 * SECOND));
    assert!(found(&first, former, u64::MAX), "the set before stays as it was");
    let gone = with_bucket(&rotated, bucket, &[]);
    assert!(!found(&gone, former, 0) && !found(&gone, digest(&after), 0) && gone.is_empty());
}

#[test]
fn keys_with_equal_limits_share_them() {
    let of = |number: u32, limit: u32| {
        key(number, &json!({"limits": [{"limit": limit, "window": "1m"}]}))
    };
    let bodies: Vec<Value> = (0..2_000).map(|number| of(number, number % 4)).collect();
    let all = keys(&bodies);
    assert_eq!((all.len(), all.distinct_limit_sets()), (2_000, 4));
    let fewer = (0..256).fold(all, |keys, bucket| {
        let own = bodies.iter().filter(|body| key_bucket(id(body)) == Some(bucket));
        let own: Vec<Value> = own.filter(|body| body["limits"][0]["limit"] == 1).cloned().collect();
        with_bucket(&keys, bucket, &own)
    });
    assert_eq!((fewer.len(), fewer.distinct_limit_sets()), (500, 1));
}

#[test]
fn wrong_keys_name_the_field() {
    for (more, field) in [
        (json!({"limits": [{"limit": -1, "window": "1m"}]}), "limits.limit"),
        (json!({"limits": [{"limit": 1}]}), "limits"),
        (json!({"limits": [{"limit": 1, "window": "1m", "scope": "x"}]}), "limits"),
        (json!({"limits": [{"limit": 1, "window": "1m", "unit": "cows"}]}), "limits.unit"),
        (
            json!({"budget": {"amount": "1e9", "currency": "USD", "calendar": "day"}}),
            "budget.amount",
        ),
        (json!({"budget": {"amount": "1", "currency": "USD", "prepaid": true}}), "budget.prepaid"),
        (json!({"budget": {"amount": "1", "calendar": "day"}}), "budget.currency"),
        (json!({"models": []}), "models"),
        (json!({"tags": {"user_id": "x"}}), "tags"),
        (json!({"owner": "x".repeat(257)}), "owner"),
        (json!({"expires_at": "tomorrow"}), "expires_at"),
        (json!({"digest": "00"}), "digest"),
        (json!({"id": "key_XY"}), "id"),
    ] {
        let problem = check_key(&key(1, &more)).unwrap_err();
        assert!(problem.field.starts_with(field), "{more}: {problem}");
    }
    let reserved =
        "rules: [{rule_id: virtual_key.requests, limit: 1, window: 1m, identifier_type: global}]";
    assert!(RuleSet::from_yaml(reserved, "t").is_err());
}
