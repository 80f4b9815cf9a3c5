//! Properties: the index finds what a scan finds, and no text makes the reader panic.

#![expect(clippy::indexing_slicing, reason = "generators of a test, outside its functions")]

use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate_policy::{Applied, Attributes, Known, RuleSet, normalize_path};

const NOW: u64 = 1_767_225_600_000_000_000;

fn few(values: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    prop_oneof![
        3 => Just(Vec::new()),
        2 => proptest::sample::subsequence(values, 1..=2),
    ]
}

const PATTERNS: &[&str] = &[
    "*", "/a", "/a/*", "/a/b", "/a/b/*", "/{x}", "/a/{x}", "/a/{y}/c", "/*/b", "/{x}/{y}", "/b/*/c",
];
const PATHS: &[&str] = &["/", "/a", "/a/b", "/a/b/c", "/b", "/b/b", "/b/x/c", "/a/c/", "/c/d/e/f"];
const SCOPES: &[&str] = &["S1", "S2", "S3", "S4", "USER_MODEL", "QOS"];

prop_compose! {
    fn applies()(
        endpoints in few(PATTERNS),
        methods in few(&["GET", "post"]),
        user_tiers in few(&["free", "pro"]),
        models in few(&["m1", "m2", "m3"]),
        client_types in few(&["INTERNAL", "PARTNER"]),
        tenants in few(&["t1", "t2", "t3"]),
        users in few(&["u1", "u2"]),
        x in few(&["a", "b", "v*"]),
        region in few(&["eu", "us", "*"]),
    ) -> Value {
        let mut attributes = serde_json::Map::new();
        if !x.is_empty() { attributes.insert("x".into(), json!(x)); }
        if !region.is_empty() { attributes.insert("region".into(), json!(region)); }
        json!({
            "endpoints": endpoints, "methods": methods, "user_tiers": user_tiers, "models": models,
            "client_types": client_types, "tenants": tenants, "users": users,
            "attributes": attributes,
        })
    }
}

prop_compose! {
    fn rule()(
        applies in prop_oneof![1 => Just(json!({})), 4 => applies()],
        scope in 0..SCOPES.len(),
        overrides in proptest::collection::vec(0..SCOPES.len(), 0..2),
        key in proptest::sample::subsequence(&["user_id", "tenant_id", "client", "x", "region"][..], 0..=2),
        priority in 0..3,
        log_only in proptest::bool::weighted(0.2),
        window in prop_oneof![Just((false, false)), Just((true, false)), Just((false, true))],
    ) -> Value {
        let mut rule = json!({
            "scope": SCOPES[scope], "limit": 5, "window": "1s", "priority": priority,
            "applies_to": applies, "action": if log_only { "log_only" } else { "reject" },
        });
        if !key.is_empty() { rule["key_by"] = json!(key); }
        let overrides: Vec<&str> =
            overrides.iter().filter(|o| **o != scope).map(|o| SCOPES[*o]).collect();
        rule["overrides"] = json!(overrides);
        if window.0 { rule["starts_at"] = json!("2026-06-01T00:00:00Z"); }
        if window.1 { rule["ends_at"] = json!("2026-06-01T00:00:00Z"); }
        rule
    }
}

type Request = Vec<(&'static str, Option<&'static str>)>;

fn request() -> impl Strategy<Value = Request> {
    let maybe = |name, values: &'static [&'static str]| {
        proptest::option::weighted(0.7, proptest::sample::select(values))
            .prop_map(move |v| (name, v))
    };
    (
        maybe("endpoint", PATHS),
        maybe("method", &["GET", "POST", "get"]),
        maybe("tier", &["free", "pro"]),
        maybe("model_id", &["m1", "m2", "m3", "m4"]),
        maybe("client_type", &["INTERNAL", "PARTNER"]),
        maybe("tenant_id", &["t1", "t2", "t3", "t4"]),
        maybe("user_id", &["u1", "u2", "u3"]),
        maybe("x", &["a", "b", "v1"]),
        maybe("region", &["eu", "us", "ap"]),
        maybe("ip", &["10.0.0.1"]),
    )
        .prop_map(|(a, b, c, d, e, f, g, h, i, j)| vec![a, b, c, d, e, f, g, h, i, j])
}

fn shown(applied: &[Applied<'_, '_>]) -> Vec<(String, Vec<String>)> {
    let key = |one: &Applied<'_, '_>| one.key.iter().map(ToString::to_string).collect();
    applied.iter().map(|one| (one.rule.id.clone(), key(one))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_index_finds_what_a_scan_finds(
        mut rules in proptest::collection::vec(rule(), 0..24),
        requests in proptest::collection::vec(request(), 4),
        late in any::<bool>(),
    ) {
        for (index, rule) in rules.iter_mut().enumerate() {
            rule["rule_id"] = json!(format!("r{index}"));
        }
        // Every scope exists, so that every override names one.
        for (index, scope) in SCOPES.iter().enumerate() {
            rules.push(json!({
                "rule_id": format!("z{index}"), "scope": scope, "limit": 1, "window": "1s",
                "applies_to": {"domains": ["never"]},
            }));
        }
        let set = RuleSet::from_yaml(&json!({"rules": rules}).to_string(), "random");
        let set = match set {
            Ok(set) => set,
            Err(problems) => return Err(TestCaseError::fail(problems.to_string())),
        };
        let now = if late { NOW + 300 * 86_400_000_000_000 } else { NOW };
        for request in &requests {
            let mut attributes = Attributes::default();
            for (name, value) in request {
                if let Some(value) = value {
                    attributes.push_extra(name, value);
                }
            }
            let fast = set.resolve(&attributes, now);
            let slow = set.resolve_by_scan(&attributes, now);
            prop_assert_eq!(shown(&fast.enforced), shown(&slow.enforced), "{:?}", request);
            prop_assert_eq!(shown(&fast.observed), shown(&slow.observed), "{:?}", request);
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let text = String::from_utf8_lossy(&bytes);
        let _ = RuleSet::from_yaml(&text, "noise");
    }

    #[test]
    fn no_yamlish_text_makes_the_reader_panic(
        text in "(rules|default|tiers|limit|window|: |- |\\[|\\]|\\{|\\}|,|\n|  |&a |\\*a|\"|'|#|!|\\||>|-1|1s|~|%|\\?|---){0,60}",
    ) {
        let _ = RuleSet::from_yaml(&text, "noise");
    }

    #[test]
    fn no_mutation_of_a_good_file_makes_the_reader_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6),
    ) {
        let mut bytes = include_bytes!("good.yaml").to_vec();
        for (index, byte, kind) in edits {
            let place = index.index(bytes.len());
            match kind {
                0 => bytes[place] = byte,
                1 => { bytes.remove(place); }
                _ => bytes.insert(place, byte & 0x7f),
            }
        }
        if let Ok(set) = RuleSet::from_yaml(&String::from_utf8_lossy(&bytes), "mutated") {
            let mut request = Attributes::default();
            request.set(Known::UserId, "ann");
            request.set(Known::ModelId, "m");
            request.set(Known::Endpoint, "/projects/p/x");
            let _ = set.resolve(&request, NOW);
            let _ = set.listed(&request, NOW);
        }
    }
}

#[test]
fn the_good_file_is_good() {
    let set = RuleSet::from_yaml(include_str!("good.yaml"), "good.yaml");
    assert_eq!(set.map(|set| set.rules().len()).map_err(|problems| problems.to_string()), Ok(6));
    assert!(normalize_path("/projects/p/x").is_ok());
}
