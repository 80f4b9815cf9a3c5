//! Tollgate and its peers behind one face: the same keys, the same quota, one clock read per check.
//!
//! Every key may be used 1,000 times a day with a burst of 20 million. The burst lets everything
//! pass however fast the loop is; the slow refill keeps every counter in use, so that nobody can
//! reclaim a counter between two checks and measure an empty map.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use limitador::limit::Namespace;
use throttlecrab::PeriodicStore;
use tollgate_core::{Algorithm, Ask, Limit, LimitSpec, Nanos, SECOND, Window};
use tollgate_store::{Charge, Counter, Home, MemoryStore, Role};

/// The quota of every key in a day.
pub const QUOTA: u32 = 1_000;

/// The burst of every key.
pub const BURST: u32 = 20_000_000;

const DAY: u64 = 86_400;

/// An instant to count from, at noon of some day.
pub const SOME_DAY: Nanos = (20_000 * DAY + DAY / 2) * SECOND;

/// Someone who limits rates.
pub trait Limiter: Sync {
    /// Who.
    fn name(&self) -> &'static str;

    /// Checks the picked keys one after the other; returns how many were admitted. `alone`: no other
    /// thread uses it, so a limiter that needs a lock for sharing may take it once.
    fn check_all(&self, keys: &[String], picks: &[u32], alone: bool) -> u64;

    /// How many times fewer checks are enough for it to be timed.
    fn patience(&self) -> usize {
        1
    }
}

#[inline]
fn count(keys: &[String], picks: &[u32], mut check: impl FnMut(&String) -> bool) -> u64 {
    picks.iter().map(|pick| u64::from(check(&keys[*pick as usize]))).sum()
}

/// The limit of this algorithm with the quota that everyone gets.
pub fn limit(algorithm: Algorithm, burst: u32) -> Limit {
    let burst = algorithm.is_bucket().then_some(u64::from(burst));
    let quota = if algorithm.is_bucket() { u64::from(QUOTA) } else { u64::from(BURST) };
    let window = Window::Every(DAY * SECOND);
    Limit::new(LimitSpec { algorithm, quota, window, burst, slot_ttl: 0 }).unwrap()
}

/// The charge of 1 to the counter of this key.
#[inline]
pub fn charge<'a>(limit: &'a Limit, key: &'a [&'a str]) -> Charge<'a> {
    const SALT: u128 = 0x6A09_E667_F3BC_C908_BB67_AE85_84CA_A73B;
    let counter = Counter { rule_id: "bench", tag: "tb", salt: SALT, key, home: Home::default() };
    Charge { counter, limit, ask: Ask::cost(1), role: Role::Must }
}

/// Tollgate's memory store.
pub struct Tollgate {
    store: MemoryStore,
    limit: Limit,
    clock: quanta::Clock,
    started: u64,
}

impl Tollgate {
    /// A token bucket on a store of at most so many counters.
    pub fn new(max_counters: usize, burst: u32) -> Self {
        let clock = quanta::Clock::new();
        let started = clock.raw();
        let limit = limit(Algorithm::TokenBucket, burst);
        Self { store: MemoryStore::new(max_counters), limit, clock, started }
    }

    /// The store.
    pub const fn store(&self) -> &MemoryStore {
        &self.store
    }

    /// One check.
    #[inline]
    pub fn check(&self, key: &str) -> bool {
        let now = SOME_DAY + self.clock.delta_as_nanos(self.started, self.clock.raw());
        let examination = self.store.pass(&charge(&self.limit, &[key]), now);
        examination.admits()
    }
}

impl Limiter for Tollgate {
    fn name(&self) -> &'static str {
        "tollgate"
    }

    fn check_all(&self, keys: &[String], picks: &[u32], _alone: bool) -> u64 {
        count(keys, picks, |key| self.check(key))
    }
}

type Keyed<S> = governor::RateLimiter<String, DashMapStateStore<String, S>, DefaultClock>;

/// governor on dashmap.
pub struct Governor<S: std::hash::BuildHasher + Clone + Default> {
    limiter: Keyed<S>,
    name: &'static str,
}

/// governor's quota.
pub fn governor_quota(burst: u32) -> governor::Quota {
    let spacing = Duration::from_secs(DAY) / QUOTA;
    governor::Quota::with_period(spacing).unwrap().allow_burst(NonZeroU32::new(burst).unwrap())
}

impl<S: std::hash::BuildHasher + Clone + Default> Governor<S> {
    /// With this hasher.
    pub fn new(name: &'static str, burst: u32) -> Self {
        let quota = governor_quota(burst);
        Self { limiter: governor::RateLimiter::dashmap_with_hasher(quota, S::default()), name }
    }
}

impl<S: std::hash::BuildHasher + Clone + Default + Sync + Send> Limiter for Governor<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check_all(&self, keys: &[String], picks: &[u32], _alone: bool) -> u64 {
        count(keys, picks, |key| self.limiter.check_key(key).is_ok())
    }
}

/// throttlecrab's library, which leaves sharing to its user: a mutex.
pub struct Throttlecrab {
    limiter: Mutex<throttlecrab::RateLimiter<PeriodicStore>>,
    burst: u32,
}

impl Throttlecrab {
    /// With room for so many keys, and no cleaning up while it is timed.
    pub fn new(capacity: usize, burst: u32) -> Self {
        let pause = Duration::from_secs(DAY);
        let store = PeriodicStore::builder().capacity(capacity).cleanup_interval(pause).build();
        Self { limiter: Mutex::new(throttlecrab::RateLimiter::new(store)), burst }
    }

    fn check(&self, limiter: &mut throttlecrab::RateLimiter<PeriodicStore>, key: &str) -> bool {
        let (burst, quota, period) = (i64::from(self.burst), i64::from(QUOTA), DAY as i64);
        limiter.rate_limit(key, burst, quota, period, 1, SystemTime::now()).unwrap().0
    }
}

impl Limiter for Throttlecrab {
    fn name(&self) -> &'static str {
        "throttlecrab"
    }

    fn check_all(&self, keys: &[String], picks: &[u32], alone: bool) -> u64 {
        if alone {
            let mut limiter = self.limiter.lock().unwrap();
            count(keys, picks, |key| self.check(&mut limiter, key))
        } else {
            count(keys, picks, |key| self.check(&mut self.limiter.lock().unwrap(), key))
        }
    }
}

/// limitador in memory. It knows fixed windows only; its quota is the others' burst.
pub struct Limitador {
    limiter: limitador::RateLimiter,
    namespace: Namespace,
}

impl Limitador {
    /// With room for so many counters.
    pub fn new(capacity: u64, burst: u32) -> Self {
        let limiter = limitador::RateLimiter::new(capacity);
        let variable = "user_id".try_into().unwrap();
        let no_conditions = Vec::<limitador::limit::Predicate>::new();
        let limit =
            limitador::limit::Limit::new("bench", burst.into(), DAY, no_conditions, [variable]);
        limiter.add_limit(limit);
        Self { limiter, namespace: "bench".into() }
    }

    /// One whole check, its context included.
    pub fn check(&self, key: &str) -> bool {
        let context = HashMap::from([("user_id".to_owned(), key.to_owned())]).into();
        let checked = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1);
        !checked.unwrap().limited
    }
}

impl Limiter for Limitador {
    fn name(&self) -> &'static str {
        "limitador"
    }

    fn check_all(&self, keys: &[String], picks: &[u32], _alone: bool) -> u64 {
        count(keys, picks, |key| self.check(key))
    }

    fn patience(&self) -> usize {
        10
    }
}
