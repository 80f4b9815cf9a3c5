//! Responses to Envoy, for rules that were written for Tollgate.

use std::collections::BTreeMap;

use prost_types::value::Kind;
use tollgate_core::SECOND;
use tollgate_engine::ManualClock;
use tollgate_policy::RuleSet;
use tollgate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use tollgate_store::MemoryStore;

use super::*;

const RULES: &str = "
default: false
rules:
- {rule_id: user, scope: user, identifier_type: user_id, limit: 2, window: 1m, algorithm: fixed_window}
- {rule_id: ip, scope: ip, identifier_type: ip, limit: 5000000000, window: 90s, algorithm: fixed_window}
- {rule_id: spent, scope: spent, identifier_type: tenant_id, unit: tokens, limit: 10, window: 1d, algorithm: fixed_window}
- {rule_id: shade, scope: shade, key_by: [tool], action: log_only, limit: 0, window: 1h, algorithm: fixed_window}
deny_list: ['user_id:mallory']
";

fn service(headers: HeaderFamilies) -> EnvoyService<MemoryStore> {
    service_of(RULES, headers)
}

fn service_of(rules: &str, headers: HeaderFamilies) -> EnvoyService<MemoryStore> {
    let rules = RuleSet::from_yaml(rules, "t").unwrap();
    // Half a minute into a minute.
    let clock = ManualClock::new(30 * SECOND);
    let engine = Engine::new(MemoryStore::new(1_000), Arc::new(clock), rules);
    EnvoyService::new(Arc::new(engine), headers, Arc::default())
}

fn request(descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).into(),
        value: (*value).to_owned().into(),
    };
    let descriptor = |entries: &&[(&str, &str)]| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

fn headers(response: &RateLimitResponse) -> BTreeMap<&str, &str> {
    let headers = response.response_headers_to_add.iter();
    headers.map(|header| (header.key.as_str(), header.value.as_str())).collect()
}

fn metadata(response: &RateLimitResponse, name: &str) -> Option<Kind> {
    let fields = &response.dynamic_metadata.as_ref()?.fields;
    fields.get(name)?.kind.clone()
}

#[tokio::test]
async fn statuses_headers_and_metadata() {
    let service = service(HeaderFamilies::default());
    let both = request(&[&[("remote_address", "10.0.0.1")], &[("user_id", "ann")]]);
    let answer = service.should_rate_limit(&both, "").await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
    let [ip, user] = &answer.statuses[..] else { panic!() };
    let limit = ip.current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (u32::MAX, Unit::Unknown));
    assert_eq!(ip.limit_remaining, u32::MAX, "capped");
    let limit = user.current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit(), &*limit.name), (2, Unit::Minute, "user"));
    assert_eq!(user.limit_remaining, 1);
    assert_eq!(user.duration_until_reset.unwrap().seconds, 30);
    let sent = headers(&answer);
    let limits = "2, 5000000000;w=90;name=\"ip\", 2;w=60;name=\"user\"";
    assert_eq!(sent.get("x-ratelimit-limit"), Some(&limits));
    assert_eq!(sent.get("x-ratelimit-remaining"), Some(&"1"));
    assert_eq!(sent.get("x-ratelimit-reset"), Some(&"30"), "until then, not at which instant");
    assert_eq!(sent.get("ratelimit"), Some(&"\"user\";r=1;t=30"));
    assert_eq!(sent.get("retry-after"), None);
    assert_eq!(metadata(&answer, "ruleId"), Some(Kind::StringValue("user".to_owned())));
    assert_eq!(metadata(&answer, "descriptor"), Some(Kind::NumberValue(1.0)));

    service.should_rate_limit(&both, "").await.unwrap();
    let over = service.should_rate_limit(&both, "").await.unwrap();
    assert_eq!(over.overall_code(), Code::OverLimit);
    assert_eq!((over.statuses[0].code(), over.statuses[1].code()), (Code::Ok, Code::OverLimit));
    assert_eq!(headers(&over).get("retry-after"), Some(&"30"));
    assert_eq!(metadata(&over, "reason"), Some(Kind::StringValue("HIT_USER_LIMIT".to_owned())));
}

#[tokio::test]
async fn headers_can_be_switched_off() {
    let off = HeaderFamilies { x_ratelimit: false, ratelimit: false, retry_after: false };
    let answer = service(off).should_rate_limit(&request(&[&[("user_id", "ann")]]), "").await;
    assert!(answer.unwrap().response_headers_to_add.is_empty());
}

#[tokio::test]
async fn lists_and_what_nothing_is_known_of() {
    let strict = format!("no_match: deny\n{RULES}");
    let service = service_of(&strict, HeaderFamilies::default());
    let unknown = request(&[&[("colour", "red")]]);
    let answer = service.should_rate_limit(&unknown, "").await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok, "whatever no_match says");
    assert_eq!(answer.statuses[0].current_limit, None);
    assert!(answer.response_headers_to_add.is_empty());
    let denied = request(&[&[("colour", "red")], &[("user_id", "mallory")]]);
    let answer = service.should_rate_limit(&denied, "").await.unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!(answer.statuses[1].code(), Code::OverLimit);
    assert_eq!(metadata(&answer, "reason"), Some(Kind::StringValue("DENY_LISTED".to_owned())));
}

#[tokio::test]
async fn tokens_are_owed_and_shadows_are_reported() {
    let service = service(HeaderFamilies::default());
    let mut spent = request(&[&[("tenant_id", "acme")]]);
    spent.hits_addend = 25;
    service.should_rate_limit(&spent, "").await.unwrap();
    let mut look = request(&[&[("tenant_id", "acme")]]);
    look.descriptors[0].hits_addend = Some(0);
    let answer = service.should_rate_limit(&look, "").await.unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit, "what was used above the limit is owed");
    let answer = service.should_rate_limit(&request(&[&[("tool", "saw")]]), "").await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!(answer.statuses[0].current_limit.as_ref().unwrap().name, "shade");
    assert!(
        matches!(metadata(&answer, "wouldDeny"), Some(Kind::ListValue(list)) if list.values.len() == 1)
    );
}

#[tokio::test]
async fn what_is_wrong_is_an_error() {
    let service = service(HeaderFamilies::default());
    let mut nameless = request(&[&[("user_id", "ann")]]);
    nameless.domain.clear();
    let mut long = request(&[&[("user_id", "ann")]]);
    long.domain = "d".repeat(MAX_VALUE_BYTES + 1);
    let many: Vec<&[(&str, &str)]> = vec![&[("user_id", "ann")]; MAX_DESCRIPTORS + 1];
    for (wrong, field) in [
        (nameless, "domain"),
        (long, "domain"),
        (request(&[]), "descriptors"),
        (request(&many), "descriptors"),
        (request(&[&[("", "x")]]), "descriptors[0].entries[0].key"),
    ] {
        let error = service.should_rate_limit(&wrong, "").await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        assert!(error.message().starts_with(&format!("{field}: ")), "{}", error.message());
    }
    let garbage = service.answer(b"\xff\xff", "".into()).await.unwrap_err();
    assert_eq!(garbage.code(), tonic::Code::InvalidArgument);
    // Nothing of it was charged.
    let answer = service.should_rate_limit(&request(&[&[("user_id", "ann")]]), "").await.unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 1);
}

#[tokio::test]
async fn in_shadow_descriptors_are_over_and_the_request_passes() {
    let service = service(HeaderFamilies::default());
    service.engine.set_enforcement(tollgate_engine::Enforcement::Shadow);
    let mut twice = request(&[&[("user_id", "ann")], &[("remote_address", "10.0.0.1")]]);
    twice.hits_addend = 3;
    let answer = service.should_rate_limit(&twice, "").await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
    let codes: Vec<_> = answer.statuses.iter().map(DescriptorStatus::code).collect();
    assert_eq!(codes, [Code::OverLimit, Code::Ok]);
    assert_eq!(answer.statuses[0].limit_remaining, 0);
    assert!(matches!(metadata(&answer, "wouldDeny"), Some(Kind::ListValue(_))));
}

#[tokio::test]
async fn imported_rules_leave_their_headers_and_names_to_envoy() {
    let rule = "{rule_id: r, identifier_type: user_id, limit: 1, window: 1m, \
                algorithm: fixed_window, envoy: {ENVOY}}";
    for (envoy, name) in [("", ""), ("name: per-user", "per-user")] {
        let rule = rule.replace("ENVOY", envoy);
        let service =
            service_of(&format!("default: false\nrules: [{rule}]"), HeaderFamilies::default());
        let ann = request(&[&[("user_id", "ann")]]);
        for code in [Code::Ok, Code::OverLimit] {
            let answer = service.should_rate_limit(&ann, "").await.unwrap();
            assert_eq!(answer.overall_code(), code);
            let limit = answer.statuses[0].current_limit.as_ref().unwrap();
            assert_eq!(limit.name, name);
            let found = headers(&answer);
            assert!(found.keys().all(|name| !name.starts_with("x-ratelimit")), "{found:?}");
            assert!(found.contains_key("ratelimit"));
        }
    }
}

#[tokio::test]
async fn overrides_leave_their_headers_to_envoy_among_imported_rules() {
    for (envoy, is_ours) in [("", true), (", envoy: {charge_above_limit: true}", false)] {
        let rules = format!(
            "default: false\nrules: [{{rule_id: r, identifier_type: user_id, limit: 9, window: 1m, \
             algorithm: fixed_window, applies_to: {{domains: [edge]}}{envoy}}}]"
        );
        let service = service_of(&rules, HeaderFamilies::default());
        let mut ann = request(&[&[("user_id", "ann")]]);
        let unit = tollgate_proto::envoy::r#type::v3::RateLimitUnit::Hour as i32;
        ann.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 2, unit });
        let answer = service.should_rate_limit(&ann, "").await.unwrap();
        assert_eq!(answer.statuses[0].limit_remaining, 1);
        assert_eq!(headers(&answer).contains_key("x-ratelimit-limit"), is_ours);
    }
}

#[tokio::test]
async fn a_counter_that_nothing_was_counted_in_has_the_rest_of_its_window() {
    let rules = "
default: false
rules:
- {rule_id: none, scope: none, identifier_type: user_id, limit: 0, window: 1m, algorithm: fixed_window}
- {rule_id: few, scope: few, identifier_type: ip, limit: 3, window: 1h, algorithm: fixed_window}
- {rule_id: bucket, scope: bucket, identifier_type: tenant_id, limit: 3, window: 10s, algorithm: token_bucket}
";
    let service = service_of(rules, HeaderFamilies::default());
    let mut asked = request(&[
        &[("user_id", "ann")],
        &[("remote_address", "10.0.0.1")],
        &[("tenant_id", "acme")],
    ]);
    asked.hits_addend = 5;
    let answer = service.should_rate_limit(&asked, "").await.unwrap();
    let reset = |status: &DescriptorStatus| status.duration_until_reset.unwrap().seconds;
    let resets: Vec<i64> = answer.statuses.iter().map(reset).collect();
    // Half a minute into a minute and into an hour; a bucket has no window of its own.
    assert_eq!(resets, [30, 3_570, 10]);
    assert!(answer.statuses.iter().all(|status| status.code() == Code::OverLimit));
    let mut asked = request(&[&[("user_id", "ann")]]);
    let answer = service.should_rate_limit(&asked, "").await.unwrap();
    let found = headers(&answer);
    assert_eq!((found["ratelimit"], found["x-ratelimit-reset"]), ("\"none\";r=0;t=30", "30"));
    // Calls that only check.
    asked = request(&[&[("remote_address", "10.0.0.1")], &[("tenant_id", "acme")]]);
    for descriptor in &mut asked.descriptors {
        descriptor.hits_addend = Some(0);
    }
    let answer = service.should_rate_limit(&asked, "").await.unwrap();
    let resets: Vec<i64> = answer.statuses.iter().map(reset).collect();
    assert_eq!(resets, [3_570, 0]);
    assert_eq!(answer.overall_code(), Code::Ok);
}

/// A client makes its values as long as it likes, or puts bytes into them that are no text: the limit must be found by all
/// of the value, and its counter stays small.
#[tokio::test]
async fn limits_with_a_wildcard_before_the_end_hold_for_long_values() {
    let config = "domain: edge
descriptors:
- {key: path, value: '/api/*/login', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: agent, value: '*bot*', rate_limit: {unit: hour, requests_per_unit: 0}}";
    let imported = tollgate_policy::import_envoy(
        &[("c.yaml", config)],
        tollgate_policy::ImportOptions::default(),
    );
    let service = service_of(&imported.unwrap(), HeaderFamilies::default());
    let ask = async |key: &str, value: Vec<u8>| {
        let mut asked = request(&[&[(key, "")]]);
        asked.descriptors[0].entries[0].value = value.into();
        service.should_rate_limit(&asked, "").await.unwrap().overall_code()
    };
    let path = |middle: &[u8]| [&b"/api/"[..], middle, b"/login"].concat();
    let long = |length: usize| path(&b"x".repeat(length));
    assert_eq!(ask("path", long(300)).await, Code::Ok);
    assert_eq!(ask("path", long(1)).await, Code::Ok, "they share one counter");
    for value in [long(200), long(240), long(256), long(8_000), long(200_000), path(b"\xff")] {
        let length = value.len();
        assert_eq!(ask("path", value).await, Code::OverLimit, "{length}");
    }
    let agent = |before: usize| [&b"y".repeat(before)[..], b"bot", &b"z".repeat(300)[..]].concat();
    for before in [0, 250, 40_000] {
        assert_eq!(ask("agent", agent(before)).await, Code::OverLimit, "{before}");
    }
    assert_eq!(ask("agent", b"y".repeat(3_000)).await, Code::Ok);
    // Of several entries with one key the first is the attribute, and none replaces the value of another place.
    let rules = "default: false
rules:
- {rule_id: named, identifier_type: global, limit: 0, window: 1h, algorithm: fixed_window, applies_to: {attributes: {area: login}}}
- {rule_id: placed, identifier_type: global, limit: 0, window: 1h, algorithm: fixed_window, applies_to: {attributes: {entry.1: admin}}}";
    let service = service_of(rules, HeaderFamilies::default());
    let long = "x".repeat(300);
    let long = long.as_str();
    for entries in [[("area", "login"), ("area", long)], [("a", "admin"), ("entry.1", long)]] {
        let answer = service.should_rate_limit(&request(&[&entries]), "").await.unwrap();
        assert_eq!(answer.overall_code(), Code::OverLimit, "{}", entries[0].0);
    }
}

#[tokio::test]
async fn hits_above_the_largest_cost_refuse_their_own_descriptor() {
    let service = service(HeaderFamilies::default());
    for hits in [1 << 53, u64::MAX] {
        let mut asked = request(&[&[("user_id", "ann")], &[("remote_address", "10.0.0.1")]]);
        asked.descriptors[0].hits_addend = Some(hits);
        let answer = service.should_rate_limit(&asked, "").await.unwrap();
        let codes: Vec<Code> = answer.statuses.iter().map(DescriptorStatus::code).collect();
        assert_eq!(codes, [Code::OverLimit, Code::Ok], "{hits}");
        assert_eq!(answer.overall_code(), Code::OverLimit);
    }
    // A charge that reports what was used is owed, and larger ones do not overflow it.
    for _ in 0..3 {
        let mut spent = request(&[&[("tenant_id", "acme")]]);
        spent.descriptors[0].hits_addend = Some(u64::MAX);
        let answer = service.should_rate_limit(&spent, "").await.unwrap();
        assert_eq!(answer.overall_code(), Code::OverLimit);
    }
}
