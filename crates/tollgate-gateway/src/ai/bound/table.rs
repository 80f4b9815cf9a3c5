//! Entries that the vocabularies of `cl100k_base` and `o200k_base` share.

use std::collections::HashSet;
use std::sync::LazyLock;

use foldhash::fast::FixedState;

/// The longest entry that is kept.
pub(super) const MAX_ENTRY_BYTES: usize = 15;

/// The entries in order, each as one byte with the bytes that it shares with the entry before it (high half) and those
/// that follow (low half), and those that follow. The test `ai::tests::bound` checks it, and writes it anew.
static ENTRIES: &[u8] = include_bytes!("entries.bin");

/// Entries of either vocabulary that begin or end within a character, in the same form.
static FRAGMENTS: &[u8] = include_bytes!("fragments.bin");

static TABLE: LazyLock<Table> =
    LazyLock::new(|| Table { entries: read(ENTRIES), fragments: read(FRAGMENTS) });

type Keys = HashSet<u128, FixedState>;

/// What is known of the vocabularies.
#[derive(Debug)]
pub(super) struct Table {
    /// Byte strings that are single tokens in both.
    entries: Keys,
    /// Those of either that begin or end within a character. No other token does, unless it is longer or a single byte.
    fragments: Keys,
}

/// Reads the table, so that the first request does not have to.
pub(crate) fn warm() {
    LazyLock::force(&TABLE);
}

/// The table. It takes about 3 MB once it is read.
pub(super) fn table() -> &'static Table {
    &TABLE
}

/// Up to eight bytes with their number as a key.
pub(super) const fn short_key(length: usize, bytes: u64) -> u128 {
    ((length as u128) << 120) | bytes as u128
}

/// A byte string as a key; none where it is longer than any entry.
fn key(bytes: &[u8]) -> Option<u128> {
    if bytes.len() > MAX_ENTRY_BYTES {
        return None;
    }
    let start = (bytes.len() as u128) << 120;
    Some(start | bytes.iter().fold(0, |all, byte| (all << 8) | u128::from(*byte)))
}

fn read(mut entries: &[u8]) -> Keys {
    let mut known = Keys::with_capacity_and_hasher(entries.len() / 3, FixedState::default());
    let mut entry: Vec<u8> = Vec::with_capacity(MAX_ENTRY_BYTES);
    while let Some((head, rest)) = entries.split_first() {
        let (shared, more) = (usize::from(head >> 4), usize::from(head & 15));
        let Some((suffix, rest)) = rest.split_at_checked(more) else { break };
        entry.truncate(shared);
        entry.extend_from_slice(suffix);
        known.extend(key(&entry));
        entries = rest;
    }
    known
}

impl Table {
    pub(super) fn has(&self, bytes: &[u8]) -> bool {
        bytes.len() == 1 || key(bytes).is_some_and(|key| self.entries.contains(&key))
    }

    pub(super) fn has_key(&self, key: u128) -> bool {
        self.entries.contains(&key)
    }

    pub(super) fn has_fragment(&self, key: u128) -> bool {
        self.fragments.contains(&key)
    }
}
