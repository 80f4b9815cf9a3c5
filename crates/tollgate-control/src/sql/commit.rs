//! One change: all of it or nothing.
//!
//! First it is played through in memory, in the order given, against the versions there are. What is
//! left is written kind by kind: tiers come before the clients that have them, and go after them.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::batch::{Batch, Column, int, text};
use super::chain::{self, Chain};
use super::checkpoints;
use super::decisions::cut;
use super::driver::Dialect;
use super::history::{self, Added};
use super::query::Query;
use super::session::{Session, fetch_all, fetch_int};
use super::table::{MAX_ID_BYTES, NewRow, Table, client_bucket};
use crate::chain::ChainedChange;
use crate::{
    Actor, Committed, Expected, HistoryBounds, Kind, RepositoryError, Revision, Signer, Write,
};

/// What is known of an entry while the change is played through.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    /// Its version; `None`: it is not there.
    version: Option<i64>,
    /// The last version there was. Only rules remember it when they are gone.
    last: i64,
}

impl Standing {
    fn check(self, write: &Write) -> Result<(), RepositoryError> {
        let is_met = match write.expected {
            Expected::Any => true,
            Expected::Absent => self.version.is_none(),
            Expected::Present => self.version.is_some(),
            Expected::Version(version) => self.version == Some(version),
        };
        let (kind, id) = (write.kind, write.id.clone());
        if is_met {
            Ok(())
        } else {
            Err(RepositoryError::Conflict { kind, id, have: self.version })
        }
    }

    /// The version that a write makes. To delete a rule makes one; to delete nothing does not.
    fn apply(&mut self, write: &Write) -> i64 {
        let is_rule = write.kind == Kind::Rule;
        let was_there = self.version.is_some();
        let before = if is_rule { self.last } else { self.version.unwrap_or(0) };
        let is_step = write.body.is_some() || (is_rule && was_there);
        let version = before.saturating_add(i64::from(is_step));
        self.last = version;
        self.version = write.body.is_some().then_some(version);
        version
    }
}

type Standings = HashMap<(Kind, String), Standing>;

/// A write, and the version it makes.
struct Step<'a> {
    write: &'a Write,
    version: i64,
    /// Whether a rule that is to be deleted was there.
    is_change: bool,
}

/// How the history of changes is kept.
pub(super) struct Kept<'a> {
    pub(super) bounds: &'a HistoryBounds,
    /// What signs it.
    pub(super) signer: Option<&'a Signer>,
}

/// One change on its way into the database.
struct Change<'a> {
    dialect: &'a Dialect,
    steps: Vec<Step<'a>>,
    actor: &'a Actor,
    revision: Revision,
    at: i64,
}

pub(super) async fn commit(
    session: &mut dyn Session,
    dialect: &Dialect,
    kept: &Kept<'_>,
    base: Option<Revision>,
    writes: &[Write],
    actor: &Actor,
) -> Result<Committed, RepositoryError> {
    let before = fetch_int(session, Query::new(dialect.lock_revision)).await?;
    if base.is_some_and(|base| base != before) {
        return Err(RepositoryError::Stale);
    }
    let at = fetch_int(session, Query::new(dialect.now)).await?;
    let mut standings = standings(session, dialect, writes).await?;
    start_after_forgotten(session, writes, &mut standings).await?;
    let mut steps = Vec::with_capacity(writes.len());
    for write in writes {
        let standing = standings.entry((write.kind, write.id.clone())).or_default();
        standing.check(write)?;
        let is_change = write.body.is_some() || standing.version.is_some();
        steps.push(Step { write, version: standing.apply(write), is_change });
    }
    let is_in_set = writes.iter().any(|write| write.kind.is_in_set());
    let revision = before.saturating_add(i64::from(is_in_set));
    let change = Change { dialect, steps, actor, revision, at };
    // Before the entries: of a client that goes only its row knows the bucket.
    change.mark_buckets(session).await?;
    change.mark_key_buckets(session).await?;
    change.write_entries(session).await?;
    change.write_rule_versions(session).await?;
    if !change.steps.is_empty() {
        let mut chain = Chain::load(session, kept.signer).await?;
        change.write_audit(session, &mut chain).await?;
        let bounds = (kept.bounds, &mut chain);
        history::keep_bounds(session, dialect, bounds, &change.added()).await?;
        chain.store(session).await?;
    }
    if is_in_set {
        let query = Query::new("UPDATE control_state SET revision = $1 WHERE id = 1");
        session.execute(query.bind(revision)).await?;
        if let Some(notify) = dialect.notify {
            session.execute(Query::new(notify)).await?;
        }
    }
    let versions = change.steps.iter().map(|step| step.version).collect();
    Ok(Committed { revision, at, versions })
}

/// How the entries stand that are to be written; those that are not named never were.
async fn standings(
    session: &mut dyn Session,
    dialect: &Dialect,
    writes: &[Write],
) -> Result<Standings, RepositoryError> {
    let mut standings = Standings::new();
    for kind in Kind::ALL {
        let ids = ids(writes, kind)?;
        if ids.is_empty() {
            continue;
        }
        if kind == Kind::Rule {
            let statement = "SELECT rule_id, MAX(version) FROM rate_limit_rule_versions";
            let rest = "GROUP BY rule_id";
            let query = ids.clone().select_in(dialect, statement, text("rule_id"), rest);
            for (id, last) in versions(session, query).await? {
                standings.insert((kind, id), Standing { version: None, last });
            }
        }
        let table = Table::of(kind);
        let statement = format!("SELECT {}, version FROM {}", table.id, table.name);
        let query = ids.select_in(dialect, &statement, text(table.id), "");
        for (id, version) in versions(session, query).await? {
            let standing = standings.entry((kind, id)).or_default();
            standing.version = Some(version);
            standing.last = standing.last.max(version);
        }
    }
    Ok(standings)
}

/// Rules that are not known may have been known before: their versions go on after all that were removed.
async fn start_after_forgotten(
    session: &mut dyn Session,
    writes: &[Write],
    standings: &mut Standings,
) -> Result<(), RepositoryError> {
    let mut forgotten: HashMap<&str, i64> = HashMap::new();
    for write in writes.iter().filter(|write| write.kind == Kind::Rule) {
        let place = (write.kind, write.id.clone());
        if standings.contains_key(&place) {
            continue;
        }
        let owner = write.tenant.as_deref().unwrap_or_default();
        let last = match forgotten.get(owner) {
            Some(last) => *last,
            None => checkpoints::forgotten_versions(session, owner).await?,
        };
        forgotten.insert(owner, last);
        standings.insert(place, Standing { version: None, last });
    }
    Ok(())
}

fn ids(writes: &[Write], kind: Kind) -> Result<Batch, RepositoryError> {
    let mut ids = Batch::new();
    for Write { id, .. } in writes.iter().filter(|write| write.kind == kind) {
        if id.is_empty() || id.len() > MAX_ID_BYTES {
            let problem = format!("an id has 1 to {MAX_ID_BYTES} bytes, not {}", id.len());
            return Err(RepositoryError::Invalid(problem));
        }
        ids.row(&[id.as_str().into()])?;
    }
    Ok(ids)
}

async fn versions(
    session: &mut dyn Session,
    query: Query,
) -> Result<Vec<(String, i64)>, RepositoryError> {
    fetch_all(session, query, |row| Ok((row.text()?, row.int()?))).await
}

/// What a value takes in the database.
fn json_bytes(value: Option<&Value>) -> i64 {
    value.map_or(0, |value| i64::try_from(value.to_string().len()).unwrap_or(i64::MAX / 4))
}

impl Change<'_> {
    /// What this change adds to the history.
    fn added(&self) -> Added<'_> {
        let owner = self.actor.tenant.as_deref().unwrap_or_default();
        let mut added = Added { owner, ..Added::default() };
        for Step { write, version, is_change } in &self.steps {
            let note = &write.note;
            added.changes.add(json_bytes(note.before.as_ref()) + json_bytes(note.after.as_ref()));
            if write.kind == Kind::Rule && *is_change {
                added.newest.insert(&write.id, *version);
                let tenant = write.tenant.as_deref().unwrap_or_default();
                added.versions.entry(tenant).or_default().add(json_bytes(write.body.as_ref()));
            }
        }
        added
    }

    /// Of several writes of one entry, the last stays.
    async fn write_entries(&self, session: &mut dyn Session) -> Result<(), RepositoryError> {
        let mut last = HashMap::new();
        for (index, Step { write, .. }) in self.steps.iter().enumerate() {
            last.insert((write.kind, write.id.as_str()), index);
        }
        let is_last = |index: usize, write: &Write| {
            last.get(&(write.kind, write.id.as_str())) == Some(&index)
        };
        let of = |kind: Kind| {
            let steps = self.steps.iter().enumerate();
            let steps = steps.filter(move |(_, step)| step.write.kind == kind);
            steps.filter(|(index, step)| is_last(*index, step.write)).map(|(_, step)| step)
        };
        for kind in Kind::ALL {
            let table = Table::of(kind);
            let mut rows = Batch::new();
            for Step { write, version, .. } in of(kind) {
                if let Some(body) = &write.body {
                    self.put(&table, &mut rows, write, body, *version)?;
                }
            }
            if !rows.is_empty() {
                let (columns, conflict) = (table.columns(), table.on_conflict());
                let query = rows.insert(self.dialect, table.name, &columns, &conflict);
                session.execute(query).await?;
            }
        }
        for kind in Kind::ALL.into_iter().rev() {
            let table = Table::of(kind);
            let mut ids = Batch::new();
            for Step { write, .. } in of(kind).filter(|step| step.write.body.is_none()) {
                ids.row(&[write.id.as_str().into()])?;
            }
            if !ids.is_empty() {
                let statement = format!("DELETE FROM {}", table.name);
                let query = ids.select_in(self.dialect, &statement, text(table.id), "");
                session.execute(query).await?;
            }
        }
        Ok(())
    }

    fn put(
        &self,
        table: &Table,
        rows: &mut Batch,
        write: &Write,
        body: &Value,
        version: i64,
    ) -> Result<(), RepositoryError> {
        let json = if table.has_body { body.to_string() } else { String::new() };
        let cells = table.cells(&NewRow {
            id: &write.id,
            body,
            json: &json,
            version,
            tenant: write.tenant.as_deref(),
            at: self.at,
            by: &self.actor.name,
        })?;
        rows.row(&cells)
    }

    async fn write_rule_versions(&self, session: &mut dyn Session) -> Result<(), RepositoryError> {
        const COLUMNS: [Column; 6] = [
            text("rule_id"),
            int("version"),
            text("body"),
            text("tenant_id"),
            int("created_at"),
            text("created_by"),
        ];
        let mut rows = Batch::new();
        for Step { write, version, is_change } in &self.steps {
            if write.kind == Kind::Rule && *is_change {
                let body = write.body.as_ref().map(Value::to_string);
                let (id, tenant) = (write.id.as_str(), write.tenant.as_deref());
                let (at, by) = (self.at, self.actor.name.as_str());
                rows.row(&[
                    id.into(),
                    (*version).into(),
                    body.as_deref().into(),
                    tenant.into(),
                    at.into(),
                    by.into(),
                ])?;
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let query = rows.insert(self.dialect, "rate_limit_rule_versions", &COLUMNS, "");
        session.execute(query).await.map(drop)
    }

    async fn write_audit(
        &self,
        session: &mut dyn Session,
        chain: &mut Chain<'_>,
    ) -> Result<(), RepositoryError> {
        let actor = self.actor;
        let request_id = actor.request_id.as_deref().map(cut);
        let address = actor.address.as_deref().map(cut);
        let mut rows = Batch::new();
        for Step { write, version, .. } in &self.steps {
            let mut record = ChainedChange {
                number: 0,
                id: 0,
                at: self.at,
                actor: actor.name.clone(),
                token_id: actor.token_id.clone(),
                action: write.note.action.to_owned(),
                kind: write.kind.name().to_owned(),
                entry_id: write.id.clone(),
                tenant_id: write.tenant.clone(),
                version: *version,
                revision: self.revision,
                before: write.note.before.as_ref().map(Value::to_string),
                after: write.note.after.as_ref().map(Value::to_string),
                request_id: request_id.as_deref().map(str::to_owned),
                address: address.as_deref().map(str::to_owned),
                owner: actor.tenant.clone().unwrap_or_default(),
                hash: String::new(),
            };
            chain.append(&mut record);
            rows.row(&chain::cells(&record))?;
        }
        let query = rows.insert(self.dialect, "admin_audit_log", &chain::COLUMNS, "");
        session.execute(query).await.map(drop)
    }

    /// Buckets in which a virtual key was written.
    async fn mark_key_buckets(&self, session: &mut dyn Session) -> Result<(), RepositoryError> {
        let writes = self.steps.iter().map(|step| step.write);
        let keys = writes.filter(|write| write.kind == Kind::Key);
        let mut buckets = BTreeSet::new();
        for write in keys {
            let unknown = || RepositoryError::Invalid(format!("{:?} is no id of a key", write.id));
            buckets.insert(i64::from(tollgate_policy::key_bucket(&write.id).ok_or_else(unknown)?));
        }
        self.mark(session, "api_key_buckets", buckets).await
    }

    /// Buckets in which a client's tier was written.
    async fn mark_buckets(&self, session: &mut dyn Session) -> Result<(), RepositoryError> {
        let writes = self.steps.iter().map(|step| step.write);
        let (mut buckets, mut gone) = (BTreeSet::new(), Batch::new());
        for write in writes.filter(|write| write.kind == Kind::ClientTier) {
            match &write.body {
                Some(body) => buckets.extend(client_bucket(body)),
                None => gone.row(&[write.id.as_str().into()])?,
            }
        }
        if !gone.is_empty() {
            let statement = "UPDATE client_tier_buckets SET revision = $2 WHERE bucket IN \
                             (SELECT bucket FROM client_tiers";
            let query = gone.select_in(self.dialect, statement, text("id"), ")");
            session.execute(query.bind(self.revision)).await?;
        }
        self.mark(session, "client_tier_buckets", buckets).await
    }

    async fn mark(
        &self,
        session: &mut dyn Session,
        table: &str,
        buckets: BTreeSet<i64>,
    ) -> Result<(), RepositoryError> {
        let mut rows = Batch::new();
        for bucket in buckets {
            rows.row(&[bucket.into()])?;
        }
        if rows.is_empty() {
            return Ok(());
        }
        let statement = format!("UPDATE {table} SET revision = $2");
        let query = rows.select_in(self.dialect, &statement, int("bucket"), "");
        session.execute(query.bind(self.revision)).await.map(drop)
    }
}
