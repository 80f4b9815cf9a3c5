//! The control plane: rules in a database, who may change them, and what was changed.
//!
//! Everything that makes up the rule set is an [`Entry`]: a rule, a line of a list, a tier, the tier of
//! a client, a grant, a setting. A change is one transaction that writes entries, their audit records
//! and the next revision together, so that nothing is half-written and nothing is unaudited.
//!
//! This crate knows no HTTP and no Redis: the server puts it behind the admin API and carries its
//! [`Loaded`] sets to the nodes.

pub mod chain;
mod compiled;
pub mod content;
mod database;
pub mod document;
pub mod draft;
mod error;
mod history;
pub mod kept;
mod model;
mod postgres;
mod records;
mod repository;
mod service;
mod sql;
mod sqlite;
mod tenant;
mod tier_names;
mod token;
mod usage;

pub use chain::{ChainPage, ChainPlace, PublicKey, Signer};
pub use compiled::{CompileError, Compiled};
pub use database::DatabaseConfig;
pub use error::{ControlError, FieldProblem, RepositoryError};
pub use history::{Checkpoint, HistoryBounds};
pub use model::{
    Actor, ChangeNote, ClientTier, Committed, Entry, Expected, Kind, Loaded, Millis, Revision,
    Stamp, TIER_BUCKETS, Write, tier_bucket,
};
pub use postgres::PostgresRepository;
pub use records::{
    ChangeFilter, ChangeRecord, DecisionFilter, DecisionPlace, DecisionRecord, EntryFilter, Page,
    RuleVersionAt, StoredDecision,
};
pub use repository::{Repository, Waker};
pub use service::{
    Applied, CandidateStep, Changed, Control, ControlOptions, CreatedKey, Current, FIRST_TOKEN,
    MAX_KEYS, MAX_KEYS_PER_TENANT, MAX_OVERLAP_SECONDS, MAX_SESSIONS, MAX_SESSIONS_PER_PERSON,
    NewToken, Precondition, Put, Step, StepKind, is_session,
};
pub use sqlite::SqliteRepository;
pub use tenant::{TENANT_SCOPE, tenant_scope};
pub use token::{Identity, MAX_TOKEN_BYTES, MIN_TOKEN_BYTES, Role, digest, is_session_token};
pub use usage::{
    UsageAmounts, UsageDimension, UsageEvent, UsageQuery, UsageRetention, UsageRow, UsageSweep,
};
