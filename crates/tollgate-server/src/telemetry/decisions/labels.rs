//! The values that labels have: so many of each, and the rest is `other`.
//!
//! A book is never changed: a thread that learns a name makes the next book. That is rare, since a book that is
//! full learns nothing more; and looking something up takes no lock.

use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;

use super::sketch::ByHash;

/// The value where a request has none.
pub(super) const NONE: u16 = 0;
/// The value of all that have no value of their own.
pub(super) const OTHER: u16 = 1;

/// More values than this no label has: they are numbered in 16 bits.
const MAX_VALUES: usize = u16::MAX as usize - 2;

/// A name takes the place of another one if it is seen so many times as often. Series that come and go make
/// rates useless.
const FAR_MORE: u64 = 10;
/// So many names at most get a place at a time.
const MAX_REPLACED: usize = 10;

/// What a decision is counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Label {
    /// The scope that decided.
    Scope = 0,
    /// The model asked for.
    Model = 1,
    /// The tenant.
    Tenant = 2,
}

/// How many values each label may have, and how many combinations there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LabelBounds {
    /// Scopes.
    pub scopes: usize,
    /// Models.
    pub models: usize,
    /// Tenants.
    pub tenants: usize,
    /// Combinations of the three.
    pub label_sets: usize,
}

/// The values of one label.
#[derive(Debug, Clone)]
struct Names {
    /// By the hash of the name.
    ids: ByHash<u16>,
    /// By their number.
    by_id: Vec<Arc<str>>,
    most: usize,
}

impl Names {
    fn new(most: usize) -> Self {
        let by_id = vec![Arc::from("none"), Arc::from("other")];
        Self { ids: ByHash::default(), most: most.min(MAX_VALUES) + by_id.len(), by_id }
    }

    fn is_full(&self) -> bool {
        self.by_id.len() >= self.most
    }

    fn learn(&mut self, hash: u64, name: &str) -> u16 {
        let id = match name {
            // Two series must not have the same labels.
            "none" => NONE,
            "other" => OTHER,
            _ if self.is_full() => return OTHER,
            _ => {
                self.by_id.push(Arc::from(name));
                (self.by_id.len() - 1) as u16
            }
        };
        self.ids.insert(hash, id);
        id
    }
}

/// The numbers of a combination of values: scope, model, tenant.
pub(super) type Ids = [u16; 3];

/// What a decision says of its labels: scope, model, tenant.
pub(super) type Said<'a> = [Option<&'a str>; 3];

/// Which combination is counted where.
#[derive(Debug, Clone)]
struct Sets {
    places: ByHash<u32>,
    /// The same by what decisions say, for combinations whose every value has a label of its own: one look
    /// instead of four.
    direct: ByHash<u32>,
    /// The combination at each place; `None` while the place rests or is free.
    ids: Vec<Option<Ids>>,
    /// Places whose combination is gone. A thread may still be counting there by an older book.
    resting: Vec<u32>,
    free: Vec<u32>,
    most: usize,
}

/// All labels there are.
#[derive(Debug, Clone)]
pub(super) struct Book {
    hasher: SeedableRandomState,
    names: [Arc<Names>; 3],
    sets: Arc<Sets>,
    /// Combinations of a scope and `other` always have a place.
    capacity: usize,
}

/// What a name or combination is found to be.
pub(super) enum Found<T> {
    Known(T),
    /// It has no place of its own, and is counted with others here.
    Rest(T),
    /// There is room to learn it.
    New,
}

impl Book {
    pub(super) fn new(bounds: LabelBounds, seed: u64) -> Self {
        let of = |most| Arc::new(Names::new(most));
        let sets = Sets {
            places: ByHash::default(),
            direct: ByHash::default(),
            ids: Vec::new(),
            resting: Vec::new(),
            free: Vec::new(),
            most: bounds.label_sets,
        };
        Self {
            hasher: SeedableRandomState::with_seed(seed, SharedSeed::global_random()),
            names: [of(bounds.scopes), of(bounds.models), of(bounds.tenants)],
            sets: Arc::new(sets),
            // The bounded ones, those of each scope with `other`, and as many that rest.
            capacity: 2 * (bounds.label_sets + bounds.scopes + 2),
        }
    }

    /// How many places there are at most.
    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many combinations are counted apart.
    pub(super) fn sets(&self) -> usize {
        self.sets.places.len()
    }

    /// Where a combination is counted that is known by what it says.
    #[inline]
    pub(super) fn direct(&self, said: Said<'_>) -> Option<u32> {
        self.sets.direct.get(&self.hash_all(said)).copied()
    }

    /// Whether a combination may be found by what it says. Names that share a label are not: there is no end
    /// to them.
    pub(super) fn is_direct(said: Said<'_>, ids: Ids) -> bool {
        said.iter().zip(ids).all(|(name, id)| name.is_none() || id > OTHER)
    }

    /// The number of a value.
    #[inline]
    pub(super) fn id(&self, label: Label, name: Option<&str>) -> Found<u16> {
        let Some(name) = name else { return Found::Known(NONE) };
        let [scopes, models, tenants] = &self.names;
        let names = match label {
            Label::Scope => scopes,
            Label::Model => models,
            Label::Tenant => tenants,
        };
        match names.ids.get(&self.hash(name)) {
            Some(id) => Found::Known(*id),
            None if names.is_full() && name != "none" => Found::Rest(OTHER),
            None => Found::New,
        }
    }

    /// Where a combination is counted.
    #[inline]
    pub(super) fn place(&self, ids: Ids) -> Found<u32> {
        if let Some(place) = self.sets.places.get(&mixed(ids)) {
            return Found::Known(*place);
        }
        if self.sets.places.len() < self.sets.most {
            return Found::New;
        }
        let [scope, ..] = ids;
        self.sets
            .places
            .get(&mixed([scope, OTHER, OTHER]))
            .map_or(Found::New, |rest| Found::Rest(*rest))
    }

    /// The values at a place.
    pub(super) fn values_at(&self, place: usize) -> Option<[&Arc<str>; 3]> {
        let [scope, model, tenant] = (*self.sets.ids.get(place)?)?;
        let [scopes, models, tenants] = &self.names;
        Some([
            scopes.by_id.get(usize::from(scope))?,
            models.by_id.get(usize::from(model))?,
            tenants.by_id.get(usize::from(tenant))?,
        ])
    }

    /// Learns a value.
    pub(super) fn learn_name(&mut self, label: Label, name: &str) -> u16 {
        let hash = self.hash(name);
        let Some(names) = self.names.get_mut(label as usize) else { return OTHER };
        match names.ids.get(&hash) {
            Some(id) => *id,
            None => Arc::make_mut(names).learn(hash, name),
        }
    }

    /// Learns a combination. Past the bound it is its scope with `other`, for which there is always room.
    pub(super) fn learn_set(&mut self, ids: Ids) -> Option<u32> {
        let [scope, ..] = ids;
        let is_full = self.sets.places.len() >= self.sets.most;
        let ids = if is_full { [scope, OTHER, OTHER] } else { ids };
        match self.place(ids) {
            Found::Known(place) | Found::Rest(place) => Some(place),
            Found::New => Arc::make_mut(&mut self.sets).take(ids, self.capacity),
        }
    }

    /// Learns what is said for a combination that is counted at this place.
    pub(super) fn learn_direct(&mut self, said: Said<'_>, ids: Ids, place: u32) {
        let is_own = self.sets.ids.get(place as usize) == Some(&Some(ids));
        if is_own && Self::is_direct(said, ids) {
            let hash = self.hash_all(said);
            Arc::make_mut(&mut self.sets).direct.insert(hash, place);
        }
    }

    /// Gives places of their own to names that are seen far more often than names that have one. Of both
    /// `seen` says how often, at most, and `floor` how often those may have been seen of whom it says
    /// nothing. Returns whether anything changed.
    pub(super) fn replace(&mut self, label: Label, seen: &[(&str, u64)], floor: u64) -> bool {
        let counts: ByHash<u64> =
            seen.iter().map(|(name, count)| (self.hash(name), *count)).collect();
        let wanted: Vec<(u64, &str, u64)> =
            seen.iter().map(|(name, count)| (self.hash(name), *name, *count)).collect();
        let Some(names) = self.names.get_mut(label as usize) else { return false };
        if !names.is_full() {
            return false;
        }
        let is_new = |(hash, ..): &&(u64, &str, u64)| !names.ids.contains_key(hash);
        let newcomers: Vec<_> = wanted.iter().filter(is_new).take(MAX_REPLACED).copied().collect();
        if newcomers.is_empty() {
            return false;
        }
        let count_of = |hash: &u64| counts.get(hash).copied().unwrap_or(floor);
        let mut holders: Vec<(u64, u64, u16)> = names
            .ids
            .iter()
            .filter(|(_, id)| **id > OTHER)
            .map(|(hash, id)| (count_of(hash), *hash, *id))
            .collect();
        holders.sort_unstable();
        let mut has_changed = false;
        for ((hash, name, count), (held, old, id)) in newcomers.into_iter().zip(holders) {
            if count < held.saturating_add(1).saturating_mul(FAR_MORE) {
                break;
            }
            let names = Arc::make_mut(names);
            names.ids.remove(&old);
            names.ids.insert(hash, id);
            if let Some(place) = names.by_id.get_mut(usize::from(id)) {
                *place = Arc::from(name);
            }
            Arc::make_mut(&mut self.sets).retire(label, id);
            has_changed = true;
        }
        has_changed
    }

    /// The places that have rested long enough to be used again, once the caller has emptied them.
    pub(super) fn rested(&mut self) -> Vec<u32> {
        if self.sets.resting.is_empty() {
            return Vec::new();
        }
        let sets = Arc::make_mut(&mut self.sets);
        let rested = std::mem::take(&mut sets.resting);
        sets.free.extend(&rested);
        rested
    }

    #[inline]
    fn hash(&self, name: &str) -> u64 {
        self.hasher.hash_one(name)
    }

    #[inline]
    fn hash_all(&self, said: Said<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        for name in said {
            // Bytes that no name has tell where one ends, and that there is none.
            match name {
                Some(name) => {
                    hasher.write(name.as_bytes());
                    hasher.write_u8(0xff);
                }
                None => hasher.write_u8(0xfe),
            }
        }
        hasher.finish()
    }
}

impl Sets {
    fn take(&mut self, ids: Ids, capacity: usize) -> Option<u32> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.ids.len() < capacity => {
                self.ids.push(None);
                (self.ids.len() - 1) as u32
            }
            None => return None,
        };
        *self.ids.get_mut(place as usize)? = Some(ids);
        self.places.insert(mixed(ids), place);
        Some(place)
    }

    /// Gives up all combinations with this value.
    fn retire(&mut self, label: Label, id: u16) {
        for (place, slot) in self.ids.iter_mut().enumerate() {
            if let Some(ids) = *slot
                && ids.get(label as usize) == Some(&id)
            {
                *slot = None;
                self.places.remove(&mixed(ids));
                self.resting.push(place as u32);
            }
        }
        let ids = &self.ids;
        self.direct.retain(|_, place| matches!(ids.get(*place as usize), Some(Some(_))));
    }
}

/// A combination as one number with its bits spread.
#[inline]
fn mixed([scope, model, tenant]: Ids) -> u64 {
    let packed = u64::from(scope) << 32 | u64::from(model) << 16 | u64::from(tenant);
    let spread = packed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    spread ^ (spread >> 32)
}
