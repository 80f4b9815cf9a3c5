//! Virtual keys: API keys that Tollgate issued, each with limits of its own.
//!
//! There may be a hundred thousand. They are no rules: a key holds its limits itself, and keys with equal limits share
//! them. A decision looks one key up by its id and adds the key's few limits to those of the rules, so its cost does not
//! depend on how many keys there are.

mod read;

use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use serde_json::Value;
use smallvec::smallvec;
use tollgate_core::Nanos;
use xxhash_rust::xxh3::xxh3_128;

use crate::matcher::Wanted;
use crate::resolve::insert_by_scope;
use crate::{Applied, Attributes, Known, Resolution, Rule, RuleSet};

pub use read::{
    KeyProblem, LABELS_ONLY, MAX_KEY_LIMITS, MAX_KEY_MODELS, MAX_KEY_NAME_BYTES, MAX_KEY_TAGS,
    check_key, parse_digest,
};

/// What the secret of every virtual key begins with, unless it was imported.
pub const SECRET_PREFIX: &str = "tg_live_";

/// What the id of every virtual key begins with; hexadecimal digits follow.
pub const KEY_ID_PREFIX: &str = "key_";

/// What the ids of rules begin with that stand for the limits of a virtual key. No other rule may have such an id.
pub const KEY_RULE_PREFIX: &str = "virtual_key.";

/// How many buckets keys are spread over, by the first two digits of their id. A bucket travels to nodes as one.
pub const KEY_BUCKETS: u16 = 256;

/// The SHA-256 of a secret.
pub type KeyDigest = [u8; 32];

/// The bucket of a key. Databases and messages between nodes have it: it must not change.
pub fn key_bucket(id: &str) -> Option<u16> {
    let digits = id.strip_prefix(KEY_ID_PREFIX)?.get(..2)?;
    let is_hex =
        digits.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit));
    if is_hex { u16::from_str_radix(digits, 16).ok() } else { None }
}

/// Names and values.
type Tags = Box<[(Box<str>, Box<str>)]>;

/// The keys of a bucket by their ids, each with a hash of what it was read from.
type Bucket = HashMap<Box<str>, (u128, Arc<VirtualKey>)>;

/// A virtual key, ready.
#[derive(Debug, Clone)]
pub struct VirtualKey {
    id: Box<str>,
    owner: Option<Box<str>>,
    tenant: Option<Box<str>>,
    tags: Tags,
    /// The models that it may use; empty: all.
    models: Box<[Wanted]>,
    rules: Arc<[Rule]>,
    digest: KeyDigest,
    /// The secret before the last rotation, and until when it is accepted.
    previous: Option<(KeyDigest, Nanos)>,
    expires_at: Option<Nanos>,
    is_disabled: bool,
}

/// Why a request with a virtual key is refused, whatever its limits say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRefusal {
    /// There is no such key, or it is disabled or expired.
    Invalid,
    /// The key may not use the model.
    Model,
}

impl VirtualKey {
    /// Its id, which is no secret: it names the key in counters, logs and reports.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The user of its requests.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// The tenant that it belongs to.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// Names and values that are attributes of its requests.
    pub fn tags(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tags.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The limits of the key itself, one rule for each unit.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// When it expires.
    pub const fn expires_at(&self) -> Option<Nanos> {
        self.expires_at
    }

    /// Whether requests may be made with it at `now`.
    pub fn is_valid(&self, now: Nanos) -> bool {
        !self.is_disabled && self.expires_at.is_none_or(|end| now < end)
    }

    /// Whether it may use this model.
    pub fn allows_model(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|wanted| wanted.accepts(model))
    }

    fn has_digest(&self, digest: &KeyDigest, now: Nanos) -> bool {
        let is_previous =
            |(previous, until): (KeyDigest, Nanos)| previous == *digest && now < until;
        self.digest == *digest || self.previous.is_some_and(is_previous)
    }

    /// Makes these the attributes of a request with this key. The key, its tenant and its tags replace what the request
    /// says; its owner is the user where the request names none.
    pub fn identify<'a>(&'a self, attributes: &mut Attributes<'a>) {
        attributes.set(Known::ApiKey, &self.id);
        if let Some(tenant) = self.tenant() {
            attributes.set(Known::TenantId, tenant);
        }
        if let Some(owner) = self.owner()
            && attributes.get(Known::UserId).is_none()
        {
            attributes.set(Known::UserId, owner);
        }
        for (name, value) in self.tags() {
            attributes.replace_extra(name, value);
        }
    }
}

/// All virtual keys: immutable, and cheap to make another one of that differs in a few keys.
#[derive(Debug, Clone, Default)]
pub struct VirtualKeys {
    /// By bucket and id.
    by_id: Vec<Arc<Bucket>>,
    /// By the first byte of a digest and the digest. Only the holder of a secret can aim at a digest, so the time of a
    /// search reveals nothing about other keys.
    by_digest: Vec<Arc<HashMap<KeyDigest, Arc<VirtualKey>>>>,
    limit_sets: LimitSets,
    count: usize,
}

/// The rules of each distinct set of limits, by its JSON, while some key has them.
pub(crate) type LimitSets = HashMap<Arc<str>, Weak<[Rule]>>;

impl VirtualKeys {
    /// The same with these buckets replaced, each by the keys of its bodies. Keys that have not changed are shared.
    pub fn with_buckets<'b>(
        &self,
        buckets: impl IntoIterator<Item = (u16, &'b [Value])>,
    ) -> Result<Self, KeyProblem> {
        let mut changed = self.clone();
        let places = usize::from(KEY_BUCKETS);
        changed.by_id.resize_with(places, Arc::default);
        changed.by_digest.resize_with(places, Arc::default);
        for (bucket, bodies) in buckets {
            changed.replace_bucket(bucket, bodies)?;
        }
        changed.limit_sets.retain(|_, rules| rules.strong_count() > 0);
        Ok(changed)
    }

    fn replace_bucket(&mut self, bucket: u16, bodies: &[Value]) -> Result<(), KeyProblem> {
        let Some(place) = self.by_id.get_mut(usize::from(bucket)) else {
            return Err(KeyProblem::new("id", "is in no bucket"));
        };
        let before = std::mem::take(place);
        let mut after = HashMap::with_capacity(bodies.len());
        let mut added = Vec::new();
        for body in bodies {
            let stamp = xxh3_128(body.to_string().as_bytes());
            let id = body.get("id").and_then(Value::as_str).unwrap_or_default();
            if key_bucket(id) != Some(bucket) {
                return Err(KeyProblem::new("id", format!("{id:?} is not one of bucket {bucket}")));
            }
            let same = before.get(id).filter(|(known, _)| *known == stamp);
            let key = if let Some((_, key)) = same {
                Arc::clone(key)
            } else {
                let key = Arc::new(read::read_key(body, &mut self.limit_sets)?);
                added.push(Arc::clone(&key));
                key
            };
            after.insert(key.id.clone(), (stamp, key));
        }
        self.count = self.count.saturating_sub(before.len()) + after.len();
        for (id, (_, key)) in &*before {
            if after.get(id).is_none_or(|(_, now)| !Arc::ptr_eq(now, key)) {
                self.forget_digests(key);
            }
        }
        for key in &added {
            self.add_digests(key);
        }
        if let Some(place) = self.by_id.get_mut(usize::from(bucket)) {
            *place = Arc::new(after);
        }
        Ok(())
    }

    fn shard(&mut self, digest: &KeyDigest) -> Option<&mut HashMap<KeyDigest, Arc<VirtualKey>>> {
        let [first, ..] = digest;
        self.by_digest.get_mut(usize::from(*first)).map(Arc::make_mut)
    }

    fn forget_digests(&mut self, key: &VirtualKey) {
        for digest in
            [Some(key.digest), key.previous.map(|(digest, _)| digest)].into_iter().flatten()
        {
            if let Some(shard) = self.shard(&digest)
                && shard.get(&digest).is_some_and(|found| found.id == key.id)
            {
                shard.remove(&digest);
            }
        }
    }

    fn add_digests(&mut self, key: &Arc<VirtualKey>) {
        // A secret that is in use comes before one that was.
        if let Some((digest, _)) = key.previous
            && let Some(shard) = self.shard(&digest)
        {
            shard.entry(digest).or_insert_with(|| Arc::clone(key));
        }
        if let Some(shard) = self.shard(&key.digest) {
            shard.insert(key.digest, Arc::clone(key));
        }
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many distinct sets of limits they have.
    pub fn distinct_limit_sets(&self) -> usize {
        self.limit_sets.values().filter(|rules| rules.strong_count() > 0).count()
    }

    /// All of them, in no order.
    pub fn all(&self) -> impl Iterator<Item = &VirtualKey> {
        self.by_id.iter().flat_map(|bucket| bucket.values()).map(|(_, key)| &**key)
    }

    /// The key of this id.
    #[inline]
    pub fn get(&self, id: &str) -> Option<&Arc<VirtualKey>> {
        if self.count == 0 {
            return None;
        }
        let bucket = self.by_id.get(usize::from(key_bucket(id)?))?;
        bucket.get(id).map(|(_, key)| key)
    }

    /// The key whose secret has this digest: its present secret, or at `now` still the one before. It may be disabled or
    /// expired.
    #[inline]
    pub fn find(&self, digest: &KeyDigest, now: Nanos) -> Option<&Arc<VirtualKey>> {
        let [first, ..] = digest;
        let shard = self.by_digest.get(usize::from(*first))?;
        shard.get(digest).filter(|key| key.has_digest(digest, now))
    }
}

impl RuleSet {
    /// The virtual keys that are kept next to the file.
    pub fn virtual_keys(&self) -> &Arc<VirtualKeys> {
        &self.virtual_keys
    }

    /// Puts virtual keys next to the file.
    pub fn set_virtual_keys(&mut self, keys: Arc<VirtualKeys>) {
        self.virtual_keys = keys;
    }

    /// Why a request is refused for its API key alone. An API key that still looks like a secret here is one that no key
    /// has: the id of a key takes the place of its secret before rules are resolved ([`VirtualKey::identify`]).
    #[inline]
    pub fn refused_key(&self, request: &Attributes<'_>, now: Nanos) -> Option<KeyRefusal> {
        let given = request.get(Known::ApiKey)?;
        if given.starts_with(SECRET_PREFIX) {
            return Some(KeyRefusal::Invalid);
        }
        let key = self.virtual_keys.get(given)?;
        if !key.is_valid(now) {
            return Some(KeyRefusal::Invalid);
        }
        let model = request.get(Known::ModelId)?;
        (!key.allows_model(model)).then_some(KeyRefusal::Model)
    }

    /// One of the limits of this virtual key, by its rule id.
    pub fn key_rule(&self, key: &str, rule_id: &str) -> Option<&Rule> {
        self.virtual_keys.get(key)?.rules().iter().find(|rule| rule.id == rule_id)
    }

    /// Adds the limits of the request's virtual key. They come on top of all others, and replace none.
    #[inline]
    pub(crate) fn add_key_rules<'s, 'a>(
        &'s self,
        request: &Attributes<'a>,
        resolution: &mut Resolution<'s, 'a>,
    ) {
        let Some(id) = request.get(Known::ApiKey) else { return };
        let Some(key) = self.virtual_keys.get(id) else { return };
        for rule in key.rules() {
            let applied = Applied { rule, key: smallvec![id], listed_cost: None };
            insert_by_scope(&mut resolution.enforced, applied);
        }
    }
}

impl Rule {
    /// True for a limit of a virtual key: it comes on top of what the installation says.
    pub fn is_of_virtual_key(&self) -> bool {
        self.id.starts_with(KEY_RULE_PREFIX)
    }
}
