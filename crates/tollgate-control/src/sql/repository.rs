//! Every [`Driver`] is a [`Repository`]. Each call has a deadline.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;

use super::driver::{Access, Driver};
use super::query::Query;
use super::session::{Session, fetch_int, finish};
use super::{
    audit_bound, chain, checkpoints, commit, decisions, entries, figures, load, migrate, search,
    usage, usage_open, verify,
};
use crate::{
    Actor, ChainPage, ChainPlace, ChangeFilter, ChangeRecord, Checkpoint, Committed,
    DecisionFilter, DecisionPlace, DecisionRecord, Entry, EntryFilter, Kind, Loaded, Millis, Page,
    PublicKey, Repository, RepositoryError, Revision, RuleVersionAt, Signer, StoredDecision,
    UsageEvent, UsageQuery, UsageRetention, UsageRow, UsageSweep, Waker, Write,
};

/// How long a question may take.
const ANSWER: Duration = Duration::from_secs(6);

/// How long it may take to move many rows.
const WORK: Duration = Duration::from_secs(30);

/// How long a migration may take: it makes indexes of a log of many millions of records.
const MIGRATION: Duration = Duration::from_secs(15 * 60);

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, RepositoryError>>,
) -> Result<T, RepositoryError> {
    let late = |_| RepositoryError::Unavailable(format!("no answer within {limit:?}"));
    timeout(limit, work).await.map_err(late)?
}

/// A transaction.
async fn begin<D: Driver>(driver: &D) -> Result<Box<dyn Session>, RepositoryError> {
    let mut session = driver.session(Access::Write).await?;
    session.begin(driver.dialect().begin_write).await?;
    Ok(session)
}

async fn allow_long<D: Driver>(
    driver: &D,
    session: &mut dyn Session,
) -> Result<(), RepositoryError> {
    match driver.dialect().allow_long {
        Some(sql) => session.script(sql).await,
        None => Ok(()),
    }
}

/// Takes the next step of the schema, in a transaction of its own: what is done stays done if a later step fails.
async fn take_step<D: Driver>(driver: &D) -> Result<(), RepositoryError> {
    let mut session = begin(driver).await?;
    if let Some(sql) = driver.dialect().allow_migration {
        session.script(sql).await?;
    }
    let result = migrate::step(&mut *session, driver.dialect()).await;
    if let Some(version) = finish(session, result).await? {
        tracing::debug!(version, "a step of the database's schema is done");
    }
    Ok(())
}

/// Begins the signed history: records that are there already are covered by its genesis.
async fn begin_chain<D: Driver>(driver: &D) -> Result<(), RepositoryError> {
    let mut session = begin(driver).await?;
    if let Some(sql) = driver.dialect().allow_migration {
        session.script(sql).await?;
    }
    let result = chain::begin(&mut *session, driver.dialect()).await;
    finish(session, result).await
}

async fn raise<D: Driver>(
    driver: &D,
    session: &mut dyn Session,
    least: Revision,
) -> Result<Revision, RepositoryError> {
    let dialect = driver.dialect();
    let have = fetch_int(session, Query::new(dialect.lock_revision)).await?;
    if have >= least {
        return Ok(have);
    }
    // What nodes hold of clients' tiers and of keys is from a time that this database has not seen.
    for statement in [
        "UPDATE api_key_buckets SET revision = $1",
        "UPDATE client_tier_buckets SET revision = $1",
        "UPDATE control_state SET revision = $1 WHERE id = 1",
    ] {
        session.execute(Query::new(statement).bind(least)).await?;
    }
    if let Some(notify) = dialect.notify {
        session.execute(Query::new(notify)).await?;
    }
    Ok(least)
}

#[async_trait]
impl<D: Driver> Repository for D {
    async fn schema_version(&self) -> Result<i64, RepositoryError> {
        within(ANSWER, async {
            migrate::version(&mut *self.session(Access::Read).await?, self.dialect()).await
        })
        .await
    }

    async fn migrate(&self) -> Result<i64, RepositoryError> {
        within(MIGRATION, async {
            let mut has_changed = false;
            loop {
                let mut session = self.session(Access::Read).await?;
                if let Some(version) = migrate::is_done(&mut *session, self.dialect()).await? {
                    let has_begun = chain::has_begun(&mut *session).await?;
                    drop(session);
                    if !has_begun {
                        begin_chain(self).await?;
                    }
                    if has_changed {
                        tracing::info!(version, "the database's schema was brought up to date");
                    }
                    return Ok(version);
                }
                drop(session);
                take_step(self).await?;
                has_changed = true;
            }
        })
        .await
    }

    async fn revision(&self) -> Result<Revision, RepositoryError> {
        within(ANSWER, async {
            let query = Query::new("SELECT revision FROM control_state WHERE id = 1");
            fetch_int(&mut *self.session(Access::Read).await?, query).await
        })
        .await
    }

    async fn raise_revision(&self, least: Revision) -> Result<Revision, RepositoryError> {
        within(ANSWER, async {
            let mut session = begin(self).await?;
            let result = raise(self, &mut *session, least).await;
            finish(session, result).await
        })
        .await
    }

    async fn load(&self, since: Option<Revision>) -> Result<Loaded, RepositoryError> {
        within(WORK, async {
            let mut session = self.session(Access::Read).await?;
            session.begin(self.dialect().begin_read).await?;
            allow_long(self, &mut *session).await?;
            let result = load::load(&mut *session, since).await;
            finish(session, result).await
        })
        .await
    }

    async fn get(&self, kind: Kind, id: &str) -> Result<Option<Entry>, RepositoryError> {
        within(ANSWER, async {
            entries::get(&mut *self.session(Access::Read).await?, kind, id).await
        })
        .await
    }

    async fn list(
        &self,
        kind: Kind,
        filter: &EntryFilter,
        page: &Page,
    ) -> Result<Vec<Entry>, RepositoryError> {
        within(ANSWER, async {
            entries::list(&mut *self.session(Access::Read).await?, kind, filter, page).await
        })
        .await
    }

    async fn count(&self, kind: Kind, filter: &EntryFilter) -> Result<i64, RepositoryError> {
        within(ANSWER, async {
            entries::count(&mut *self.session(Access::Read).await?, kind, filter).await
        })
        .await
    }

    async fn commit(
        &self,
        base: Option<Revision>,
        writes: &[Write],
        actor: &Actor,
    ) -> Result<Committed, RepositoryError> {
        within(WORK, async {
            let mut session = begin(self).await?;
            let kept = commit::Kept { bounds: self.history(), signer: self.signer() };
            let result =
                commit::commit(&mut *session, self.dialect(), &kept, base, writes, actor).await;
            finish(session, result).await
        })
        .await
    }

    async fn rule_versions(&self, id: &str, page: &Page) -> Result<Vec<Entry>, RepositoryError> {
        within(ANSWER, async {
            entries::rule_versions(&mut *self.session(Access::Read).await?, id, page).await
        })
        .await
    }

    async fn rule_checkpoint(&self, id: &str) -> Result<Option<Checkpoint>, RepositoryError> {
        within(ANSWER, async {
            checkpoints::rule_checkpoint(&mut *self.session(Access::Read).await?, id).await
        })
        .await
    }

    async fn change_checkpoints(
        &self,
        tenant: Option<&str>,
    ) -> Result<Vec<Checkpoint>, RepositoryError> {
        within(ANSWER, async {
            checkpoints::change_checkpoints(&mut *self.session(Access::Read).await?, tenant).await
        })
        .await
    }

    async fn rule_version(&self, id: &str, version: i64) -> Result<Option<Entry>, RepositoryError> {
        within(ANSWER, async {
            entries::rule_version(&mut *self.session(Access::Read).await?, id, version).await
        })
        .await
    }

    async fn token(&self, digest: &str) -> Result<Option<Entry>, RepositoryError> {
        within(ANSWER, async {
            entries::token(&mut *self.session(Access::Read).await?, digest).await
        })
        .await
    }

    async fn changes(
        &self,
        filter: &ChangeFilter,
        page: &Page,
    ) -> Result<Vec<ChangeRecord>, RepositoryError> {
        within(ANSWER, async {
            entries::changes(&mut *self.session(Access::Read).await?, filter, page).await
        })
        .await
    }

    async fn chain(&self, after: ChainPlace, limit: u32) -> Result<ChainPage, RepositoryError> {
        within(ANSWER, async {
            let mut session = self.session(Access::Read).await?;
            session.begin(self.dialect().begin_read).await?;
            let result = chain::page(&mut *session, after, limit).await;
            finish(session, result).await
        })
        .await
    }

    fn public_key(&self) -> Option<PublicKey> {
        self.signer().map(Signer::public_key)
    }

    async fn record(&self, decisions: &[DecisionRecord]) -> Result<u64, RepositoryError> {
        within(WORK, async {
            let mut session = begin(self).await?;
            let result = decisions::record(&mut *session, self.dialect(), decisions).await;
            finish(session, result).await
        })
        .await
    }

    async fn decisions(
        &self,
        filter: &DecisionFilter,
        page: &Page,
    ) -> Result<Vec<StoredDecision>, RepositoryError> {
        within(ANSWER, async {
            decisions::decisions(&mut *self.session(Access::Search).await?, filter, page).await
        })
        .await
    }

    async fn search_decisions(
        &self,
        filter: &DecisionFilter,
        before: Option<DecisionPlace>,
        limit: u32,
    ) -> Result<Vec<StoredDecision>, RepositoryError> {
        within(ANSWER, async {
            let mut session = self.session(Access::Search).await?;
            search::search(&mut *session, filter, before, limit).await
        })
        .await
    }

    async fn count_decisions(
        &self,
        filter: &DecisionFilter,
        most: u32,
    ) -> Result<i64, RepositoryError> {
        within(ANSWER, async {
            search::count(&mut *self.session(Access::Search).await?, filter, most).await
        })
        .await
    }

    async fn rule_versions_at(
        &self,
        rules: &[(String, Revision)],
    ) -> Result<Vec<Option<RuleVersionAt>>, RepositoryError> {
        within(ANSWER, async {
            search::rule_versions_at(&mut *self.session(Access::Read).await?, rules).await
        })
        .await
    }

    async fn prune(&self, before: Millis, most: u32) -> Result<u64, RepositoryError> {
        within(WORK, async {
            let mut session = begin(self).await?;
            let result = decisions::prune(&mut *session, self.dialect(), before, most).await;
            finish(session, result).await
        })
        .await
    }

    async fn bound_decisions(&self, max_bytes: u64, most: u32) -> Result<u64, RepositoryError> {
        within(WORK, async {
            let most_bytes = i64::try_from(max_bytes).unwrap_or(i64::MAX);
            // Most of the time there is nothing to do, and no writer is kept waiting.
            let mut reader = self.session(Access::Read).await?;
            if audit_bound::excess(&mut *reader, most_bytes).await? <= 0 {
                drop(reader);
                // The bound is kept whether or not the file gets shorter.
                let _ = self.release_space(0, max_bytes).await;
                return Ok(0);
            }
            drop(reader);
            let mut session = begin(self).await?;
            let result = audit_bound::bound(&mut *session, self.dialect(), most_bytes, most).await;
            let result = finish(session, result).await;
            // The result is that of the change. After an error, fewer records may fit the journal.
            let _ = match &result {
                Ok(removed) => self.release_space(removed.total_bytes(), max_bytes).await,
                Err(_) => self.restart_journal().await,
            };
            result.map(|removed| removed.count)
        })
        .await
    }

    async fn put_figures(
        &self,
        node: &str,
        fields: &[(String, String)],
        kept: Duration,
        live: Duration,
    ) -> Result<bool, RepositoryError> {
        within(ANSWER, async {
            let mut session = begin(self).await?;
            let times = (kept, live);
            let result = figures::put(&mut *session, self.dialect(), node, fields, times).await;
            finish(session, result).await
        })
        .await
    }

    async fn figure_nodes(&self) -> Result<Vec<(String, Duration)>, RepositoryError> {
        within(ANSWER, async {
            figures::nodes(&mut *self.session(Access::Read).await?, self.dialect()).await
        })
        .await
    }

    async fn figures(
        &self,
        node: &str,
        fields: &[String],
    ) -> Result<Vec<Option<Vec<u8>>>, RepositoryError> {
        within(ANSWER, async {
            let mut session = self.session(Access::Read).await?;
            figures::figures(&mut *session, self.dialect(), node, fields).await
        })
        .await
    }

    async fn record_usage(
        &self,
        events: &[UsageEvent],
        max_rows_per_day: u32,
    ) -> Result<u64, RepositoryError> {
        within(WORK, async {
            let mut session = begin(self).await?;
            let result =
                usage_open::record(&mut *session, self.dialect(), events, max_rows_per_day).await;
            finish(session, result).await
        })
        .await
    }

    async fn sweep_usage(&self, sweep: &UsageSweep) -> Result<u64, RepositoryError> {
        within(WORK, async {
            let mut session = begin(self).await?;
            let result = usage_open::sweep(&mut *session, self.dialect(), sweep).await;
            finish(session, result).await
        })
        .await
    }

    async fn usage_report(&self, query: &UsageQuery) -> Result<Vec<UsageRow>, RepositoryError> {
        within(ANSWER, async {
            usage::report(&mut *self.session(Access::Search).await?, query).await
        })
        .await
    }

    async fn prune_usage(&self, retention: &UsageRetention) -> Result<u64, RepositoryError> {
        within(WORK, async {
            let mut session = begin(self).await?;
            let result = usage::prune(&mut *session, retention).await;
            finish(session, result).await
        })
        .await
    }

    async fn verify(&self) -> Result<(), RepositoryError> {
        within(WORK, verify::verify(self)).await
    }

    async fn waker(&self) -> Result<Option<Box<dyn Waker>>, RepositoryError> {
        within(ANSWER, self.listen()).await
    }

    async fn close(&self) {
        self.end().await;
    }
}
