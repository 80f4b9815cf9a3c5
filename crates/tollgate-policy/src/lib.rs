//! The rule model of Tollgate: rule files read, checked and compiled, and the resolver.
//!
//! This crate is pure: no I/O, no clock, no async. A rule file goes through two stages. The raw
//! stage ([`RuleFile`]) is the file as typed, each value with its place; the compiled stage
//! ([`RuleSet`]) is checked, indexed and ready to answer which rules a request meets. Both report
//! every [`Problem`] they find at once.
//!
//! A caller prepares a request's [`Attributes`] (the endpoint through [`normalize_path`], the tier
//! through [`RuleSet::tier_of`]), asks [`RuleSet::listed`], then [`RuleSet::resolve`].

mod attributes;
mod compile;
mod index;
mod lists;
mod matcher;
mod model;
mod path;
mod pattern;
mod problem;
mod raw;
mod resolve;
mod schema;
mod set;
mod tiers;
mod trie;

pub use attributes::{Attributes, Known};
pub use lists::{ListEntry, ListKind, Listed};
pub use model::{
    Action, Consistency, IdentifierType, KeyPart, NoMatch, OnStoreFailure, Quota, Rule, RuleLimit,
    STANDARD_SCOPES, Unit,
};
pub use path::{MAX_PATH_BYTES, PathError, normalize_path};
pub use pattern::MAX_PATTERN_SEGMENTS;
pub use problem::{Problem, Problems};
pub use raw::RuleFile;
pub use resolve::{Applied, Resolution};
pub use schema::rule_file_schema;
pub use set::RuleSet;
