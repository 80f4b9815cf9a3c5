//! Rule files, YAML and JSON: read, compiled, and asked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::SECOND;
use tollgate_fuzz::NOW_SECONDS;
use tollgate_policy::{Attributes, Known, Problems, RuleSet};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let rules = match RuleSet::from_yaml(text, "file") {
        Ok(rules) => rules,
        Err(Problems(problems)) => {
            assert!(!problems.is_empty());
            return;
        }
    };
    let again = RuleSet::from_yaml(text, "file").unwrap();
    assert_eq!(rules.digest(), again.digest());
    let mut request = Attributes::default();
    request.set(Known::UserId, "ann");
    request.set(Known::TenantId, "acme");
    request.set(Known::ApiKey, "key");
    request.set(Known::ModelId, "gpt-large");
    request.set(Known::Endpoint, "/v1/chat/completions");
    request.set(Known::Method, "POST");
    request.set(Known::Ip, "192.0.2.1");
    let _ = rules.listed(&request, NOW_SECONDS * SECOND);
    let resolution = rules.resolve(&request, NOW_SECONDS * SECOND);
    // At most one rule of each scope decides.
    let mut scopes: Vec<&str> =
        resolution.enforced.iter().map(|applied| applied.rule.scope.as_str()).collect();
    scopes.sort_unstable();
    assert!(scopes.windows(2).all(|pair| pair[0] != pair[1]), "{scopes:?}");
});
