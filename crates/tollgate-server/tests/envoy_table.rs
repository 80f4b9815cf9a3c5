//! Imported configurations of envoyproxy/ratelimit mean what they mean there: as a table
//! (`envoy_table.yaml`), and against a model of that project over random configurations.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of a test, outside its functions"
)]

#[path = "envoy_table/model.rs"]
mod model;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use prost_types::value::Kind;
use serde::Deserialize;
use tollgate_core::SECOND;
use tollgate_engine::{Engine, ManualClock};
use tollgate_policy::{ImportOptions, RuleSet, import_envoy};
use tollgate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, RateLimit};
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
    /// Flags of the import.
    #[serde(default)]
    all_or_nothing: bool,
    #[serde(default)]
    refuse_check_at_limit: bool,
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
    own_hits: Option<Vec<Option<u64>>>,
    #[serde(default)]
    is_negative: bool,
    r#override: Option<String>,
    /// Seconds that pass before, and milliseconds.
    #[serde(default)]
    advance: u64,
    #[serde(default)]
    advance_ms: u64,
    times: Option<u32>,
    overall: Option<String>,
    codes: Option<Vec<String>>,
    limits: Option<Vec<String>>,
    remaining: Option<Vec<Option<u32>>>,
    would_deny: Option<usize>,
    paid: Option<usize>,
    /// What the limits are called.
    names: Option<Vec<String>>,
    /// Seconds until each limit is reset.
    resets: Option<Vec<i64>>,
    /// Fields of the metadata of rules, as JSON.
    metadata: Option<BTreeMap<String, String>>,
}

/// A limiter with an imported configuration.
struct Bed {
    service: EnvoyService<MemoryStore>,
    clock: Arc<ManualClock>,
}

impl Bed {
    fn new(config: &str, options: ImportOptions) -> Self {
        let rules = import_envoy(&[("config.yaml", config)], options).unwrap();
        let rules = RuleSet::from_yaml(&rules, "imported").unwrap();
        let clock = Arc::new(ManualClock::new(START));
        let own: Arc<ManualClock> = Arc::clone(&clock);
        let engine = Arc::new(Engine::new(MemoryStore::new(10_000), own, rules));
        Self {
            service: EnvoyService::new(engine, HeaderFamilies::default(), Arc::default()),
            clock,
        }
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
        descriptor.hits_addend = step.own_hits.as_ref().and_then(|hits| hits[index]);
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
        let RateLimit { requests_per_unit, unit, .. } = limit;
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
        Some(Kind::ListValue(list)) => list.values.len(),
        _ => 0,
    }
}

/// A value of the metadata as JSON, as far as the table has such values.
fn to_json(value: &prost_types::Value) -> String {
    match value.kind.as_ref() {
        Some(Kind::StringValue(text)) => format!("{text:?}"),
        Some(Kind::NumberValue(number)) => number.to_string(),
        Some(Kind::BoolValue(flag)) => flag.to_string(),
        Some(Kind::ListValue(list)) => {
            let values: Vec<_> = list.values.iter().map(to_json).collect();
            format!("[{}]", values.join(","))
        }
        Some(Kind::StructValue(fields)) => {
            let fields = fields.fields.iter().map(|(name, it)| format!("{name:?}:{}", to_json(it)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        _ => "null".to_owned(),
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
    if let Some(expected) = &step.names {
        let name = |limit: &RateLimit| limit.name.clone();
        let limits = response.statuses.iter().map(|status| status.current_limit.as_ref());
        let names: Vec<_> = limits.map(|limit| limit.map(name).unwrap_or_default()).collect();
        assert_eq!(names, *expected, "names, {place}");
    }
    if let Some(expected) = &step.resets {
        let resets = response.statuses.iter().map(|status| status.duration_until_reset);
        let resets: Vec<_> = resets.map(|reset| reset.map(|it| (it.seconds, it.nanos))).collect();
        let expected: Vec<_> = expected.iter().map(|seconds| Some((*seconds, 0))).collect();
        assert_eq!(resets, expected, "resets, {place}");
    }
    for (name, expected) in step.metadata.iter().flatten() {
        let data = response.dynamic_metadata.as_ref().and_then(|data| data.fields.get("metadata"));
        let found = match data.and_then(|data| data.kind.as_ref()) {
            Some(Kind::StructValue(data)) => data.fields.get(name),
            _ => None,
        };
        let found = found.map_or_else(|| "-".to_owned(), to_json);
        assert_eq!(found, *expected, "metadata {name}, {place}");
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
            let options = ImportOptions {
                all_or_nothing: group.all_or_nothing,
                refuse_check_at_limit: group.refuse_check_at_limit,
                ..ImportOptions::default()
            };
            let bed = Bed::new(&group.config, options);
            let only = case.only.clone();
            let steps = case.steps.clone().unwrap_or_else(|| vec![only.unwrap()]);
            for (index, step) in steps.iter().enumerate() {
                let place = format!("{}: {}, step {index}: {step:?}", group.about, case.name);
                bed.clock.advance(step.advance * SECOND + step.advance_ms * (SECOND / 1_000));
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
        let bed = Bed::new(&config, ImportOptions::default());
        let mut model = model::Model::new(&tree);
        let runtime = runtime();
        for (index, asked) in requests.iter().enumerate() {
            bed.clock.advance(asked.advance_seconds * SECOND);
            let response = runtime.block_on(bed.ask(&asked.message()));
            let expected = model.ask(asked);
            let place = format!("request {index}: {asked:?}\n{config}");
            prop_assert_eq!(limits(&response), expected.limits, "limits, {}", place);
            let codes: Vec<_> = response.statuses.iter().map(|one| code(one.code)).collect();
            prop_assert_eq!(codes, expected.codes, "codes, {}", place);
            prop_assert_eq!(code(response.overall_code), expected.overall, "overall, {}", place);
            let remaining: Vec<_> =
                response.statuses.iter().map(|status| status.limit_remaining).collect();
            prop_assert_eq!(remaining, expected.remaining, "remaining, {}", place);
            prop_assert_eq!(
                listed(&response, "wouldDeny") > 0, expected.would_deny, "would deny, {}", place
            );
        }
    }
}
