//! Changes of the rule set: checked as a whole, written in one transaction, in force at once.
//!
//! | file | |
//! |---|---|
//! | `mod.rs` | the set in force here, and how a change comes about |
//! | `entries.rs` | putting, deleting and rolling back single entries |
//! | `apply.rs` | a whole document at once |
//! | `keys.rs` | virtual keys |
//! | `tokens.rs` | who may do what |
//! | `sessions.rs` | tokens of people who signed in at a provider of identities |

mod apply;
mod candidates;
mod entries;
mod keys;
mod sessions;
mod token_index;
mod tokens;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use tokio::sync::{Mutex, watch};
use tollgate_policy::FindingKind;

use crate::compiled::Compiled;
use crate::content::{Content, Part, encode_bucket, encode_keys};
use crate::document::{self, Entries};
use crate::error::FieldProblem;
use crate::tenant::StoreUse;
use crate::tier_names;
use crate::{
    Actor, ChangeNote, Committed, ControlError, Entry, Expected, Kind, Loaded, Millis, Repository,
    RepositoryError, Revision, Stamp, Write,
};

pub use apply::{Applied, Step, StepKind};
pub use candidates::CandidateStep;
pub use entries::{Precondition, Put};
pub use keys::{CreatedKey, MAX_KEYS, MAX_KEYS_PER_TENANT, MAX_OVERLAP_SECONDS};
pub use sessions::{MAX_SESSIONS, MAX_SESSIONS_PER_PERSON, is_session};
pub use tokens::{FIRST_TOKEN, NewToken};

/// How often a change is tried anew because another process changed the set meanwhile.
const MAX_ATTEMPTS: usize = 8;

/// The rule set as this process knows it.
#[derive(Debug)]
pub struct Current {
    /// Every entry of it but clients' tiers.
    pub entries: Entries,
    /// It, as nodes get and enforce it.
    pub compiled: Compiled,
}

impl Current {
    /// Its revision.
    pub const fn revision(&self) -> Revision {
        self.compiled.content.revision
    }

    /// One entry.
    pub fn entry(&self, kind: Kind, id: &str) -> Option<&Arc<Entry>> {
        self.entries.get(&(kind, id.to_owned()))
    }

    /// What the rules of a tenant's own admins take of the stores.
    fn store_use(&self, tenant: &str) -> StoreUse {
        let own = self.of(Kind::Rule).filter(|entry| entry.tenant.as_deref() == Some(tenant));
        StoreUse::of(own.filter_map(|entry| self.compiled.rules.rule(&entry.id)))
    }

    /// The entries of a kind, by id.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Arc<Entry>> {
        let range = self.entries.range((kind, String::new())..);
        range.map(|(_, entry)| entry).take_while(move |entry| entry.kind == kind)
    }
}

/// What the control plane needs to know of its surroundings.
pub struct ControlOptions {
    /// The names of the shared stores; with none, rules may name any.
    pub stores: Vec<String>,
    /// What an API key is known by where it must not be seen.
    pub hide_key: Box<dyn Fn(&str) -> String + Send + Sync>,
}

/// What is called with every set.
type Hook = Box<dyn Fn(&Arc<Current>) + Send + Sync>;

/// Changes and questions.
pub struct Control {
    repository: Arc<dyn Repository>,
    options: ControlOptions,
    current: watch::Sender<Option<Arc<Current>>>,
    /// Called with every set before anything else gets it: a caller whose change is confirmed finds it
    /// in force.
    hook: OnceLock<Hook>,
    /// Whether the schema is one that this program knows.
    is_open: AtomicBool,
    /// Held during a change of the set here: each change is checked against the one before.
    changing: Mutex<()>,
    tokens: token_index::TokenIndex,
}

/// A change that was made, or would be.
#[derive(Debug)]
pub struct Changed {
    /// The set before it.
    pub before: Arc<Current>,
    /// The set with it.
    pub after: Arc<Current>,
    /// When, and the versions that were written; `None`: it was only tried.
    pub committed: Option<Committed>,
}

impl Control {
    /// The control plane on this repository. Nothing is asked of it yet.
    pub fn new(repository: Arc<dyn Repository>, options: ControlOptions) -> Self {
        Self {
            repository,
            options,
            current: watch::Sender::new(None),
            hook: OnceLock::new(),
            is_open: AtomicBool::new(false),
            changing: Mutex::new(()),
            tokens: token_index::TokenIndex::default(),
        }
    }

    /// Has this called with every set as soon as it is known. The first one stays.
    pub fn on_change(&self, hook: impl Fn(&Arc<Current>) + Send + Sync + 'static) {
        let _ = self.hook.set(Box::new(hook));
    }

    fn came(&self, current: &Arc<Current>) {
        if let Some(hook) = self.hook.get() {
            hook(current);
        }
        self.current.send_replace(Some(Arc::clone(current)));
    }

    /// The repository.
    pub fn repository(&self) -> &Arc<dyn Repository> {
        &self.repository
    }

    /// What an API key is known by where it must not be seen.
    pub fn hide_key(&self, key: &str) -> String {
        (self.options.hide_key)(key)
    }

    /// The set, whenever it changes.
    pub fn watch(&self) -> watch::Receiver<Option<Arc<Current>>> {
        self.current.subscribe()
    }

    /// The set as it is in the database.
    pub async fn current(&self) -> Result<Arc<Current>, ControlError> {
        let known = self.current.borrow().clone();
        match known {
            Some(known) if self.repository.revision().await? == known.revision() => Ok(known),
            _ => {
                let _turn = self.changing.lock().await;
                self.refresh().await
            }
        }
    }

    /// Brings the schema up to date and reads the set for the first time.
    pub async fn open(&self) -> Result<Arc<Current>, ControlError> {
        self.repository.migrate().await?;
        let current = self.current().await?;
        self.is_open.store(true, Ordering::Relaxed);
        Ok(current)
    }

    /// Reads what is not known yet. The caller has its turn.
    async fn refresh(&self) -> Result<Arc<Current>, ControlError> {
        let known = self.current.borrow().clone();
        let since = known.as_ref().map(|known| known.revision());
        let mut loaded = self.repository.load(since).await?;
        let mut basis = known;
        let is_another = |known: &Arc<Current>| {
            known.compiled.content.installation != loaded.installation
                || known.revision() > loaded.revision
        };
        if basis.as_ref().is_some_and(is_another) {
            // Another database, or an older state of it: what was known says nothing.
            loaded = self.repository.load(None).await?;
            basis = None;
        }
        let current = tokio::task::spawn_blocking(move || build(loaded, basis.as_deref())).await;
        let current = current.map_err(|error| ControlError::Internal(error.to_string()))??;
        self.came(&current);
        Ok(current)
    }

    /// Makes a change: `plan` says what to write, given the set as it is; then the set with it is
    /// checked as a whole, and written. If the set changes in between, all of it is done anew.
    async fn change(
        &self,
        actor: &Actor,
        is_dry: bool,
        plan: impl Fn(&Current) -> Result<Vec<Write>, ControlError>,
    ) -> Result<Changed, ControlError> {
        let _turn = self.changing.lock().await;
        for _ in 0..MAX_ATTEMPTS {
            let known = self.current.borrow().clone();
            let before = match known {
                Some(known) => known,
                None => self.refresh().await?,
            };
            let attempt = self.attempt(&before, actor, is_dry, &plan).await;
            match attempt {
                Err(
                    ControlError::Repository(
                        RepositoryError::Stale | RepositoryError::Conflict { .. },
                    )
                    | ControlError::PreconditionFailed { .. }
                    | ControlError::NotFound(..)
                    | ControlError::Conflict(_)
                    | ControlError::Invalid(_),
                ) if self.repository.revision().await? != before.revision() => {
                    self.refresh().await?;
                }
                Err(ControlError::Repository(RepositoryError::Conflict { kind, id, have })) => {
                    let what = kind.name();
                    return Err(ControlError::Conflict(match have {
                        Some(version) => format!("{what} {id:?} is at version {version} meanwhile"),
                        None => format!("{what} {id:?} is gone meanwhile"),
                    }));
                }
                other => return other,
            }
        }
        Err(ControlError::Conflict("the rule set changes too often; try again".to_owned()))
    }

    async fn attempt(
        &self,
        before: &Arc<Current>,
        actor: &Actor,
        is_dry: bool,
        plan: impl Fn(&Current) -> Result<Vec<Write>, ControlError>,
    ) -> Result<Changed, ControlError> {
        let writes = plan(before)?;
        if writes.is_empty() {
            let (before, after) = (Arc::clone(before), Arc::clone(before));
            return Ok(Changed { before, after, committed: None });
        }
        let mut after = self.with(before, &writes).await?;
        if is_dry {
            let (before, after) = (Arc::clone(before), Arc::new(after));
            return Ok(Changed { before, after, committed: None });
        }
        let committed = self.repository.commit(Some(before.revision()), &writes, actor).await?;
        stamp(&mut after, &writes, &committed, actor);
        let mut after = Arc::new(after);
        if writes.iter().any(|write| write.kind.is_in_buckets())
            || committed.revision != before.revision() + 1
        {
            after = self.refresh().await?;
        } else {
            self.came(&after);
        }
        Ok(Changed { before: Arc::clone(before), after, committed: Some(committed) })
    }

    /// The set with these writes, compiled and reviewed.
    async fn with(&self, before: &Arc<Current>, writes: &[Write]) -> Result<Current, ControlError> {
        let mut entries = before.entries.clone();
        let nobody = Stamp { at: 0, by: String::new() };
        for write in writes.iter().filter(|write| is_kept(write.kind)) {
            let place = (write.kind, write.id.clone());
            let Some(body) = &write.body else {
                entries.remove(&place);
                continue;
            };
            let old = entries.get(&place);
            let entry = Entry {
                kind: write.kind,
                id: write.id.clone(),
                body: body.clone(),
                version: old.map_or(0, |old| old.version) + 1,
                tenant: write.tenant.clone(),
                created: old.map_or_else(|| nobody.clone(), |old| old.created.clone()),
                updated: nobody.clone(),
            };
            entries.insert(place, Arc::new(entry));
        }
        let written: Vec<(Kind, String)> =
            writes.iter().map(|write| (write.kind, write.id.clone())).collect();
        if writes.iter().all(|write| !is_kept(write.kind)) {
            // Clients' tiers or keys alone: the rules stay as they are.
            return Ok(Current { entries, compiled: before.compiled.clone() });
        }
        let tenants: BTreeSet<String> =
            writes.iter().filter_map(|write| write.tenant.clone()).collect();
        let (basis, stores) = (Arc::clone(before), self.options.stores.clone());
        let checked = tokio::task::spawn_blocking(move || {
            let content = content_of(&entries, &basis.compiled.content);
            let compiled = Compiled::build(content, Some(&basis.compiled));
            let compiled = compiled.map_err(|error| error.into_control(&written))?;
            let mut problems = tier_names::problems(&basis.entries, &entries, &written);
            problems.extend(review(&compiled, &written, &stores));
            if !problems.is_empty() {
                return Err(ControlError::Invalid(problems));
            }
            let after = Current { entries, compiled };
            for tenant in &tenants {
                after.store_use(tenant).check(&basis.store_use(tenant))?;
            }
            Ok(after)
        });
        checked.await.map_err(|error| ControlError::Internal(error.to_string()))?
    }

    /// A write with its audit note, API keys hidden.
    fn write(
        &self,
        action: &'static str,
        place: (Kind, String),
        old: Option<&Entry>,
        body: Option<Value>,
        tenant: Option<String>,
    ) -> Write {
        let (kind, id) = place;
        let hidden = |body: &Value| self.hidden(kind, body);
        let note = ChangeNote {
            action,
            before: old.map(|old| hidden(&old.body)),
            after: body.as_ref().map(hidden),
        };
        let expected = old.map_or(Expected::Absent, |old| Expected::Version(old.version));
        Write { kind, id, body, tenant, expected, note }
    }

    /// A body as the audit log may have it.
    fn hidden(&self, kind: Kind, body: &Value) -> Value {
        let mut body = body.clone();
        match kind {
            Kind::Rule => {
                let keys = body.pointer_mut("/applies_to/api_keys");
                for key in keys.and_then(Value::as_array_mut).into_iter().flatten() {
                    if let Some(plain) = key.as_str() {
                        *key = Value::String(self.hide_key(plain));
                    }
                }
            }
            Kind::Key => {
                if let Some(key) = body.as_object_mut() {
                    key.remove("digest");
                    key.remove("previous");
                }
            }
            Kind::Token => {
                if let Some(token) = body.as_object_mut() {
                    token.remove("digest");
                    token.remove("retired");
                }
            }
            _ if body.get("identifier_type").is_some_and(|kind| kind == "api_key") => {
                let plain = body.get("identifier").and_then(Value::as_str).unwrap_or_default();
                let hidden = self.hide_key(plain);
                if let Some(body) = body.as_object_mut() {
                    body.insert("identifier".to_owned(), Value::String(hidden));
                }
            }
            _ => {}
        }
        body
    }
}

/// Whether entries of this kind are kept in memory.
const fn is_kept(kind: Kind) -> bool {
    kind.is_in_set() && !kind.is_in_buckets()
}

fn build(loaded: Loaded, basis: Option<&Current>) -> Result<Arc<Current>, ControlError> {
    let Loaded { installation, revision, entries, client_tiers, keys: loaded_keys } = loaded;
    let keyed = entries.into_iter().map(|entry| ((entry.kind, entry.id.clone()), Arc::new(entry)));
    let entries: Entries = keyed.filter(|((kind, _), _)| is_kept(*kind)).collect();
    let mut buckets = basis.map(|basis| basis.compiled.content.buckets.clone()).unwrap_or_default();
    for (bucket, clients) in client_tiers {
        if clients.is_empty() {
            buckets.remove(&bucket);
        } else {
            buckets.insert(bucket, encode_bucket(&clients));
        }
    }
    let mut keys = basis.map(|basis| basis.compiled.content.keys.clone()).unwrap_or_default();
    for (bucket, bodies) in loaded_keys {
        if bodies.is_empty() {
            keys.remove(&bucket);
        } else {
            keys.insert(bucket, encode_keys(bodies));
        }
    }
    let document = Part::new(Vec::new());
    let rest = Content { installation, revision, enforcement: None, document, buckets, keys };
    let content = Content { revision, ..content_of(&entries, &rest) };
    let compiled = Compiled::build(content, basis.map(|basis| &basis.compiled));
    let compiled = compiled.map_err(|error| ControlError::Internal(error.to_string()))?;
    Ok(Arc::new(Current { entries, compiled }))
}

/// What nodes get of these entries, beside what does not change; as of the next revision.
fn content_of(entries: &Entries, rest: &Content) -> Content {
    let setting = entries.get(&(Kind::Setting, document::ENFORCEMENT.to_owned()));
    let enforcement = setting.and_then(|entry| entry.body.as_str()).map(str::to_owned);
    let document = Part::new(document::document(entries).to_string().into_bytes());
    Content { revision: rest.revision + 1, enforcement, document, ..rest.clone() }
}

/// What compiles may still make no sense; what was so before is not this change's fault.
fn review(compiled: &Compiled, written: &[(Kind, String)], stores: &[String]) -> Vec<FieldProblem> {
    let is_written = |id: &str| written.iter().any(|(kind, i)| *kind == Kind::Rule && i == id);
    let mut problems: Vec<FieldProblem> = compiled
        .rules
        .review()
        .into_iter()
        .filter(|finding| is_written(&finding.rule_id))
        .filter(|finding| {
            matches!(finding.kind, FindingKind::OverrideCycle | FindingKind::NeverApplies)
        })
        .map(|finding| FieldProblem {
            field: Some(finding.field.to_owned()),
            message: finding.message,
        })
        .collect();
    let unknown = |store: &&String| !stores.is_empty() && !stores.contains(store);
    for rule in compiled.rules.rules().iter().filter(|rule| is_written(&rule.id)) {
        if let Some(store) = rule.store.as_ref().filter(unknown) {
            problems.push(FieldProblem {
                field: Some("store".to_owned()),
                message: format!("there is no store {store:?}; there are {}", stores.join(", ")),
            });
        }
    }
    problems
}

/// Puts in what only the commit knew.
fn stamp(after: &mut Current, writes: &[Write], committed: &Committed, actor: &Actor) {
    let now: Millis = committed.at;
    for (write, version) in writes.iter().zip(&committed.versions) {
        let Some(entry) = after.entries.get_mut(&(write.kind, write.id.clone())) else { continue };
        let mut stamped = Entry::clone(entry);
        stamped.version = *version;
        stamped.updated = Stamp { at: now, by: actor.name.clone() };
        if stamped.created.by.is_empty() && stamped.created.at == 0 {
            stamped.created = stamped.updated.clone();
        }
        *entry = Arc::new(stamped);
    }
    after.compiled.content.revision = committed.revision;
}
