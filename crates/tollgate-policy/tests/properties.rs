//! Properties: the index finds what a scan finds, and no text makes the reader panic.

#![expect(clippy::indexing_slicing, reason = "generators of a test, outside its functions")]

use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate_policy::{
    Applied, Attributes, Explained, FindingKind, KeyPart, Known, RequestPath, Resolution, RuleSet,
    RuleVerdict, normalize_path,
};

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
const PATHS: &[&str] = &[
    "/",
    "/a",
    "/a/b",
    "/a/b/c",
    "/b",
    "/b/b",
    "/b/x/c",
    "/a/c/",
    "/c/d/e/f",
    "/a%2Fb",
    "/a/x%2Fc",
    "/a/b%2F..%2F..%2Fb",
    "/b%2Fx/../a",
];
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

/// The rules with their ids, and every scope with a rule, so that every override names one.
fn numbered(mut rules: Vec<Value>) -> Vec<Value> {
    for (index, rule) in rules.iter_mut().enumerate() {
        rule["rule_id"] = json!(format!("r{index}"));
    }
    for (index, scope) in SCOPES.iter().enumerate() {
        rules.push(json!({
            "rule_id": format!("z{index}"), "scope": scope, "limit": 1, "window": "1s",
            "applies_to": {"domains": ["never"]},
        }));
    }
    rules
}

fn compiled(rules: Vec<Value>) -> Result<RuleSet, TestCaseError> {
    let text = json!({"rules": numbered(rules)}).to_string();
    RuleSet::from_yaml(&text, "random")
        .map_err(|problems| TestCaseError::fail(problems.to_string()))
}

fn path(request: &Request) -> Option<RequestPath<'static>> {
    let endpoint = request.iter().find(|(name, _)| *name == "endpoint");
    endpoint.and_then(|(_, path)| RequestPath::parse((*path)?).ok())
}

fn attributes<'a>(request: &Request, path: Option<&'a RequestPath<'_>>) -> Attributes<'a> {
    let mut attributes = Attributes::default();
    for (name, value) in request {
        if let Some(value) = value {
            attributes.push_extra(name, value);
        }
    }
    if let Some(path) = path {
        attributes.set_path(path);
    }
    attributes
}

/// The key of an explained rule in the form that resolution returns: a client as its kind and its
/// name.
fn key_of(one: &Explained<'_>) -> Vec<String> {
    let parts = one.rule.key.iter().zip(&one.key);
    parts
        .flat_map(|(part, (name, value))| match part {
            KeyPart::Client => vec![(*name).to_owned(), (*value).to_owned()],
            _ => vec![(*value).to_owned()],
        })
        .collect()
}

fn shown(applied: &[Applied<'_, '_>]) -> Vec<(String, Vec<String>)> {
    let key = |one: &Applied<'_, '_>| one.key.iter().map(ToString::to_string).collect();
    applied.iter().map(|one| (one.rule.id.clone(), key(one))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_index_finds_what_a_scan_finds(
        rules in proptest::collection::vec(rule(), 0..24),
        requests in proptest::collection::vec(request(), 4),
        late in any::<bool>(),
    ) {
        let set = compiled(rules)?;
        let now = if late { NOW + 300 * 86_400_000_000_000 } else { NOW };
        for request in &requests {
            let path = path(request);
            let attributes = attributes(request, path.as_ref());
            let fast = set.resolve(&attributes, now);
            let slow = set.resolve_by_scan(&attributes, now);
            prop_assert_eq!(shown(&fast.enforced), shown(&slow.enforced), "{:?}", request);
            prop_assert_eq!(shown(&fast.observed), shown(&slow.observed), "{:?}", request);
        }
    }

    #[test]
    fn a_path_with_several_readings_meets_the_rules_of_each(
        rules in proptest::collection::vec(rule(), 0..24),
        requests in proptest::collection::vec(request(), 8),
    ) {
        let set = compiled(rules)?;
        for request in &requests {
            let Some(path) = path(request) else { continue };
            let of = |resolution: &Resolution<'_, '_>| {
                let mut all = [shown(&resolution.enforced), shown(&resolution.observed)].concat();
                all.sort();
                all
            };
            let both = of(&set.resolve(&attributes(request, Some(&path)), NOW));
            let mut expected = Vec::new();
            let others = path.others().iter().map(String::as_str);
            for reading in std::iter::once(path.endpoint()).chain(others) {
                let reading = RequestPath::from_endpoint(reading.into());
                expected.extend(of(&set.resolve(&attributes(request, Some(&reading)), NOW)));
            }
            expected.sort();
            expected.dedup();
            prop_assert_eq!(both, expected, "{:?}", request);
        }
    }

    #[test]
    fn explanations_agree_with_resolution_and_with_the_analysis(
        rules in proptest::collection::vec(rule(), 0..16),
        requests in proptest::collection::vec(request(), 8),
        late in any::<bool>(),
    ) {
        let set = compiled(rules)?;
        let now = if late { NOW + 300 * 86_400_000_000_000 } else { NOW };
        let never: Vec<String> = set.review().into_iter()
            .filter(|finding| finding.kind == FindingKind::NeverApplies)
            .map(|finding| finding.rule_id).collect();
        for request in &requests {
            let path = path(request);
            let attributes = attributes(request, path.as_ref());
            let resolution = set.resolve(&attributes, now);
            let resolved = [shown(&resolution.enforced), shown(&resolution.observed)].concat();
            let explanation = set.explain(&attributes, now, usize::MAX);
            let applies = explanation.rules.iter().filter(|one| one.verdict == RuleVerdict::Applies);
            let applies: Vec<_> = applies.map(|one| (one.rule.id.clone(), key_of(one))).collect();
            prop_assert_eq!(&applies, &resolved, "{:?}", request);
            for (id, _) in &applies {
                prop_assert!(!never.contains(id), "{} applies to {:?}", id, request);
            }
            for one in &explanation.rules {
                let id = &one.rule.id;
                match one.verdict {
                    RuleVerdict::LessSpecific { than } => {
                        prop_assert!(set.effect_of(than).displaces.contains(id), "{} {}", than, id);
                        prop_assert!(set.effect_of(id).displaced_by.iter().any(|by| by == than));
                    }
                    RuleVerdict::Replaced { by } => {
                        prop_assert!(set.effect_of(by).replaces.contains(id), "{} {}", by, id);
                        prop_assert!(set.effect_of(id).replaced_by.iter().any(|other| other == by));
                    }
                    RuleVerdict::DefaultYields { to } => {
                        prop_assert!(set.effect_of(to).replaces.contains(id));
                        prop_assert!(set.effect_of(id).replaced_by.iter().any(|other| other == to));
                    }
                    RuleVerdict::Applies | RuleVerdict::Misses { .. } => {}
                }
            }
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
