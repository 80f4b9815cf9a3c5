//! Paths and patterns of endpoints. The normal form of a normal form is itself; what a pattern is made of comes from
//! an operator, what it is compared with from anyone.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use tollgate_core::SECOND;
use tollgate_fuzz::NOW_SECONDS;
use tollgate_policy::{Attributes, MAX_PATH_BYTES, RequestPath, RuleSet, normalize_path};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    // The path, then a line for each pattern.
    let (path, patterns) = text.split_once('\n').unwrap_or((text, "/v1/*"));
    let Ok(normal) = normalize_path(path) else { return };
    assert!(normal.starts_with('/') && normal.len() <= MAX_PATH_BYTES, "{normal:?}");
    assert_eq!(normalize_path(&normal).as_deref(), Ok(&*normal));
    assert!(normal.bytes().all(|byte| byte.is_ascii_graphic()), "{normal:?}");
    assert!(!normal.contains("//") && !normal.contains("/./") && !normal.contains("/../"));
    let patterns: Vec<&str> = patterns.lines().collect();
    let rule = |id: &str, endpoints: &[&str]| {
        json!({"rule_id": id, "scope": id, "limit": 1, "window": "1m", "algorithm": "fixed_window",
               "identifier_type": "global", "applies_to": {"endpoints": endpoints}})
    };
    let file = json!({"default": false, "rules": [rule("given", &patterns), rule("all", &["/*"])]});
    let Ok(rules) = RuleSet::from_yaml(&file.to_string(), "file") else { return };
    let Ok(path) = RequestPath::parse(path) else { return };
    if text.starts_with('/') {
        assert_eq!(path.endpoint(), normal);
    }
    let mut request = Attributes::default();
    request.set_path(&path);
    let _ = rules.resolve(&request, NOW_SECONDS * SECOND);
});
