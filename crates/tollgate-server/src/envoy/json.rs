//! `POST /json` of envoyproxy/ratelimit: the same call as JSON, for scripts that ask it without gRPC.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use tollgate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate_proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use tollgate_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate_proto::envoy::r#type::v3::RateLimitUnit;

/// The body of a call. Both spellings of names count, as in the JSON form of protocol buffers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RequestBody {
    #[serde(default)]
    domain: String,
    #[serde(default)]
    descriptors: Vec<DescriptorBody>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: u32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DescriptorBody {
    #[serde(default)]
    entries: Vec<EntryBody>,
    limit: Option<LimitBody>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Hits>,
    #[serde(default, alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryBody {
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LimitBody {
    #[serde(default, alias = "requests_per_unit")]
    requests_per_unit: u32,
    #[serde(default)]
    unit: String,
}

/// 64 bits are written as text, and read in either form.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Hits {
    Number(u64),
    Text(#[serde(deserialize_with = "whole_number")] u64),
}

/// A number in a text, as JSON writes numbers of 64 bits.
fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

impl RequestBody {
    /// The call that it stands for.
    pub(crate) fn into_request(self) -> RateLimitRequest {
        let descriptors = self.descriptors.into_iter().map(DescriptorBody::into_descriptor);
        RateLimitRequest {
            domain: self.domain,
            descriptors: descriptors.collect(),
            hits_addend: self.hits_addend,
        }
    }
}

impl DescriptorBody {
    fn into_descriptor(self) -> RateLimitDescriptor {
        let entry = |entry: EntryBody| Entry { key: entry.key, value: entry.value.into() };
        let hits = |hits: Hits| match hits {
            Hits::Number(hits) | Hits::Text(hits) => hits,
        };
        let limit = |limit: LimitBody| RateLimitOverride {
            requests_per_unit: limit.requests_per_unit,
            unit: RateLimitUnit::from_str_name(&limit.unit).unwrap_or_default() as i32,
        };
        RateLimitDescriptor {
            entries: self.entries.into_iter().map(entry).collect(),
            limit: self.limit.map(limit),
            hits_addend: self.hits_addend.map(hits),
            is_negative_hits: self.is_negative_hits,
        }
    }
}

/// The answer. What has the default value is left out.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ResponseBody {
    overall_code: &'static str,
    statuses: Vec<StatusBody>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusBody {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<CurrentLimitBody>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CurrentLimitBody {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "is_zero")]
    requests_per_unit: u32,
    unit: &'static str,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn code(code: i32) -> &'static str {
    Code::try_from(code).unwrap_or_default().as_str_name()
}

impl ResponseBody {
    pub(crate) fn new(response: RateLimitResponse) -> Self {
        let status = |status: DescriptorStatus| StatusBody {
            code: code(status.code),
            current_limit: status.current_limit.map(|limit| CurrentLimitBody {
                name: limit.name,
                requests_per_unit: limit.requests_per_unit,
                unit: Unit::try_from(limit.unit).unwrap_or_default().as_str_name(),
            }),
            limit_remaining: status.limit_remaining,
            duration_until_reset: status.duration_until_reset.map(|it| format!("{}s", it.seconds)),
        };
        Self {
            overall_code: code(response.overall_code),
            statuses: response.statuses.into_iter().map(status).collect(),
        }
    }
}
