//! `rules import-envoy`: files of envoyproxy/ratelimit. What is accepted is a rule file, and no file makes the
//! import trip over its own output.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_policy::{ImportOptions, Problems, RuleSet, import_envoy};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    // Several files are separated by an empty byte.
    let files: Vec<(&str, &str)> = text.split('\0').map(|text| ("file", text)).collect();
    let options = ImportOptions { merge_domains: text.len() % 2 == 0, ..ImportOptions::default() };
    match import_envoy(&files, options) {
        Ok(rules) => assert!(RuleSet::from_yaml(&rules, "imported").is_ok()),
        Err(Problems(problems)) => {
            assert!(!problems.is_empty());
            let own = problems.iter().find(|problem| problem.source == "import");
            assert!(own.is_none(), "{}", own.unwrap());
        }
    }
});
