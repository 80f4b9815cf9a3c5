//! What grants raise, for whom and until when.

use std::fmt::Write;

use tollgate_policy::{Attributes, Quota, Rule, RuleSet};

const SECOND: u64 = 1_000_000_000;
const NEW_YEAR_2030: u64 = 1_893_456_000 * SECOND;

fn attributes<'a>(pairs: &[(&'a str, &'a str)]) -> Attributes<'a> {
    let mut request = Attributes::default();
    for (name, value) in pairs {
        request.push_extra(name, value);
    }
    request
}

/// Quota and capacity of every limit for a tier.
fn limits(rule: &Rule, request: &[(&str, &str)], tier: Option<&str>, now: u64) -> Vec<(u64, u64)> {
    let figures =
        |quota: &Quota| quota.limit().map_or((u64::MAX, u64::MAX), |l| (l.quota(), l.capacity()));
    let limits = rule.limits_for(&attributes(request), now);
    limits.iter().map(|limit| limit.for_tier(tier).map_or((0, 0), figures)).collect()
}

const FILE: &str = r#"
rules:
  - {rule_id: user, identifier_type: user_id, limit: 100, window: 1h, tier_limits: {pro: 1000, all: unlimited, none: 0}}
  - rule_id: mixed
    key_by: [tenant_id, client]
    limits:
      - {limit: 10, window: 1s, algorithm: token_bucket, burst: 20}
      - {limit: 10, window: 1s, algorithm: gcra}
      - {limit: 10, calendar: day}
      - {limit: 10, window: 1m, algorithm: sliding_window_log}
  - {rule_id: slots, identifier_type: client, unit: concurrency, limit: 2}
  - {rule_id: off, identifier_type: ip, limit: 2, window: 1s, is_active: false}
  - {rule_id: address, identifier_type: ip, limit: 2, window: 1s}
grants:
  - {rule_id: user, type: user_id, value: ann, extra: 500, expires_at: "2030-01-01T00:00:00Z", reason: launch}
  - {rule_id: mixed, type: tenant_id, value: acme, extra: 5, expires_at: "2030-01-01T00:00:00Z"}
  - {rule_id: mixed, type: user_id, value: ann, extra: 7, expires_at: "2029-01-01T00:00:00Z"}
  - {rule_id: slots, type: api_key, value: k, extra: 3, expires_at: "2030-01-01T00:00:00Z"}
  - {rule_id: off, type: ip, value: 10.0.0.1, extra: 3, expires_at: "2030-01-01T00:00:00Z"}
  - {rule_id: default, type: user_id, value: ann, extra: 11, expires_at: "2030-01-01T00:00:00Z"}
  - {rule_id: address, type: ip, value: "2001:DB8::1", extra: 3, expires_at: "2030-01-01T00:00:00Z"}
  - {rule_id: address, type: ip, value: "2001:DB8:0:0:1::/64", extra: 4, expires_at: "2030-01-01T00:00:00Z"}
"#;

#[test]
fn every_limited_quota_is_raised_until_the_instant() {
    let set = RuleSet::from_yaml(FILE, "t").unwrap();
    let (user, before) = (set.rule("user").unwrap(), NEW_YEAR_2030 - 1);
    let ann = [("user_id", "ann")];
    for (tier, usual, raised) in [
        (None, (100, 100), (600, 600)),
        (Some("pro"), (1000, 1000), (1500, 1500)),
        (Some("all"), (u64::MAX, u64::MAX), (u64::MAX, u64::MAX)),
        (Some("none"), (0, 0), (0, 0)),
    ] {
        assert_eq!(limits(user, &ann, tier, before), [raised], "{tier:?}");
        assert_eq!(limits(user, &ann, tier, NEW_YEAR_2030), [usual], "{tier:?}");
        assert_eq!(limits(user, &[("user_id", "bob")], tier, before), [usual], "{tier:?}");
    }
    assert_eq!(limits(set.default_rule().unwrap(), &ann, None, before), [(111, 111)]);
    assert_eq!(set.grants().len(), 8);
    assert_eq!(set.grants()[0].reason.as_deref(), Some("launch"));
}

#[test]
fn raised_limits_name_the_same_counters() {
    let set = RuleSet::from_yaml(FILE, "t").unwrap();
    for rule in set.rules() {
        for request in [&[("user_id", "ann"), ("tenant_id", "acme")][..], &[("api_key", "k")]] {
            let raised = rule.limits_for(&attributes(request), 0);
            let names = |limits: &[tollgate_policy::RuleLimit]| {
                limits.iter().map(|limit| (limit.tag.clone(), limit.salt)).collect::<Vec<_>>()
            };
            assert_eq!(names(raised), names(&rule.limits));
        }
    }
}

#[test]
fn buckets_grow_and_the_largest_grant_counts() {
    let set = RuleSet::from_yaml(FILE, "t").unwrap();
    let mixed = set.rule("mixed").unwrap();
    let usual = vec![(10, 20), (10, 1), (10, 10), (10, 10)];
    let five = vec![(15, 25), (15, 6), (15, 15), (15, 15)];
    let seven = vec![(17, 27), (17, 8), (17, 17), (17, 17)];
    let (acme, ann) = (("tenant_id", "acme"), ("user_id", "ann"));
    let new_year_2029 = 1_861_920_000 * SECOND;
    assert_eq!(limits(mixed, &[acme, ("user_id", "bob")], None, 0), five);
    assert_eq!(limits(mixed, &[acme, ann], None, 0), seven);
    assert_eq!(limits(mixed, &[acme, ann], None, new_year_2029), five);
    assert_eq!(limits(mixed, &[("tenant_id", "b"), ann], None, new_year_2029), usual);
    // The counter is the key's, not the user's.
    assert_eq!(limits(mixed, &[("tenant_id", "b"), ann, ("api_key", "k")], None, 0), usual);
    let slots = set.rule("slots").unwrap();
    assert_eq!(limits(slots, &[("api_key", "k"), ann], None, 0), [(5, 5)]);
    assert_eq!(limits(slots, &[ann], None, 0), [(2, 2)]);
    let address = set.rule("address").unwrap();
    assert_eq!(limits(address, &[("ip", "2001:db8::1")], None, 0), [(5, 5)]);
    assert_eq!(limits(address, &[("ip", "2001:db8::/64")], None, 0), [(6, 6)]);
}

#[test]
fn a_hundred_thousand_grants_are_few_limits() {
    let mut text =
        "rules: [{rule_id: user, identifier_type: user_id, limit: 100, window: 1h}]\ngrants:\n"
            .to_owned();
    for n in 0..100_000 {
        let extra = n % 1_000 + 1;
        writeln!(text, "  - {{rule_id: user, type: user_id, value: u{n}, extra: {extra}, expires_at: \"2030-01-01T00:00:00Z\"}}").unwrap();
    }
    let set = RuleSet::from_yaml(&text, "t").unwrap();
    let user = set.rule("user").unwrap();
    assert_eq!(limits(user, &[("user_id", "u99999")], None, 0), [(1_100, 1_100)]);
    writeln!(text, "  - {{rule_id: user, type: user_id, value: v, extra: 1, expires_at: \"2030-01-01T00:00:00Z\"}}").unwrap();
    assert!(RuleSet::from_yaml(&text, "t").is_err());
}
