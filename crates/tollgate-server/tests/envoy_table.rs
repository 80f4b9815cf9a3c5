//! Imported configurations of envoyproxy/ratelimit mean what they mean there: as a table
//! (`envoy_table.yaml`), and against a model of that project over random configurations.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of a test, outside its functions"
)]

#[path = "envoy_table/model.rs"]
mod model;

use std::fmt::Write as _;
use std::sync::Arc;

use proptest::prelude::*;
use serde::Deserialize;
use tollgate_core::SECOND;
use tollgate_engine::{Engine, ManualClock};
use tollgate_policy::{RuleSet, import_envoy};
use tollgate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate_proto::envoy::r#type::v3::RateLimitUnit;
use tollgate_server::envoy::EnvoyService;
use tollgate_store::MemoryStore;
use tollgate_tower::headers::HeaderFamilies;

/// The beginning of a day, a month of 30 days and a year of 365.
const START: u64 = 30 * 365 * 86_400 * SECOND;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    about: String,
    config: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    steps: Option<Vec<Step>>,
    #[serde(flatten)]
    only: Option<Step>,
}

#[derive(Debug, Clone, Deserialize)]
struct Step {
    ask: Vec<String>,
    domain: Option<String>,
    #[serde(default)]
    hits: u32,
    own_hits: Option<Vec<u64>>,
    #[serde(default)]
    is_negative: bool,
    r#override: Option<String>,
    /// Seconds that pass before.
    #[serde(default)]
    advance: u64,
    times: Option<u32>,
    overall: Option<String>,
    codes: Option<Vec<String>>,
    limits: Option<Vec<String>>,
    remaining: Option<Vec<Option<u32>>>,
    would_deny: Option<usize>,
    paid: Option<usize>,
}

/// A limiter with an imported configuration.
struct Bed {
    service: EnvoyService<MemoryStore>,
    clock: Arc<ManualClock>,
}

impl Bed {
    fn new(config: &str) -> Self {
        let rules = import_envoy(&[("config.yaml", config)]).unwrap();
        let rules = RuleSet::from_yaml(&rules, "imported").unwrap();
        let clock = Arc::new(ManualClock::new(START));
        let own: Arc<ManualClock> = Arc::clone(&clock);
        let engine = Arc::new(Engine::new(MemoryStore::new(10_000), own, rules));
        Self { service: EnvoyService::new(engine, HeaderFamilies::default()), clock }
    }

    async fn ask(&self, request: &RateLimitRequest) -> RateLimitResponse {
        self.service.should_rate_limit(request, "test").await.unwrap()
    }
}

fn descriptor(text: &str) -> RateLimitDescriptor {
    let entries = text.split(' ').map(|entry| {
        let (key, value) = entry.split_once('=').unwrap();
        Entry { key: key.to_owned(), value: value.to_owned().into() }
    });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

fn request(step: &Step, domain: &str) -> RateLimitRequest {
    let mut descriptors: Vec<_> = step.ask.iter().map(|text| descriptor(text)).collect();
    for (index, descriptor) in descriptors.iter_mut().enumerate() {
        descriptor.hits_addend = step.own_hits.as_ref().map(|hits| hits[index]);
        descriptor.is_negative_hits = step.is_negative;
        descriptor.limit = step.r#override.as_ref().map(|text| {
            let (quota, unit) = text.split_once('/').unwrap();
            let unit = RateLimitUnit::from_str_name(unit).unwrap() as i32;
            RateLimitOverride { requests_per_unit: quota.parse().unwrap(), unit }
        });
    }
    let domain = step.domain.clone().unwrap_or_else(|| domain.to_owned());
    RateLimitRequest { domain, descriptors, hits_addend: step.hits }
}

fn code(code: i32) -> String {
    match Code::try_from(code) {
        Ok(Code::Ok) => "OK".to_owned(),
        Ok(Code::OverLimit) => "OVER".to_owned(),
        other => format!("{other:?}"),
    }
}

/// The limit of each descriptor, `-` where there is none.
fn limits(response: &RateLimitResponse) -> Vec<String> {
    let limit = |limit: &_| {
        let tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::RateLimit {
            requests_per_unit,
            unit,
            ..
        } = limit;
        format!("{requests_per_unit}/{}", Unit::try_from(*unit).unwrap().as_str_name())
    };
    let of = response.statuses.iter().map(|status| status.current_limit.as_ref());
    of.map(|found| found.map_or_else(|| "-".to_owned(), limit)).collect()
}

/// How many rules the metadata lists under this name.
fn listed(response: &RateLimitResponse, name: &str) -> usize {
    let fields = response.dynamic_metadata.as_ref().map(|data| &data.fields);
    let value = fields.and_then(|fields| fields.get(name)).and_then(|value| value.kind.as_ref());
    match value {
        Some(prost_types::value::Kind::ListValue(list)) => list.values.len(),
        _ => 0,
    }
}

fn check(step: &Step, response: &RateLimitResponse, place: &str) {
    if let Some(expected) = &step.codes {
        let codes: Vec<_> = response.statuses.iter().map(|status| code(status.code)).collect();
        assert_eq!(codes, *expected, "codes, {place}");
    }
    if let Some(expected) = &step.limits {
        assert_eq!(limits(response), *expected, "limits, {place}");
    }
    for (index, expected) in step.remaining.iter().flatten().enumerate() {
        if let Some(expected) = expected {
            let remaining = response.statuses[index].limit_remaining;
            assert_eq!(remaining, *expected, "remaining of descriptor {index}, {place}");
        }
    }
    for (name, expected) in [("wouldDeny", step.would_deny), ("quotaPaidBy", step.paid)] {
        if let Some(expected) = expected {
            assert_eq!(listed(response, name), expected, "{name}, {place}");
        }
    }
}

#[tokio::test]
async fn the_table_holds() {
    let table: Vec<Group> = serde_saphyr::from_str(include_str!("envoy_table.yaml")).unwrap();
    let mut cases = 0;
    for group in &table {
        let line = group.config.lines().find_map(|line| line.strip_prefix("domain: "));
        let domain = line.unwrap();
        for case in &group.cases {
            cases += 1;
            let bed = Bed::new(&group.config);
            let only = case.only.clone();
            let steps = case.steps.clone().unwrap_or_else(|| vec![only.unwrap()]);
            for (index, step) in steps.iter().enumerate() {
                let place = format!("{}: {}, step {index}: {step:?}", group.about, case.name);
                bed.clock.advance(step.advance * SECOND);
                let mut last = None;
                for _ in 0..step.times.unwrap_or(1) {
                    let response = bed.ask(&request(step, domain)).await;
                    let expected = step.overall.as_deref().unwrap_or("OK");
                    assert_eq!(code(response.overall_code), expected, "overall, {place}");
                    last = Some(response);
                }
                check(step, &last.unwrap(), &place);
            }
        }
    }
    assert!(cases >= 60, "{cases} cases");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_configurations_mean_the_same(
        tree in model::tree(),
        requests in proptest::collection::vec(model::request(), 1..24),
    ) {
        let config = model::config(&tree);
        let bed = Bed::new(&config);
        let mut model = model::Model::new(&tree);
        let runtime = runtime();
        for (index, asked) in requests.iter().enumerate() {
            bed.clock.advance(asked.advance_seconds * SECOND);
            let response = runtime.block_on(bed.ask(&asked.message()));
            let told = model.ask(asked);
            let place = format!("request {index}: {asked:?}\n{config}");
            prop_assert_eq!(limits(&response), told.limits, "limits, {}", place);
            let codes: Vec<_> = response.statuses.iter().map(|one| code(one.code)).collect();
            prop_assert_eq!(codes, told.codes, "codes, {}", place);
            prop_assert_eq!(code(response.overall_code), told.overall, "overall, {}", place);
            let remaining: Vec<_> =
                response.statuses.iter().map(|status| status.limit_remaining).collect();
            prop_assert_eq!(remaining, told.remaining, "remaining, {}", place);
            prop_assert_eq!(
                listed(&response, "wouldDeny") > 0, told.would_deny, "would deny, {}", place
            );
        }
    }
}

/// What a file that cannot be told is refused with.
fn refusals(config: &str) -> Vec<String> {
    let problems = import_envoy(&[("c.yaml", config)]).unwrap_err();
    problems.0.iter().map(ToString::to_string).collect()
}

#[test]
fn what_cannot_be_told_is_refused_with_its_place() {
    let cases = [
        ("descriptors: []", "c.yaml:1:1: field domain: is missing"),
        ("domain: d\ndescriptors:\n- value: x", "c.yaml:3:3: field descriptors[0].key: is missing"),
        (
            "domain: d\ndescriptors:\n- {key: a, value: 'x*y'}",
            "c.yaml:3:19: field descriptors[0].value: a wildcard anywhere but at the end",
        ),
        (
            "domain: d\ndescriptors:\n- {key: 'a*'}",
            "c.yaml:3:9: field descriptors[0].key: a wildcard",
        ),
        (
            "domain: d\ndescriptors:\n- {key: a, colour: red}",
            "c.yaml:3:12: field descriptors[0].colour: is not a known field",
        ),
        (
            "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: fortnight, requests_per_unit: 1}",
            "c.yaml:4:22: field descriptors[0].rate_limit.unit: must be second",
        ),
        (
            "domain: d\ndescriptors:\n- key: a\n  rate_limit: {requests_per_unit: 1}",
            "c.yaml:4:15: field descriptors[0].rate_limit.unit: is missing",
        ),
        (
            "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unlimited: true, unit: day}",
            "c.yaml:4:39: field descriptors[0].rate_limit.unit: does not go with unlimited",
        ),
        (
            "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: -1}",
            "c.yaml:4:46: field descriptors[0].rate_limit.requests_per_unit: must be from 0",
        ),
        (
            "domain: d\ndescriptors:\n- key: a\n- key: a\n",
            "c.yaml:4:3: field descriptors[1]: has the key and value of line 3 again",
        ),
        (
            "domain: d\ndescriptors:\n- {key: a, value: b, share_threshold: true}",
            "c.yaml:3:39: field descriptors[0].share_threshold: goes with a value that ends with *",
        ),
        (
            "domain: d\ndescriptors:\n- key: a\n  rate_limit: {name: n, replaces: [{name: n}], unit: day}",
            "c.yaml:4:43: field descriptors[0].rate_limit.replaces[0].name: is this limit's own name",
        ),
        (
            "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 9, soft_requests_per_unit: 5}",
            "c.yaml:4:49: field descriptors[0].rate_limit.soft_requests_per_unit: is not a known field",
        ),
    ];
    for (config, expected) in cases {
        let refused = refusals(config);
        assert!(refused.iter().any(|one| one.starts_with(expected)), "{refused:#?} / {expected}");
    }
    let mut nine = String::new();
    for depth in 1..=9 {
        let blanks = "    ".repeat(depth - 1);
        let _ = write!(nine, "{blanks}descriptors:\n{blanks}  - key: k{depth}\n");
    }
    let blanks = "    ".repeat(9);
    let deep =
        format!("domain: d\n{nine}{blanks}rate_limit: {{unit: day, requests_per_unit: 1}}\n");
    assert!(refusals(&deep)[0].contains("more than 8 entries without a fixed value"));
}

#[test]
fn domains_are_unique_and_metrics_are_noted() {
    let one = "domain: d\ndescriptors:\n- key: a\n  detailed_metric: true\n";
    let problems = import_envoy(&[("one.yaml", one), ("two.yaml", one)]).unwrap_err();
    let text = problems.to_string();
    assert!(
        text.starts_with("two.yaml:1:9: field domain: is the domain of one.yaml too"),
        "{text}"
    );
    let rules = import_envoy(&[("one.yaml", one)]).unwrap();
    assert!(rules.contains("# one.yaml:4: detailed_metric is about metrics only"), "{rules}");
    assert!(rules.contains("rules: []"));
}
