//! The rule model of Tollgate: rule files read, checked and compiled, and the resolver.
//!
//! This crate is pure: no I/O, no clock, no async. A rule file goes through two stages. The raw
//! stage ([`RuleFile`]) is the file as typed, each value with its place; the compiled stage
//! ([`RuleSet`]) is checked, indexed and ready to answer which rules a request meets. Both report
//! every [`Problem`] they find at once.
//!
//! A caller prepares a request's [`Attributes`] (the endpoint through [`RequestPath`], the tier
//! through [`RuleSet::tier_of`]), asks [`RuleSet::listed`], then [`RuleSet::resolve`].

mod attributes;
mod candidate;
mod check;
mod circles;
mod client_tiers;
mod compile;
mod compile_grants;
mod compile_limit;
mod compile_matcher;
mod compile_rule;
mod envoy;
mod explain;
mod fields;
mod grants;
mod import_envoy;
mod index;
mod json;
mod known;
mod lenient_path;
mod lists;
mod matcher;
mod missing;
mod model;
mod node;
mod oracle;
mod overlap;
mod path;
mod pattern;
mod places;
pub mod prices;
mod problem;
mod raw;
mod read;
mod readings;
mod request_path;
mod resolve;
mod review;
mod schedule;
mod schema;
mod set;
pub mod terminal;
mod tiers;
mod trie;
mod virtual_keys;

pub use attributes::Attributes;
pub use candidate::{
    Agreement, AgreementCounts, Candidate, MAX_GENERATION, MAX_ROLLOUT_STEPS, MAX_ROLLOUT_TENANTS,
    Rollout,
};
pub use check::{
    MAX_DESCRIPTION_BYTES, MAX_NAME_BYTES, MAX_RULE_ID_BYTES, MAX_VALUE_BYTES, MAX_WINDOW,
    parse_duration,
};
pub use client_tiers::{CLIENT_BUCKETS, ClientTiers, client_bucket};
pub use compile::{DEFAULT_RULE_ID, DEFAULT_SCOPE, MAX_RULES};
pub use compile_grants::{MAX_GRANTS, MAX_RAISED_QUOTAS};
pub use compile_limit::{DEFAULT_SLOT_TTL, MAX_LIMITS, MAX_LOG_QUOTA, MAX_QUOTA, MAX_SLOTS};
pub use compile_matcher::{MAX_KEY_PARTS, MAX_PATTERNS, MAX_VALUES};
pub use compile_rule::{DEFAULT_OVERSHOOT_PPM, MAX_DELAY_MS, hit_reason};
pub use envoy::{EnvoyOptions, MAX_DESCRIPTOR_ENTRIES, MAX_METADATA_BYTES};
pub use explain::{Explained, Explanation, RuleVerdict, TierSource};
pub use fields::nearest as nearest_name;
pub use grants::Grant;
pub use import_envoy::{ImportOptions, MAX_IMPORT_DEPTH, descriptor_name, import_envoy};
pub use known::{AppliesTo, Known};
pub use lists::{ListEntry, ListKind, ListMatch};
pub use missing::Unmet;
pub use model::{
    Action, BudgetMode, Consistency, IdentifierType, KeyPart, NoMatch, OnStoreFailure, Quota, Rule,
    RuleLimit, STANDARD_SCOPES, TENANT_SCOPE_PREFIX, Unit,
};
pub use node::{MAX_ALIASED_NODES, MAX_DEPTH, MAX_FILE_BYTES, MAX_NODES};
pub use path::{MAX_ENCODED_SLASHES, MAX_PATH_BYTES, PathError, canonical_path, normalize_path};
pub use pattern::MAX_PATTERN_SEGMENTS;
pub use places::KeyPlaces;
pub use problem::{MAX_PROBLEMS, Problem, Problems};
pub use raw::RuleFile;
pub use request_path::RequestPath;
pub use resolve::{Applied, Resolution};
pub use review::{Effect, Finding, FindingKind};
pub use schedule::{MAX_ACTIVE_WINDOWS, Schedule};
pub use schema::rule_file_schema;
pub use set::RuleSet;
pub use virtual_keys::{
    KEY_BUCKETS, KEY_ID_PREFIX, KEY_RULE_PREFIX, KeyDigest, KeyProblem, KeyRefusal, LABELS_ONLY,
    MAX_KEY_LIMITS, MAX_KEY_MODELS, MAX_KEY_NAME_BYTES, MAX_KEY_TAGS, SECRET_PREFIX, VirtualKey,
    VirtualKeys, check_key, key_bucket, parse_digest,
};
