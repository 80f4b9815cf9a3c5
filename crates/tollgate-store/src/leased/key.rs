//! Which counter: a fingerprint to find it by, and an owned name to speak of it later.

use smallvec::SmallVec;
use tollgate_core::Limit;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_secret};

use crate::{Counter, Home};

/// Bytes of the secret. XXH3's own is as long.
const SECRET_BYTES: usize = 192;

/// Room for several key values on the stack; longer ones are hashed on the heap.
const INLINE_KEY_BYTES: usize = 256;

/// Makes fingerprints under a secret of this process, so that nobody outside can search for two keys
/// that share one.
pub(crate) struct Fingerprints {
    secret: [u8; SECRET_BYTES],
}

impl Fingerprints {
    /// `seed` makes the secret, and with it the order in which counters are visited, the same in
    /// every run; without one it is random.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        let mut secret = [0; SECRET_BYTES];
        if let Some(seed) = seed {
            for (part, place) in secret.chunks_exact_mut(8).zip(0_u64..) {
                part.copy_from_slice(&xxh3_64_with_seed(&place.to_le_bytes(), seed).to_le_bytes());
            }
        } else if let Err(error) = getrandom::fill(&mut secret) {
            // They still tell keys apart; they can be predicted, which deserves a warning.
            tracing::warn!(%error, "the system gives no random bytes; leases use a known secret");
            secret = [0x5A; SECRET_BYTES];
        }
        Self { secret }
    }

    /// 128 bits that stand for a counter. Parts are hashed with their lengths, so that ("ab", "c")
    /// and ("a", "bc") differ; several are turned, so that no single value can imitate them.
    #[inline]
    pub(crate) fn of(&self, counter: &Counter<'_>) -> u128 {
        let key = match counter.key {
            [value] => xxh3_128_with_secret(value.as_bytes(), &self.secret),
            parts => {
                let mut bytes = SmallVec::<[u8; INLINE_KEY_BYTES]>::new();
                for part in parts {
                    bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
                    bytes.extend_from_slice(part.as_bytes());
                }
                xxh3_128_with_secret(&bytes, &self.secret).rotate_left(u64::BITS)
            }
        };
        key ^ counter.salt
    }

    /// The same of a name: another number in every process, unless the secret is made from a seed.
    pub(crate) fn of_text(&self, text: &str) -> u128 {
        xxh3_128_with_secret(text.as_bytes(), &self.secret)
    }
}

/// A map from fingerprints, which need no second hash.
pub(crate) type ByFingerprint<T> = hashbrown::HashMap<u128, T, Unhashed>;

/// Takes a fingerprint as its own hash.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Unhashed;

impl std::hash::BuildHasher for Unhashed {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded(0)
    }
}

/// The upper half: the lower one picks the shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Folded(u64);

impl std::hash::Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = (fingerprint >> u64::BITS) as u64;
    }
}

/// A counter's name, kept beyond the request that named it.
#[derive(Debug)]
pub(crate) struct Named {
    rule_id: Box<str>,
    tag: Box<str>,
    salt: u128,
    key: Box<[Box<str>]>,
    home: Home,
}

/// A counter and its limit, kept beyond the request that named them.
#[derive(Debug)]
pub(crate) struct Owned {
    name: Named,
    pub(crate) limit: Limit,
}

/// The borrowed parts of a key.
pub(crate) type Parts<'a> = SmallVec<[&'a str; 8]>;

impl Named {
    pub(crate) fn new(counter: &Counter<'_>) -> Self {
        Self {
            rule_id: counter.rule_id.into(),
            tag: counter.tag.into(),
            salt: counter.salt,
            key: counter.key.iter().map(|&part| part.into()).collect(),
            home: counter.home,
        }
    }

    /// The key as a [`Counter`] borrows it.
    pub(crate) fn parts(&self) -> Parts<'_> {
        self.key.iter().map(|part| &**part).collect()
    }

    /// The counter, around what [`Named::parts`] gave.
    pub(crate) fn counter<'a>(&'a self, parts: &'a [&'a str]) -> Counter<'a> {
        let Self { rule_id, tag, salt, home, .. } = self;
        Counter { rule_id, tag, salt: *salt, key: parts, home: *home }
    }
}

impl Owned {
    pub(crate) fn new(counter: &Counter<'_>, limit: &Limit) -> Self {
        Self { name: Named::new(counter), limit: limit.clone() }
    }

    pub(crate) fn rule_id(&self) -> &str {
        &self.name.rule_id
    }

    pub(crate) fn parts(&self) -> Parts<'_> {
        self.name.parts()
    }

    pub(crate) fn counter<'a>(&'a self, parts: &'a [&'a str]) -> Counter<'a> {
        self.name.counter(parts)
    }

    /// Whether a limit is the one this counter was kept under; the name already contains the
    /// algorithm and the window.
    #[inline]
    pub(crate) fn is_under(&self, limit: &Limit) -> bool {
        self.limit.quota() == limit.quota() && self.limit.capacity() == limit.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter<'a>(salt: u128, key: &'a [&'a str]) -> Counter<'a> {
        Counter { rule_id: "rule", tag: "tag", salt, key, home: Home::default() }
    }

    #[test]
    fn keys_and_salts_are_distinguished() {
        let fingerprints = Fingerprints::new(None);
        let keys: [&[&str]; 7] = [
            &[],
            &["ab"],
            &["ab", "c"],
            &["a", "bc"],
            &["abc"],
            &["", "abc"],
            &["\u{2}\0\0\0ab\u{1}\0\0\0c"],
        ];
        let mut seen = std::collections::HashSet::new();
        for key in keys {
            for salt in [1, 2] {
                assert!(seen.insert(fingerprints.of(&counter(salt, key))), "{salt} {key:?}");
            }
        }
        assert_eq!(fingerprints.of(&counter(1, keys[2])), fingerprints.of(&counter(1, keys[2])));
    }

    #[test]
    fn a_seed_makes_fingerprints_repeatable() {
        let of = |seed| Fingerprints::new(seed).of(&counter(1, &["key"]));
        assert_eq!(of(Some(7)), of(Some(7)));
        assert_ne!(of(Some(7)), of(Some(8)));
        assert_ne!(of(None), of(None));
    }
}
