//! What the control plane reports about itself, as plain atomics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tollgate_control::{ControlError, Millis, RepositoryError};

use super::incidents::IncidentLog;

/// What `/readyz` says of a node whose rules have not arrived.
const NO_RULES: &str =
    "no rule set yet: neither the database nor Redis has given one since the start";

/// What an operator reads about a database that answers and cannot be used.
const DATABASE_UNREADABLE: &str = "the database cannot be read; decisions continue by the rules in \
    force, and rules cannot be changed: the log has the cause; correct this node's rights in it, or \
    restore it from a backup";

/// About one that cannot be written.
const DATABASE_READ_ONLY: &str = "the database is read-only; decisions continue by the rules in force, and rules \
    cannot be changed: make data_dir and its files writable for this node's user, or give the address of the \
    primary PostgreSQL; the log has the cause";

/// About one without room.
const DATABASE_FULL: &str = "the disk of the database is full; decisions continue by the rules in force, and rules \
    cannot be changed: free the disk of data_dir, or of the PostgreSQL server; audit.max_bytes bounds the log of \
    decisions";

/// Where the rules in force come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nowhere: the built-in default.
    Builtin,
    /// A file of the user's.
    File,
    /// The last known good set on disk.
    Kept,
    /// The database.
    Database,
    /// The Redis that the control plane publishes sets to.
    Redis,
}

impl Source {
    const ALL: [Self; 5] = [Self::Builtin, Self::File, Self::Kept, Self::Database, Self::Redis];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::File => "file",
            Self::Kept => "kept",
            Self::Database => "database",
            Self::Redis => "redis",
        }
    }
}

/// What happened to rule sets and to the audit log.
#[derive(Debug, Default)]
pub(crate) struct ControlFigures {
    pub(crate) version: AtomicI64,
    source: AtomicU64,
    /// When the source last said that nothing is newer, in seconds since 1970.
    pub(crate) last_success: AtomicI64,
    pub(crate) load_failures: AtomicU64,
    /// When this process began to wait for the source, in seconds since 1970.
    pub(crate) since: AtomicI64,
    /// Whether the source answers.
    pub(crate) is_connected: AtomicBool,
    /// Whether the schema of the database is being brought up to date.
    is_migrating: AtomicBool,
    /// Whether the rules are to come from a database or a Redis.
    awaits_rules: AtomicBool,
    pub(crate) decisions_written: AtomicU64,
    /// What could not be written in time.
    pub(crate) decisions_lost: AtomicU64,
    /// Whether the last ones were lost.
    pub(crate) is_losing_decisions: AtomicBool,
    /// Events of usage that this node noted, wrote to the ledger, and lost.
    pub(crate) usage_noted: AtomicU64,
    pub(crate) usage_written: AtomicU64,
    pub(crate) usage_lost: AtomicU64,
    /// Whether events of this node could not be stored lately.
    pub(crate) is_usage_unsent: AtomicBool,
    /// Whether events from Redis could not be written to the database lately.
    pub(crate) is_usage_unwritten: AtomicBool,
    /// The database that the rules in force are from, by its installation id.
    installation: Mutex<Option<String>>,
    owner_changed: Notify,
    /// What nodes that share a Redis disagree about.
    ownership: Mutex<Ownership>,
    /// Further states that an operator must see, by kind.
    incidents: Mutex<BTreeMap<&'static str, String>>,
    /// And those that are looked at every second. They concern this node's operation, not its readiness.
    watched: Mutex<Vec<(&'static str, String)>>,
    log: Mutex<IncidentLog>,
    /// Whether the database has failed in a way that lasts, and was not verified since.
    is_unverified: AtomicBool,
}

/// Who owns the rules of the nodes that share a Redis.
#[derive(Debug, Default)]
struct Ownership {
    /// Why this node's rules cannot be published, if those of another database are there.
    refused: Option<String>,
    /// What the reports of all nodes say.
    reported: Option<String>,
    /// How many owners they name.
    owners: u64,
}

/// A migration that runs.
pub(crate) struct Migrating<'a>(&'a AtomicBool);

impl Drop for Migrating<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl ControlFigures {
    pub(crate) fn source(&self) -> Source {
        let number = self.source.load(Ordering::Relaxed) as usize;
        Source::ALL.get(number).copied().unwrap_or(Source::Builtin)
    }

    /// A migration runs, until what is returned is dropped.
    pub(crate) fn migrating(&self) -> Migrating<'_> {
        self.is_migrating.store(true, Ordering::Relaxed);
        Migrating(&self.is_migrating)
    }

    /// The rules of this node come from a database or a Redis: without a set of theirs it is not ready.
    pub(crate) fn await_rules(&self) {
        self.awaits_rules.store(true, Ordering::Relaxed);
    }

    /// The source has answered that there is no set: the built-in rules are those that hold.
    pub(crate) fn know_there_are_no_rules(&self) {
        self.awaits_rules.store(false, Ordering::Relaxed);
    }

    /// Why this node is not ready: no set of rules has been in force since its start but the built-in one, and another is
    /// to come.
    pub(crate) fn lacks_rules(&self) -> Option<&'static str> {
        if self.source() != Source::Builtin {
            return None;
        }
        let is_migrating = self.is_migrating.load(Ordering::Relaxed);
        let awaits_rules = self.awaits_rules.load(Ordering::Relaxed);
        is_migrating.then_some("migrating the database").or(awaits_rules.then_some(NO_RULES))
    }

    /// A set came into force.
    pub(crate) fn in_force(&self, source: Source, version: i64) {
        let number = Source::ALL.iter().position(|one| *one == source).unwrap_or_default();
        self.source.store(number as u64, Ordering::Relaxed);
        self.version.store(version, Ordering::Relaxed);
    }

    /// The rules in force are those of this database.
    pub(crate) fn owned_by(&self, installation: &str) {
        let mut known = self.installation.lock();
        if known.as_deref() != Some(installation) {
            *known = Some(installation.to_owned());
            self.owner_changed.notify_one();
        }
    }

    /// Waits until the rules in force are those of another database.
    pub(crate) async fn owner_changed(&self) {
        self.owner_changed.notified().await;
    }

    /// Who owns the rules in force: a database, or a rule file with this digest.
    pub(crate) fn owner(&self, digest: u64) -> Option<String> {
        match self.source() {
            Source::Builtin => None,
            Source::File => Some(format!("file:{digest:016x}")),
            Source::Kept | Source::Database | Source::Redis => self.installation.lock().clone(),
        }
    }

    /// This node's rules cannot be published, because another database owns those in Redis; `None`: they
    /// can. True if that is news.
    pub(crate) fn publishing_refused(&self, why: Option<String>) -> bool {
        let mut ownership = self.ownership.lock();
        let is_news = ownership.refused != why;
        ownership.refused = why;
        is_news
    }

    /// What the reports of all nodes say about owners. True if that is news.
    pub(crate) fn owners_reported(&self, owners: usize, disagreement: Option<String>) -> bool {
        let mut ownership = self.ownership.lock();
        ownership.owners = owners as u64;
        let is_news = ownership.reported.is_some() != disagreement.is_some();
        ownership.reported = disagreement;
        is_news
    }

    /// What is wrong with the ownership of rules, in words, if anything is.
    pub(crate) fn disagreement(&self) -> Option<String> {
        let ownership = self.ownership.lock();
        ownership.refused.clone().or_else(|| ownership.reported.clone())
    }

    /// A state that an operator must see has begun, or ended. The text says what to do.
    pub(crate) fn report_incident(&self, kind: &'static str, text: Option<String>) {
        let mut incidents = self.incidents.lock();
        match text {
            Some(text) => incidents.insert(kind, text),
            None => incidents.remove(kind),
        };
    }

    /// A state that an operator must see, unless more is known about it already.
    pub(crate) fn report_if_none(&self, kind: &'static str, text: &str) {
        self.incidents.lock().entry(kind).or_insert_with(|| text.to_owned());
    }

    /// A call of the database failed in a way that lasts: it is reported until all of the database has been verified,
    /// since a call that succeeds does not prove that this one would.
    pub(crate) fn database_failed(&self, error: &ControlError) {
        let ControlError::Repository(error) = error else { return };
        let text = match error {
            RepositoryError::ReadOnly(_) => DATABASE_READ_ONLY,
            RepositoryError::DiskFull(_) => DATABASE_FULL,
            RepositoryError::Corrupt(_) | RepositoryError::NewerSchema { .. } => {
                DATABASE_UNREADABLE
            }
            RepositoryError::Unavailable(_)
            | RepositoryError::Stale
            | RepositoryError::Conflict { .. }
            | RepositoryError::Invalid(_) => return,
        };
        self.is_unverified.store(true, Ordering::Relaxed);
        self.report_incident("database", Some(text.to_owned()));
    }

    /// Whether the database must be verified before it counts as usable.
    pub(crate) fn is_unverified(&self) -> bool {
        self.is_unverified.load(Ordering::Relaxed)
    }

    /// All of the database can be read and written.
    pub(crate) fn verified(&self) {
        self.is_unverified.store(false, Ordering::Relaxed);
    }

    /// The states that an operator must see at readiness, with their kinds.
    pub(crate) fn incidents(&self) -> Vec<(&'static str, String)> {
        let owners = self.disagreement().map(|text| ("rule_owners", text));
        let watched = self.watched.lock();
        let disk = watched.iter().find(|(kind, _)| *kind == "disk").cloned();
        drop(watched);
        let others = self.incidents.lock();
        let others = others.iter().map(|(kind, text)| (*kind, text.clone()));
        owners.into_iter().chain(others).chain(disk).collect()
    }

    /// The states of this second, of those that are watched.
    pub(crate) fn watched<const N: usize>(&self, states: [(&'static str, Option<String>); N]) {
        let lasting = states.into_iter().filter_map(|(kind, text)| Some((kind, text?)));
        *self.watched.lock() = lasting.collect();
    }

    /// All states that an operator must see, watched ones included.
    pub(crate) fn all_incidents(&self) -> Vec<(&'static str, String)> {
        let mut all = self.incidents();
        all.extend(self.watched.lock().iter().filter(|(kind, _)| *kind != "disk").cloned());
        all
    }

    /// Keeps the times of the states that there are now.
    pub(crate) fn note_incidents(&self, now: Millis) {
        self.log.lock().note(now, &self.all_incidents());
    }

    /// The incidents that last and those that are over.
    pub(crate) fn incident_log(&self) -> Vec<Value> {
        self.log.lock().all()
    }

    /// How many owners the nodes that share a Redis have; more than one: they enforce different rules.
    pub(crate) fn owners(&self) -> u64 {
        let ownership = self.ownership.lock();
        ownership.owners.max(if ownership.refused.is_some() { 2 } else { 0 })
    }

    /// The source said that nothing is newer, or gave what is.
    pub(crate) fn success(&self) {
        let now = crate::admin::now() / 1_000;
        self.last_success.store(now, Ordering::Relaxed);
        self.is_connected.store(true, Ordering::Relaxed);
    }

    /// The source did not answer. True if it did before.
    pub(crate) fn lost(&self) -> bool {
        self.is_connected.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn failure(&self) {
        self.load_failures.fetch_add(1, Ordering::Relaxed);
    }
}
