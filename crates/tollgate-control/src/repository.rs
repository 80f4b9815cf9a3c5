//! What a database must be able to do.

use std::time::Duration;

use async_trait::async_trait;

use crate::{
    Actor, ChainPage, ChainPlace, ChangeFilter, ChangeRecord, Checkpoint, Committed,
    DecisionFilter, DecisionPlace, DecisionRecord, Entry, EntryFilter, Kind, Loaded, Millis, Page,
    PublicKey, RepositoryError, Revision, RuleVersionAt, StoredDecision, UsageEvent, UsageQuery,
    UsageRetention, UsageRow, UsageSweep, Write,
};

/// Where the control plane keeps what it knows. One suite holds for all of them.
#[async_trait]
pub trait Repository: Send + Sync + 'static {
    /// The version of the schema as it is; 0: there is none.
    async fn schema_version(&self) -> Result<i64, RepositoryError>;

    /// Brings the schema up to date, one process at a time, and says its version. Does nothing if it
    /// is. A log of many millions of records takes minutes.
    async fn migrate(&self) -> Result<i64, RepositoryError>;

    /// The revision of the set.
    async fn revision(&self) -> Result<Revision, RepositoryError>;

    /// Raises the revision to at least this, because nodes have seen it already (the database was
    /// restored from a backup). If it was lower, all buckets of clients' tiers count as changed: those
    /// that nodes hold may be from a time that this database has not seen.
    async fn raise_revision(&self, least: Revision) -> Result<Revision, RepositoryError>;

    /// The whole set, in one consistent view; of clients' tiers only the buckets that changed after
    /// `since`.
    async fn load(&self, since: Option<Revision>) -> Result<Loaded, RepositoryError>;

    /// One entry.
    async fn get(&self, kind: Kind, id: &str) -> Result<Option<Entry>, RepositoryError>;

    /// Entries of a kind, by id.
    async fn list(
        &self,
        kind: Kind,
        filter: &EntryFilter,
        page: &Page,
    ) -> Result<Vec<Entry>, RepositoryError>;

    /// How many entries a filter finds.
    async fn count(&self, kind: Kind, filter: &EntryFilter) -> Result<i64, RepositoryError>;

    /// Writes all of it or nothing: entries, versions of rules, audit records, the next revision (if
    /// anything of the set is written), and a notification of the change. `base`: the revision
    /// that the change was checked against; another one there now makes it [`RepositoryError::Stale`].
    /// Expectations are checked in the order given; what a change leaves is written kind by kind, so
    /// that a tier may be named after the clients that have it.
    async fn commit(
        &self,
        base: Option<Revision>,
        writes: &[Write],
        actor: &Actor,
    ) -> Result<Committed, RepositoryError>;

    /// The versions of a rule, the newest first, also of one that was deleted (a version without a
    /// body says so: its body is null), but for those that were removed ([`Checkpoint`]).
    async fn rule_versions(&self, id: &str, page: &Page) -> Result<Vec<Entry>, RepositoryError>;

    /// What was removed of a rule's versions to keep the bounds.
    async fn rule_checkpoint(&self, id: &str) -> Result<Option<Checkpoint>, RepositoryError>;

    /// What was removed of the changes that this tenant's admins made, or all admins, to keep the bounds.
    async fn change_checkpoints(
        &self,
        tenant: Option<&str>,
    ) -> Result<Vec<Checkpoint>, RepositoryError>;

    /// One version of a rule.
    async fn rule_version(&self, id: &str, version: i64) -> Result<Option<Entry>, RepositoryError>;

    /// The token with this digest (SHA-256 in hex), revoked and expired ones too.
    async fn token(&self, digest: &str) -> Result<Option<Entry>, RepositoryError>;

    /// Changes, the newest first.
    async fn changes(
        &self,
        filter: &ChangeFilter,
        page: &Page,
    ) -> Result<Vec<ChangeRecord>, RepositoryError>;

    /// A part of the signed history: at most so many links after a place.
    async fn chain(&self, after: ChainPlace, limit: u32) -> Result<ChainPage, RepositoryError>;

    /// The public key with which this process signs the history; `None`: it has no key.
    fn public_key(&self) -> Option<PublicKey>;

    /// Keeps decisions. Those that are kept already (by their event id) are left as they are. Says how
    /// many were new. Texts are cut at 1 kB, for clients choose them.
    async fn record(&self, decisions: &[DecisionRecord]) -> Result<u64, RepositoryError>;

    /// Decisions, the last written first.
    async fn decisions(
        &self,
        filter: &DecisionFilter,
        page: &Page,
    ) -> Result<Vec<StoredDecision>, RepositoryError>;

    /// Decisions by time, the newest first: those before a place. Each attribute has an index for this.
    async fn search_decisions(
        &self,
        filter: &DecisionFilter,
        before: Option<DecisionPlace>,
        limit: u32,
    ) -> Result<Vec<StoredDecision>, RepositoryError>;

    /// How many decisions a filter finds; counts to `most` and no further.
    async fn count_decisions(
        &self,
        filter: &DecisionFilter,
        most: u32,
    ) -> Result<i64, RepositoryError>;

    /// For each rule and revision the version of the rule that was in force then, if the log of changes still has it.
    async fn rule_versions_at(
        &self,
        rules: &[(String, Revision)],
    ) -> Result<Vec<Option<RuleVersionAt>>, RepositoryError>;

    /// Forgets decisions from before a time, at most so many at once; says how many.
    async fn prune(&self, before: Millis, most: u32) -> Result<u64, RepositoryError>;

    /// Removes the oldest decisions of the tenants that take the most, at most so many at once, where all take more
    /// bytes than this, and returns how many. Each tenant, and all decisions without one, has a share. 0: the rest is
    /// within the bound, and free pages go back to the disk some at a time.
    ///
    /// After an error, a call for fewer may succeed: a change needs room on the disk for its journal.
    async fn bound_decisions(&self, max_bytes: u64, most: u32) -> Result<u64, RepositoryError>;

    /// Stores figures of a node by field, and notes that it is alive. They are kept for `kept` after the last call. False
    /// if there are nodes enough that were seen within `live`.
    async fn put_figures(
        &self,
        node: &str,
        fields: &[(String, String)],
        kept: Duration,
        live: Duration,
    ) -> Result<bool, RepositoryError>;

    /// The nodes with figures, and how long ago each was seen, the latest first.
    async fn figure_nodes(&self) -> Result<Vec<(String, Duration)>, RepositoryError>;

    /// Figures of a node, in the order of the fields; those that are missing or too long are left out.
    async fn figures(
        &self,
        node: &str,
        fields: &[String],
    ) -> Result<Vec<Option<Vec<u8>>>, RepositoryError>;

    /// Adds events to the ledger of usage, each once by its id, in one transaction; says how many were new. Where a day has
    /// `max_rows_per_day` rows, further names are left out, and the usage is counted all the same.
    async fn record_usage(
        &self,
        events: &[UsageEvent],
        max_rows_per_day: u32,
    ) -> Result<u64, RepositoryError>;

    /// Counts what is open and has expired as it was estimated; says how many of it were looked at.
    async fn sweep_usage(&self, sweep: &UsageSweep) -> Result<u64, RepositoryError>;

    /// Usage within a time, grouped.
    async fn usage_report(&self, query: &UsageQuery) -> Result<Vec<UsageRow>, RepositoryError>;

    /// Removes what is no longer kept of the ledger; says how many rows.
    async fn prune_usage(&self, retention: &UsageRetention) -> Result<u64, RepositoryError>;

    /// Whether everything can be read and something be written: tables of a server, pages of a file. Slow; for a
    /// database that has failed, since a question that succeeds does not prove that another would.
    async fn verify(&self) -> Result<(), RepositoryError>;

    /// What wakes when another process may have changed the set; `None` where there is no such word,
    /// and [`Repository::revision`] must be asked now and then.
    async fn waker(&self) -> Result<Option<Box<dyn Waker>>, RepositoryError>;

    /// Ends all connections.
    async fn close(&self);
}

/// Waits for changes.
#[async_trait]
pub trait Waker: Send {
    /// Returns when the set may have changed, or when the connection is lost, which is an error: get
    /// another one, and look at the revision, for words may have been missed.
    async fn wait(&mut self) -> Result<(), RepositoryError>;
}
