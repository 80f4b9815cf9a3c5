//! Sets through Redis: published by the node that has the database, fetched by those that have none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tollgate_control::content::{Content, Manifest, Part};
use tollgate_control::{Compiled, Current};
use tollgate_store::Failure;
use tollgate_store::redis::{Board, BoardListener, BoardSet, Published};

use super::figures::Source;
use super::{Keeper, Progress, StartProgress};

/// How often nodes ask for the revision: pub/sub loses messages.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long to wait before a Redis that does not answer is asked again.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// A set that changes while it is read is read again so often at once.
const READINGS: usize = 5;

/// So many looks at the revision, then one at the whole manifest. The first is one.
const CLOSE_LOOK_EVERY: u64 = 10;

/// Whether two sets mean the same.
fn is_alike(there: &Compiled, content: &Content) -> bool {
    let ours = Compiled::build(content.clone(), None);
    ours.is_ok_and(|ours| {
        ours.rules.digest() == there.rules.digest()
            && ours.content.buckets == there.content.buckets
            && ours.content.keys == there.content.keys
            && ours.content.enforcement == there.content.enforcement
    })
}

/// Why a set was not read.
pub(super) enum Unread {
    Redis(Failure),
    Wrong(String),
}

impl From<Failure> for Unread {
    fn from(failure: Failure) -> Self {
        Self::Redis(failure)
    }
}

impl Keeper {
    /// Publishes every set to Redis, and again if Redis has lost it.
    pub(super) async fn publish_all(&self, mut sets: watch::Receiver<Option<Arc<Current>>>) {
        // A rule file is this node's alone.
        let Some(redis) = self.redis.as_ref().filter(|_| self.around.config.rules.is_none()) else {
            return;
        };
        let board = redis.board();
        let mut published: Option<Content> = None;
        let mut trouble: Option<String> = None;
        loop {
            let set = sets.borrow_and_update().clone();
            // An empty database that replaced a lost one must not empty every other node, too.
            if let Some(set) = set.filter(|_| !self.installer.is_withholding()) {
                let content = &set.compiled.content;
                let result = self.publish(&board, content, published.as_ref()).await;
                match result {
                    Ok(()) => {
                        self.around.figures.publishing_refused(None);
                        published = Some(content.clone());
                        if trouble.take().is_some() {
                            tracing::info!(revision = content.revision, "the rules are in Redis");
                        }
                    }
                    Err(problem) => {
                        published = None;
                        if trouble.as_ref() != Some(&problem) {
                            tracing::error!(problem, "the rules cannot be published to Redis");
                            trouble = Some(problem);
                        }
                    }
                }
            }
            tokio::select! {
                changed = sets.changed() => if changed.is_err() { return },
                // Redis may have been emptied.
                () = tokio::time::sleep(LOOK_EVERY * 2) => {}
            }
        }
    }

    async fn publish(
        &self,
        board: &Board,
        content: &Content,
        published: Option<&Content>,
    ) -> Result<(), String> {
        let unheard = |failure: Failure| format!("Redis does not answer: {failure}");
        let there = board.revision().await.map_err(unheard)?;
        let seen = board.seen().await.map_err(unheard)?;
        if let Some((_, seen)) =
            seen.filter(|(of, seen)| *of == content.installation && *seen > content.revision)
        {
            return self.overtake(seen, seen).await;
        }
        let take_over = self.may_take_over(board, content, there.as_ref()).await?;
        let is_there = there.as_ref().is_some_and(|(installation, revision)| {
            *installation == content.installation && *revision == content.revision
        });
        if is_there && published.is_some_and(|last| last.revision == content.revision) {
            return Ok(());
        }
        let name = |part: &Part| format!("part:{}", part.name());
        let known: Vec<String> = match published {
            Some(published) => published.parts().map(name).collect(),
            // Also those that this process did not write are to go.
            None => board.part_names().await.map_err(unheard)?,
        };
        let manifest = content.manifest().to_bytes();
        let is_new = |part: &&Part| published.is_none() || !known.contains(&name(part));
        let mut put: Vec<(String, &[u8])> =
            content.parts().filter(is_new).map(|part| (name(part), &*part.bytes)).collect();
        let all: Vec<String> = content.parts().map(name).collect();
        let remove: Vec<String> = known.into_iter().filter(|part| !all.contains(part)).collect();
        for _ in 0..2 {
            let is_sent = |part: &&String| put.iter().any(|(name, _)| name == *part);
            let keep: Vec<String> = all.iter().filter(|part| !is_sent(part)).cloned().collect();
            let set = BoardSet {
                installation: &content.installation,
                revision: content.revision,
                take_over,
                manifest: &manifest,
                put: &put,
                keep: &keep,
                remove: &remove,
            };
            match board.publish(&set).await.map_err(unheard)? {
                Published::Written | Published::AlreadyThere => {
                    if take_over {
                        self.taken_over(there.as_ref(), content);
                    }
                    return Ok(());
                }
                Published::NeedsAll => {
                    put = content.parts().map(|part| (name(part), &*part.bytes)).collect();
                }
                Published::Older { revision } if revision == content.revision => {
                    // The same, written by another version of this program; or another timeline.
                    return match self.read(board, None).await {
                        Ok(there) if is_alike(&there, content) => Ok(()),
                        _ => self.overtake(revision, revision + 1).await,
                    };
                }
                Published::Older { revision } => {
                    return self.overtake(revision, revision).await;
                }
                Published::OtherInstallation { installation, revision } => {
                    return Err(self.refused(&installation, revision, None));
                }
            }
        }
        Err("Redis loses parts of the set while it is written".to_owned())
    }

    /// Nodes have seen a later revision than the database knows: it was restored from a backup. The
    /// database is right, so it goes on counting from there; unless it has come to `enough` already,
    /// because another control node was faster.
    async fn overtake(&self, seen: i64, enough: i64) -> Result<(), String> {
        let Some(control) = &self.control else { return Ok(()) };
        let there = control.repository().revision().await.map_err(|error| error.to_string())?;
        if there >= enough {
            return Ok(());
        }
        let raised = control.repository().raise_revision(seen + 1).await;
        let raised = raised.map_err(|error| error.to_string())?;
        tracing::warn!(
            seen,
            raised,
            "nodes have seen a later revision than the database has, as \
            after a restored backup: it goes on from there"
        );
        Ok(())
    }

    /// Gets the rules through Redis.
    pub(super) async fn follow_redis(&self, first: &StartProgress) {
        let Some(redis) = &self.redis else {
            let _ = first.send(Ok(Progress::Ready));
            return;
        };
        if self.around.config.rules.is_some() {
            let _ = first.send(Ok(Progress::Ready));
            return;
        }
        let board = redis.board();
        let mut listener: Option<BoardListener> = None;
        loop {
            let is_heard = self.look(&board).await;
            let _ = first.send(Ok(Progress::Ready));
            if !is_heard {
                listener = None;
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            }
            if listener.is_none() {
                listener = board.listen().await.ok();
            }
            let word = async {
                match &mut listener {
                    Some(listener) => listener.changed().await.is_ok(),
                    None => std::future::pending().await,
                }
            };
            let is_alive = tokio::select! {
                is_alive = word => is_alive,
                () = tokio::time::sleep(LOOK_EVERY) => true,
            };
            if !is_alive {
                listener = None;
            }
        }
    }

    /// Looks whether there is another set, and takes it. False if Redis does not answer.
    async fn look(&self, board: &Board) -> bool {
        let figures = &self.around.figures;
        let there = match board.revision().await {
            Ok(there) => there,
            Err(failure) => {
                figures.failure();
                if figures.lost() {
                    tracing::error!(%failure, "no word from the control plane: Redis does not \
                        answer; decisions go on by the rules in force");
                }
                return false;
            }
        };
        let Some(there) = there else {
            // No set has been published yet.
            figures.know_there_are_no_rules();
            figures.success();
            return true;
        };
        let current = self.installer.current();
        if let Some(current) = &current
            && current.content.installation == there.0
            && current.content.revision > there.1
        {
            // Redis was set back. This node reports its revision, so that the control plane continues above it.
            let content = &current.content;
            let reported = board.tell_seen(&content.installation, content.revision).await;
            self.complain(format!(
                "Redis holds revision {}, and this node has {} already: it keeps its own",
                there.1, content.revision
            ));
            return reported.is_ok();
        }
        let known = current
            .as_ref()
            .map(|current| (current.content.installation.clone(), current.content.revision));
        if known.as_ref() == Some(&there) && self.is_same(board, current.as_ref()).await {
            figures.success();
            *self.complaint.lock() = None;
            if figures.source() != Source::Redis
                && let Some(current) = current
            {
                let _ = self.installer.install(current, Source::Redis);
            }
            self.installer.keep().await;
            return true;
        }
        match self.read(board, current).await {
            Ok(compiled) => {
                let content = compiled.content.clone();
                if self.installer.install(compiled, Source::Redis).is_ok() {
                    figures.success();
                    *self.complaint.lock() = None;
                    let _ = board.tell_seen(&content.installation, content.revision).await;
                }
                self.installer.keep().await;
                true
            }
            Err(Unread::Redis(failure)) => {
                figures.failure();
                tracing::warn!(%failure, "the rules in Redis cannot be read; the old ones stay");
                false
            }
            Err(Unread::Wrong(problem)) => {
                figures.failure();
                self.complain(format!(
                    "the rules in Redis cannot be used; the old ones stay: {problem}"
                ));
                // It answers, only not with what this node understands.
                tokio::time::sleep(RETRY_DELAY).await;
                true
            }
        }
    }

    /// Whether what is there is what this node has, looked at closely now and then: a database that was
    /// restored may have come to the same revision by another way.
    async fn is_same(&self, board: &Board, current: Option<&Compiled>) -> bool {
        let looks = self.looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if !looks.is_multiple_of(CLOSE_LOOK_EVERY) {
            return true;
        }
        let Some(current) = current else { return false };
        match board.manifest().await {
            Ok(Some(there)) => there == current.content.manifest().to_bytes(),
            _ => true,
        }
    }

    /// Says that something is wrong, once.
    pub(super) fn complain(&self, problem: String) {
        self.complain_with(problem, "");
    }

    /// The same with a cause, whose text may differ every time.
    pub(super) fn complain_with(&self, problem: String, cause: &str) {
        let mut said = self.complaint.lock();
        if said.as_ref() != Some(&problem) {
            if cause.is_empty() {
                tracing::error!("{problem}");
            } else {
                tracing::error!(cause, "{problem}");
            }
            *said = Some(problem);
        }
    }

    pub(super) async fn read(
        &self,
        board: &Board,
        current: Option<Compiled>,
    ) -> Result<Compiled, Unread> {
        for _ in 0..READINGS {
            let Some(manifest) = board.manifest().await? else { break };
            let wrong =
                |error: tollgate_control::content::ContentError| Unread::Wrong(error.to_string());
            let manifest = Manifest::parse(&manifest).map_err(wrong)?;
            let mut parts: HashMap<String, Part> = HashMap::new();
            for part in current.iter().flat_map(|current| current.content.parts()) {
                parts.insert(part.name(), part.clone());
            }
            let missing: Vec<&String> =
                manifest.parts().filter(|hash| !parts.contains_key(*hash)).collect();
            let names: Vec<String> = missing.iter().map(|hash| format!("part:{hash}")).collect();
            let found = board.parts(&names).await?;
            // One that is gone was replaced meanwhile: the manifest is another one by now.
            if found.iter().any(Option::is_none) {
                continue;
            }
            let hashes: Vec<String> = missing.into_iter().cloned().collect();
            for (hash, bytes) in hashes.into_iter().zip(found.into_iter().flatten()) {
                parts.insert(hash, Part::new(bytes));
            }
            let content = manifest.assemble(|hash| parts.get(hash).cloned()).map_err(wrong)?;
            let build = move || Compiled::build(content, current.as_ref());
            let built = tokio::task::spawn_blocking(build).await;
            let built = built.map_err(|error| Unread::Wrong(error.to_string()))?;
            return built.map_err(|error| Unread::Wrong(error.to_string()));
        }
        Err(Unread::Wrong("it changes faster than it can be read".to_owned()))
    }
}
