//! Names and numbers are the protocol: these are written down here a second time, by hand, so that
//! no edit changes one unnoticed.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use prost::Message;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

fn set() -> FileDescriptorSet {
    FileDescriptorSet::decode(tollgate_proto::FILE_DESCRIPTOR_SET).unwrap()
}

fn message(package: &str, path: &[&str]) -> DescriptorProto {
    let files = set().file;
    let mut messages: Vec<DescriptorProto> = files
        .into_iter()
        .filter(|file| file.package() == package)
        .flat_map(|file| file.message_type)
        .collect();
    let mut found = None;
    for name in path {
        let one = messages.iter().find(|message| message.name() == *name).unwrap().clone();
        messages.clone_from(&one.nested_type);
        found = Some(one);
    }
    found.unwrap()
}

fn fields(message: &DescriptorProto) -> Vec<(&str, i32)> {
    let mut fields: Vec<_> =
        message.field.iter().map(|field| (field.name(), field.number())).collect();
    fields.sort_by_key(|(_, number)| *number);
    fields
}

fn values(one: &EnumDescriptorProto) -> Vec<(&str, i32)> {
    let mut values: Vec<_> = one.value.iter().map(|one| (one.name(), one.number())).collect();
    values.sort_by_key(|(_, number)| *number);
    values
}

#[test]
fn the_service_has_its_calls() {
    let files = set().file;
    let calls = |package: &str, service: &str| -> Vec<String> {
        let of = files.iter().filter(|file| file.package() == package);
        let found = of.flat_map(|file| &file.service).find(|one| one.name() == service).unwrap();
        found.method.iter().map(|method| method.name().to_owned()).collect()
    };
    assert_eq!(
        calls("tollgate.v1", "RateLimiterService"),
        [
            "Allow",
            "AllowBatch",
            "AllowStream",
            "Peek",
            "Reserve",
            "Settle",
            "Release",
            "Renew",
            "Reset"
        ]
    );
    assert_eq!(calls("envoy.service.ratelimit.v3", "RateLimitService"), ["ShouldRateLimit"]);
}

#[test]
fn the_first_fields_are_as_promised() {
    let request = message("tollgate.v1", &["AllowRequest"]);
    let first = [
        ("user_id", 1),
        ("model_id", 2),
        ("api_key", 3),
        ("tenant_id", 4),
        ("model_tier", 5),
        ("client_type", 6),
    ];
    assert_eq!(fields(&request)[..6], first);
    let response = message("tollgate.v1", &["AllowResponse"]);
    let first =
        [("allowed", 1), ("remaining", 2), ("reset_at", 3), ("scope_hit", 4), ("scopes", 5)];
    assert_eq!(fields(&response)[..5], first);
}

#[test]
fn envoys_messages_have_envoys_numbers() {
    const RLS: &str = "envoy.service.ratelimit.v3";
    const COMMON: &str = "envoy.extensions.common.ratelimit.v3";
    let response = message(RLS, &["RateLimitResponse"]);
    let table: [(DescriptorProto, &[(&str, i32)]); 8] = [
        (
            message(RLS, &["RateLimitRequest"]),
            &[("domain", 1), ("descriptors", 2), ("hits_addend", 3)],
        ),
        (
            response.clone(),
            &[
                ("overall_code", 1),
                ("statuses", 2),
                ("response_headers_to_add", 3),
                ("request_headers_to_add", 4),
                ("raw_body", 5),
                ("dynamic_metadata", 6),
                ("quota", 7),
            ],
        ),
        (
            message(RLS, &["RateLimitResponse", "RateLimit"]),
            &[("requests_per_unit", 1), ("unit", 2), ("name", 3)],
        ),
        (
            message(RLS, &["RateLimitResponse", "Quota"]),
            &[("requests", 1), ("valid_until", 2), ("id", 3)],
        ),
        (
            message(RLS, &["RateLimitResponse", "DescriptorStatus"]),
            &[
                ("code", 1),
                ("current_limit", 2),
                ("limit_remaining", 3),
                ("duration_until_reset", 4),
                ("quota", 5),
            ],
        ),
        (
            message(COMMON, &["RateLimitDescriptor"]),
            &[("entries", 1), ("limit", 2), ("hits_addend", 3), ("is_negative_hits", 4)],
        ),
        (message(COMMON, &["RateLimitDescriptor", "Entry"]), &[("key", 1), ("value", 2)]),
        (
            message(COMMON, &["RateLimitDescriptor", "RateLimitOverride"]),
            &[("requests_per_unit", 1), ("unit", 2)],
        ),
    ];
    for (message, expected) in &table {
        assert_eq!(fields(message), *expected, "{}", message.name());
    }
    let code = response.enum_type.iter().find(|one| one.name() == "Code").unwrap();
    assert_eq!(values(code), [("UNKNOWN", 0), ("OK", 1), ("OVER_LIMIT", 2)]);
    let limit = message(RLS, &["RateLimitResponse", "RateLimit"]);
    let units = [
        ("UNKNOWN", 0),
        ("SECOND", 1),
        ("MINUTE", 2),
        ("HOUR", 3),
        ("DAY", 4),
        ("MONTH", 5),
        ("YEAR", 6),
        ("WEEK", 7),
    ];
    assert_eq!(values(&limit.enum_type[0]), units);
    let header = message("envoy.config.core.v3", &["HeaderValue"]);
    assert_eq!(fields(&header), [("key", 1), ("value", 2), ("raw_value", 3)]);
    let files = set().file;
    let unit = files.iter().filter(|file| file.package() == "envoy.type.v3");
    let unit = unit.flat_map(|file| &file.enum_type).next().unwrap();
    assert_eq!(values(unit), units[..7]);
}
