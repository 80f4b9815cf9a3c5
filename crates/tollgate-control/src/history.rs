//! How much of the history of changes is kept, and what is known of what was removed.

use crate::Millis;

/// How many records of changes are kept, and how many bytes they take. The oldest are removed, and a [`Checkpoint`] says which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryBounds {
    /// Versions of one rule.
    pub versions_per_rule: u32,
    /// Versions of all rules of one tenant.
    pub versions_per_tenant: u32,
    /// Versions of all rules without a tenant.
    pub versions: u32,
    /// Changes that the admins of one tenant made.
    pub changes_per_tenant: u32,
    /// Changes that all others made.
    pub changes: u32,
    /// Bytes of the versions of one rule.
    pub bytes_per_rule: u64,
    /// Bytes of the versions of all rules of one tenant, and as many of the changes that its admins made.
    pub bytes_per_tenant: u64,
    /// Bytes of the versions of all rules without a tenant, and as many of the changes that all others made.
    pub bytes: u64,
}

impl Default for HistoryBounds {
    fn default() -> Self {
        Self {
            versions_per_rule: 1_000,
            versions_per_tenant: 5_000,
            versions: 1_000_000,
            changes_per_tenant: 10_000,
            changes: 1_000_000,
            bytes_per_rule: 16 << 20,
            bytes_per_tenant: 64 << 20,
            bytes: 1 << 30,
        }
    }
}

/// What is known of records that were removed to keep a bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The tenant whose records they were; `None`: the installation's.
    pub tenant: Option<String>,
    /// How many.
    pub removed: i64,
    /// The lowest number among them: of a version of a rule, or of a change.
    pub first: i64,
    /// The highest number among them.
    pub last: i64,
    /// When the earliest was made.
    pub from: Millis,
    /// When the latest was made.
    pub until: Millis,
    /// SHA-256 in hex over the digest before and every removed record, so that a copy of them can be checked.
    pub digest: String,
}
