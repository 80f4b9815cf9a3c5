//! Rule files: three rules that match every request of ours, and many that match none.

use std::fmt::Write;

use tollgate_engine::Request;
use tollgate_policy::{Attributes, Known};
use tollgate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate_proto::v1::AllowRequest;

use crate::work;

/// The endpoint that every request is for.
pub const ENDPOINT: &str = "/v1/chat/completions";

/// The model that every request is for.
pub const MODEL: &str = "gpt-large";

/// How many tenants there are.
pub const TENANTS: u64 = 100;

/// Three scopes with limits that nobody reaches: a token bucket per user, a sliding window per
/// tenant, a fixed window for all.
const MATCHING: &str = r#"rules:
  - rule_id: user-bucket
    scope: USER_MODEL
    identifier_type: user_id
    algorithm: token_bucket
    limit: 1000
    burst: 20000000
    window: 1d
    applies_to: {endpoints: ["/v1/*"]}
  - rule_id: tenant-sliding
    scope: TENANT_GLOBAL
    identifier_type: tenant_id
    algorithm: sliding_window_counter
    limit: 1000000000000
    window: 1h
  - rule_id: model-cap
    scope: GLOBAL_MODEL
    identifier_type: global
    algorithm: fixed_window
    limit: 1000000000000
    window: 1h
    applies_to: {models: ["gpt-large"], methods: [POST]}
"#;

/// A rule file of `count` rules, the three that match included. The others are what grows in an
/// installation over the years: endpoints of services, wildcards, single tenants, users and models;
/// a part of them shares the endpoint, the tenant or the model of our requests and misses by another
/// field.
pub fn file(count: usize) -> String {
    let mut file = MATCHING.to_owned();
    for n in 0..count.saturating_sub(3) {
        let (identifier, applies_to) = match n % 10 {
            0 | 1 => ("user_id", format!("endpoints: [\"/api/v1/service-{n}/items\"]")),
            2 => ("client", format!("endpoints: [\"/api/v2/team-{n}/*\"], methods: [GET, POST]")),
            3 => ("user_id", format!("endpoints: [\"/orgs/{{org}}/projects/p{n}\"]")),
            4 => ("tenant_id", format!("tenants: [\"customer-{n}\", \"customer-{n}-test\"]")),
            5 => ("user_id", format!("users: [\"vip-{n}\"]")),
            6 => ("user_id", format!("models: [\"model-{n}\"], user_tiers: [free]")),
            7 => {
                ("tenant_id", format!("models: [\"model-{n}\"], tenants: [\"tenant-{}\"]", n % 100))
            }
            8 => ("user_id", format!("endpoints: [\"/v1/*\"], models: [\"model-{n}\"]")),
            _ => ("api_key", format!("endpoints: [\"/v1/files/{n}\"], client_types: [PARTNER]")),
        };
        let algorithm = ["token_bucket", "sliding_window_counter", "fixed_window"][n % 3];
        write!(
            file,
            "  - {{rule_id: other-{n}, scope: OTHER_{}, identifier_type: {identifier}, \
             algorithm: {algorithm}, limit: {}, window: 1m, applies_to: {{{applies_to}}}}}\n",
            n % 40,
            100 + n,
        )
        .unwrap();
    }
    file
}

/// Who asks.
pub struct Caller {
    user: String,
    tenant: String,
}

/// `count` callers out of so many users, as often as zipf(1.0) says.
pub fn callers(users: usize, count: usize) -> Vec<Caller> {
    let caller = |pick: u32| Caller {
        user: work::text(&work::key(pick.into())).to_owned(),
        tenant: format!("tenant-{}", u64::from(pick) % TENANTS),
    };
    work::zipf(users, count).into_iter().map(caller).collect()
}

impl Caller {
    /// The request of this caller.
    #[inline]
    pub fn request(&self) -> Request<'_> {
        let mut attributes = Attributes::default();
        attributes.set(Known::UserId, &self.user);
        attributes.set(Known::TenantId, &self.tenant);
        attributes.set(Known::ModelId, MODEL);
        attributes.set(Known::Endpoint, ENDPOINT);
        attributes.set(Known::Method, "POST");
        attributes.set(Known::ClientType, "EXTERNAL");
        Request { attributes, ..Request::default() }
    }

    /// The same as the body of an HTTP call.
    pub fn body(&self) -> String {
        format!(
            "{{\"userId\":\"{}\",\"tenantId\":\"{}\",\"modelId\":\"{MODEL}\",\
             \"endpoint\":\"{ENDPOINT}\",\"method\":\"POST\",\"clientType\":\"EXTERNAL\",\"cost\":1}}",
            self.user, self.tenant,
        )
    }

    /// The same as a gRPC message.
    pub fn message(&self) -> AllowRequest {
        AllowRequest {
            user_id: self.user.clone(),
            tenant_id: self.tenant.clone(),
            model_id: MODEL.into(),
            endpoint: ENDPOINT.into(),
            method: "POST".into(),
            client_type: "EXTERNAL".into(),
            cost: Some(1),
            ..AllowRequest::default()
        }
    }

    /// The same as Envoy would put it.
    pub fn descriptor(&self) -> RateLimitDescriptor {
        let entries = [
            ("user_id", &*self.user),
            ("tenant_id", &*self.tenant),
            ("model_id", MODEL),
            ("endpoint", ENDPOINT),
            ("method", "POST"),
            ("client_type", "EXTERNAL"),
        ];
        let entry =
            |(key, value): (&str, &str)| Entry { key: key.into(), value: value.to_owned().into() };
        let entries = entries.into_iter().map(entry).collect();
        RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
    }
}
