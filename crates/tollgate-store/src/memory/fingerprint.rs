//! Keyed fingerprints: what the memory store keeps instead of key strings.
//!
//! XXH3-128 under a secret of 192 random bytes, of which 96 bits are kept. Without the secret nobody
//! can search for two keys that share a fingerprint; by chance alone, ten million counters collide
//! with a probability of about one in 10^15.

use std::hash::Hash;

use xxhash_rust::xxh3::xxh3_128_with_secret;

/// Bytes of the secret. XXH3's own is as long.
pub(super) const SECRET_BYTES: usize = 192;

/// Room for several key values on the stack; longer ones are hashed on the heap.
const INLINE_KEY_BYTES: usize = 256;

/// 96 bits that stand for a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint(pub(crate) [u32; 3]);

impl Hash for Fingerprint {
    /// The bits that did not pick the shard.
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let Self([_, low, high]) = self;
        state.write_u64(u64::from(*high) << 32 | u64::from(*low));
    }
}

impl Fingerprint {
    #[inline]
    fn from_hash(hash: u128) -> Self {
        Self([hash as u32, (hash >> 32) as u32, (hash >> 64) as u32])
    }

    /// Picks the shard.
    #[inline]
    pub(crate) const fn shard_bits(self) -> usize {
        let Self([bits, _, _]) = self;
        bits as usize
    }

    /// Picks the home group among `groups` by its place in the 32-bit range, so that any number of
    /// groups will do.
    #[inline]
    pub(crate) const fn home(self, groups: usize) -> usize {
        let Self([_, bits, _]) = self;
        ((bits as u64 * groups as u64) >> 32) as usize
    }

    /// The slot of a group of 16 in which its entry is looked for first.
    #[inline]
    pub(crate) const fn preferred_slot(self) -> usize {
        let Self([_, _, bits]) = self;
        (bits & 15) as usize
    }

    /// The byte that a lookup compares first; never 0, which marks an empty slot.
    #[inline]
    pub(crate) const fn tag(self) -> u8 {
        let Self([_, _, bits]) = self;
        let tag = (bits >> 24) as u8;
        if tag == 0 { 1 } else { tag }
    }
}

/// Collects what a key feeds to a hasher, so that it is hashed at once under the secret.
#[derive(Default)]
struct KeyBytes(smallvec::SmallVec<[u8; INLINE_KEY_BYTES]>);

impl std::hash::Hasher for KeyBytes {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Not asked for: the collected bytes are what counts.
    fn finish(&self) -> u64 {
        self.0.len() as u64
    }
}

/// Makes fingerprints under one secret.
pub(crate) struct Hasher {
    secret: [u8; SECRET_BYTES],
    /// The hash of no values at all, as rules that count everyone together have.
    nobody: u128,
}

impl Hasher {
    pub(crate) fn new(secret: [u8; SECRET_BYTES]) -> Self {
        Self { secret, nobody: xxh3_128_with_secret(&[], &secret).rotate_left(u64::BITS) }
    }

    /// For the one file that keeps it.
    pub(crate) const fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }

    /// The hash of the key values alone. Limits that share them share it.
    #[inline]
    pub(crate) fn key_hash(&self, key: &[&str]) -> u128 {
        match key {
            [value] => xxh3_128_with_secret(value.as_bytes(), &self.secret),
            [] => self.nobody,
            _ => self.parts_hash(key),
        }
    }

    /// Each part with its length before it, so that ("ab", "c") and ("a", "bc") differ; turned, so
    /// that no single value can imitate several.
    fn parts_hash(&self, key: &[&str]) -> u128 {
        let mut bytes = smallvec::SmallVec::<[u8; INLINE_KEY_BYTES]>::new();
        for part in key {
            bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        xxh3_128_with_secret(&bytes, &self.secret).rotate_left(u64::BITS)
    }

    /// The fingerprint of any key that hashes.
    #[inline]
    pub(crate) fn fingerprint_of_key<K: Hash + ?Sized>(&self, key: &K) -> Fingerprint {
        let mut bytes = KeyBytes::default();
        key.hash(&mut bytes);
        Fingerprint::from_hash(xxh3_128_with_secret(&bytes.0, &self.secret))
    }

    /// The fingerprint of a limit's counter. The salt is public, the key hash is not; their
    /// combination cannot be steered without the secret.
    #[inline]
    pub(crate) fn fingerprint(key_hash: u128, salt: u128) -> Fingerprint {
        Fingerprint::from_hash(key_hash ^ salt)
    }

    /// Identifies the secret without revealing it: files written under another one are foreign.
    pub(crate) fn identity(&self) -> u64 {
        xxh3_128_with_secret(b"tollgate fingerprint secret", &self.secret) as u64
    }
}
