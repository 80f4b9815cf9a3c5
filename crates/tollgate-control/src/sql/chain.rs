//! The chain of changes in the database. All of it is written in the transaction of a change, behind the lock that every
//! change takes, so that nodes cannot fork it.

use super::batch::{Cell, Column, int, text};
use super::driver::Dialect;
use super::query::{Columns, Query};
use super::session::{Session, fetch_all, fetch_first, fetch_int};
use crate::chain::{
    ChainHead, ChainPage, ChainPlace, ChainedChange, EXPORT_FORMAT, Genesis, Link, RemovedLinks,
    Signed, Signer,
};
use crate::{RepositoryError, Revision};

/// Records from before the chain that are read at once.
const EARLIER_AT_ONCE: i64 = 500;

/// The columns of a change.
pub(super) const COLUMNS: [Column; 16] = [
    int("timestamp"),
    text("actor"),
    text("token_id"),
    text("action"),
    text("kind"),
    text("entry_id"),
    text("tenant_id"),
    int("version"),
    int("revision"),
    text("before"),
    text("after"),
    text("request_id"),
    text("ip_address"),
    text("owner"),
    int("chain_number"),
    text("chain_hash"),
];

/// The values of a change.
pub(super) fn cells(change: &ChainedChange) -> [Cell<'_>; 16] {
    [
        change.at.into(),
        change.actor.as_str().into(),
        change.token_id.as_str().into(),
        change.action.as_str().into(),
        change.kind.as_str().into(),
        change.entry_id.as_str().into(),
        change.tenant_id.as_deref().into(),
        change.version.into(),
        change.revision.into(),
        change.before.as_deref().into(),
        change.after.as_deref().into(),
        change.request_id.as_deref().into(),
        change.address.as_deref().into(),
        change.owner.as_str().into(),
        change.number.into(),
        change.hash.as_str().into(),
    ]
}

const SELECT: &str = "SELECT COALESCE(chain_number, 0), id, timestamp, actor, token_id, action, \
                      kind, entry_id, tenant_id, version, revision, before, after, request_id, \
                      ip_address, owner, COALESCE(chain_hash, '') FROM admin_audit_log WHERE";

fn read_change(row: &mut Columns<'_>) -> Result<ChainedChange, RepositoryError> {
    Ok(ChainedChange {
        number: row.int()?,
        id: row.int()?,
        at: row.int()?,
        actor: row.text()?,
        token_id: row.text()?,
        action: row.text()?,
        kind: row.text()?,
        entry_id: row.text()?,
        tenant_id: row.optional_text()?,
        version: row.int()?,
        revision: row.int()?,
        before: row.optional_text()?,
        after: row.optional_text()?,
        request_id: row.optional_text()?,
        address: row.optional_text()?,
        owner: row.text()?,
        hash: row.text()?,
    })
}

/// Whether there is a chain.
pub(super) async fn has_begun(session: &mut dyn Session) -> Result<bool, RepositoryError> {
    Ok(fetch_int(session, Query::new("SELECT COUNT(*) FROM audit_chain")).await? > 0)
}

/// Begins the chain with what is in the log.
pub(super) async fn begin(
    session: &mut dyn Session,
    dialect: &Dialect,
) -> Result<(), RepositoryError> {
    // No change may come between.
    let _: Revision = fetch_int(session, Query::new(dialect.lock_revision)).await?;
    if has_begun(session).await? {
        return Ok(());
    }
    let installation = installation(session).await?;
    let (mut earlier, mut last_id, mut digest) = (0_i64, 0, String::new());
    loop {
        let records = earlier_records(session, last_id, EARLIER_AT_ONCE).await?;
        for record in &records {
            earlier = earlier.saturating_add(1);
            last_id = record.id;
            digest = record.digest_after(&digest);
        }
        if records.is_empty() {
            break;
        }
    }
    let genesis = Genesis::new(&installation, earlier, last_id, digest);
    let query = Query::new(
        "INSERT INTO audit_chain (id, earlier, earlier_last_id, earlier_digest, genesis_hash, \
         earlier_left, number, hash, public_key, signature) \
         VALUES (1, $1, $2, $3, $4, $5, 0, $6, '', '')",
    );
    let query = query.bind(earlier).bind(last_id).bind(genesis.digest);
    let query = query.bind(genesis.hash.as_str()).bind(earlier).bind(genesis.hash.as_str());
    session.execute(query).await.map(drop)
}

/// A row of one text.
fn read_text(row: &mut Columns<'_>) -> Result<String, RepositoryError> {
    row.text()
}

async fn installation(session: &mut dyn Session) -> Result<String, RepositoryError> {
    let query = Query::new("SELECT installation FROM control_state WHERE id = 1");
    let found = fetch_first(session, query, read_text).await?;
    found.ok_or_else(|| RepositoryError::Corrupt("control_state is empty".to_owned()))
}

async fn earlier_records(
    session: &mut dyn Session,
    after: i64,
    most: i64,
) -> Result<Vec<ChainedChange>, RepositoryError> {
    let query = format!("{SELECT} chain_number IS NULL AND id > $1 ORDER BY id LIMIT $2");
    fetch_all(session, Query::new(query).bind(after).bind(most), read_change).await
}

/// The chain while a change is written.
pub(super) struct Chain<'a> {
    signer: Option<&'a Signer>,
    installation: String,
    genesis: Genesis,
    head: ChainHead,
}

async fn load(session: &mut dyn Session) -> Result<(String, Genesis, ChainHead), RepositoryError> {
    let query = Query::new(
        "SELECT s.installation, c.earlier, c.earlier_last_id, c.earlier_digest, c.genesis_hash, \
         c.earlier_left, c.number, c.hash, c.public_key, c.signature \
         FROM control_state s, audit_chain c WHERE s.id = 1 AND c.id = 1",
    );
    let read = |row: &mut Columns<'_>| {
        let installation = row.text()?;
        let genesis = Genesis {
            earlier: row.int()?,
            last_id: row.int()?,
            digest: row.text()?,
            hash: row.text()?,
        };
        let earlier_left = row.int()?;
        let (number, hash) = (row.int()?, row.text()?);
        let signed = Signed { public_key: row.text()?, signature: row.text()? };
        Ok((installation, genesis, ChainHead { number, hash, earlier_left, signed }))
    };
    let missing = || RepositoryError::Unavailable("the history is not signed yet".to_owned());
    fetch_first(session, query, read).await?.ok_or_else(missing)
}

impl<'a> Chain<'a> {
    /// The chain as it is; the caller holds the lock of changes.
    pub(super) async fn load(
        session: &mut dyn Session,
        signer: Option<&'a Signer>,
    ) -> Result<Self, RepositoryError> {
        let (installation, genesis, head) = load(session).await?;
        Ok(Self { signer, installation, genesis, head })
    }

    /// Gives a change its number and its hash.
    pub(super) fn append(&mut self, change: &mut ChainedChange) {
        change.number = self.head.number.saturating_add(1);
        change.hash = change.hash_after(&self.head.hash);
        self.head.number = change.number;
        self.head.hash.clone_from(&change.hash);
    }

    /// Leaves a signed statement in the place of removed changes. They are given in order; `None` is one from before the
    /// chain.
    pub(super) async fn remove(
        &mut self,
        session: &mut dyn Session,
        links: Vec<Option<(i64, String)>>,
    ) -> Result<(), RepositoryError> {
        let mut run: Option<(i64, i64, String)> = None;
        for link in links {
            let Some((number, hash)) = link else {
                self.head.earlier_left = self.head.earlier_left.saturating_sub(1);
                continue;
            };
            match &mut run {
                Some((_, last, last_hash)) if last.saturating_add(1) == number => {
                    (*last, *last_hash) = (number, hash);
                }
                _ => {
                    if let Some((first, last, hash)) = run.replace((number, number, hash)) {
                        self.note_removed(session, first, last, hash).await?;
                    }
                }
            }
        }
        match run {
            Some((first, last, hash)) => self.note_removed(session, first, last, hash).await,
            None => Ok(()),
        }
    }

    /// Joins removed changes with those next to them, and signs them as one.
    async fn note_removed(
        &self,
        session: &mut dyn Session,
        first: i64,
        last: i64,
        hash: String,
    ) -> Result<(), RepositoryError> {
        let ending = removed_where(session, "last_number = $1", first - 1).await?;
        let following = removed_where(session, "first_number = $1", last + 1).await?;
        let previous_hash = match &ending {
            Some(before) => before.previous_hash.clone(),
            None => self.hash_of(session, first - 1).await?,
        };
        let delete = "DELETE FROM audit_chain_removed WHERE last_number = $1 OR first_number = $2";
        session.execute(Query::new(delete).bind(first - 1).bind(last + 1)).await?;
        let first = ending.map_or(first, |before| before.first);
        let (last, hash) =
            following.map_or((last, hash), |following| (following.last, following.hash));
        let mut removed =
            RemovedLinks { first, last, previous_hash, hash, signed: Signed::default() };
        removed.signed = self.sign(&removed.statement(&self.installation));
        let query = Query::new(
            "INSERT INTO audit_chain_removed (first_number, last_number, previous_hash, hash, \
             public_key, signature) VALUES ($1, $2, $3, $4, $5, $6)",
        );
        let query = query.bind(removed.first).bind(removed.last).bind(removed.previous_hash);
        let query = query.bind(removed.hash).bind(removed.signed.public_key);
        session.execute(query.bind(removed.signed.signature)).await.map(drop)
    }

    /// The hash of a change that is there.
    async fn hash_of(
        &self,
        session: &mut dyn Session,
        number: i64,
    ) -> Result<String, RepositoryError> {
        if number == 0 {
            return Ok(self.genesis.hash.clone());
        }
        let query = Query::new(
            "SELECT COALESCE(chain_hash, '') FROM admin_audit_log WHERE chain_number = $1",
        );
        let found = fetch_first(session, query.bind(number), read_text).await?;
        // It was removed behind the program's back; a check of the chain reports it, and changes continue.
        Ok(found.unwrap_or_default())
    }

    fn sign(&self, statement: &[u8]) -> Signed {
        self.signer.map(|signer| signer.sign(statement)).unwrap_or_default()
    }

    /// Signs and stores the head.
    pub(super) async fn store(mut self, session: &mut dyn Session) -> Result<(), RepositoryError> {
        self.head.signed = self.sign(&self.head.statement(&self.installation));
        let query = Query::new(
            "UPDATE audit_chain SET number = $1, hash = $2, earlier_left = $3, public_key = $4, \
             signature = $5 WHERE id = 1",
        );
        let ChainHead { number, hash, earlier_left, signed } = self.head;
        let query = query.bind(number).bind(hash).bind(earlier_left);
        session.execute(query.bind(signed.public_key).bind(signed.signature)).await.map(drop)
    }
}

const SELECT_REMOVED: &str = "SELECT first_number, last_number, previous_hash, hash, public_key, \
                              signature FROM audit_chain_removed WHERE";

fn read_removed(row: &mut Columns<'_>) -> Result<RemovedLinks, RepositoryError> {
    Ok(RemovedLinks {
        first: row.int()?,
        last: row.int()?,
        previous_hash: row.text()?,
        hash: row.text()?,
        signed: Signed { public_key: row.text()?, signature: row.text()? },
    })
}

async fn removed_where(
    session: &mut dyn Session,
    condition: &str,
    number: i64,
) -> Result<Option<RemovedLinks>, RepositoryError> {
    let query = Query::new(format!("{SELECT_REMOVED} {condition}")).bind(number);
    fetch_first(session, query, read_removed).await
}

/// A part of the chain, in one consistent view.
pub(super) async fn page(
    session: &mut dyn Session,
    after: ChainPlace,
    limit: u32,
) -> Result<ChainPage, RepositoryError> {
    let (installation, genesis, head) = load(session).await?;
    let most = i64::from(limit.max(1));
    let mut links = Vec::new();
    let earlier_after = match after {
        ChainPlace::Start => {
            links.push(Link::Start { format: EXPORT_FORMAT, installation, genesis });
            Some(0)
        }
        ChainPlace::Earlier(id) => Some(id),
        ChainPlace::Change(_) => None,
    };
    if let Some(id) = earlier_after {
        let records = earlier_records(session, id, most).await?;
        let next =
            records.last().map_or(ChainPlace::Change(0), |last| ChainPlace::Earlier(last.id));
        if !records.is_empty() {
            links.extend(records.into_iter().map(Link::Earlier));
            return Ok(ChainPage { links, next: Some(next) });
        }
    }
    let after = if let ChainPlace::Change(number) = after { number } else { 0 };
    let query = format!("{SELECT} chain_number > $1 ORDER BY chain_number LIMIT $2");
    let changes = fetch_all(session, Query::new(query).bind(after).bind(most), read_change).await?;
    let query = format!("{SELECT_REMOVED} last_number > $1 ORDER BY first_number LIMIT $2");
    let removed =
        fetch_all(session, Query::new(query).bind(after).bind(most), read_removed).await?;
    let mut found: Vec<(i64, i64, Link)> = Vec::new();
    found.extend(changes.into_iter().map(|one| (one.number, one.number, Link::Change(one))));
    found.extend(removed.into_iter().map(|one| (one.first, one.last, Link::Removed(one))));
    found.sort_by_key(|(first, _, _)| *first);
    let is_cut = found.len() > limit.max(1) as usize;
    found.truncate(limit.max(1) as usize);
    let last = found.last().map_or(after, |(_, last, _)| *last);
    links.extend(found.into_iter().map(|(_, _, link)| link));
    if is_cut || last < head.number {
        // A page that is empty although the head lies further is the end: something is missing.
        if last > after {
            return Ok(ChainPage { links, next: Some(ChainPlace::Change(last)) });
        }
    }
    links.push(Link::Head(head));
    Ok(ChainPage { links, next: None })
}
