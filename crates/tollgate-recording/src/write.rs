//! Entries become blocks.

use hashbrown::HashMap;

use crate::block::{self, Block, Packed, Rest};
use crate::{Entry, Header, MAGIC};

/// A block is written when its texts and entries take about so many bytes. What one entry adds is bounded far below
/// what is left up to [`crate::MAX_BLOCK_BYTES`].
const BLOCK_BYTES: usize = 512 << 10;

/// About the bytes of an entry without its texts, and of one attribute.
const ENTRY_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 6;

/// What a file begins with.
#[must_use]
pub fn header_bytes(header: &Header) -> Option<Vec<u8>> {
    let block = block::pack(header)?;
    Some([MAGIC.as_slice(), &block].concat())
}

/// Collects entries until they fill a block.
#[derive(Debug, Default)]
pub struct Writer {
    block: Block,
    places: HashMap<String, u32, foldhash::fast::RandomState>,
    last_at: u64,
    bytes: usize,
}

impl Writer {
    /// Adds an entry. Returns a block when one is full: the caller writes it to the file.
    #[must_use]
    pub fn push(&mut self, entry: &Entry<'_>) -> Option<Vec<u8>> {
        let attributes = entry.attributes.iter();
        let attributes = attributes.map(|(name, value)| (self.place(name), self.place(value)));
        let attributes: Vec<_> = attributes.collect();
        let rule_id = self.place(entry.rule_id.unwrap_or_default());
        let used = entry.used.iter();
        let used = used.map(|one| (self.place(one.rule_id), self.place(one.tag), one.used));
        let used: Vec<_> = used.collect();
        let names: Vec<_> = entry.names.iter().map(|name| self.place(name)).collect();
        let Entry { kind, hold, part, ttl, refunds, .. } = *entry;
        let rest = Rest { kind, hold, part, ttl, refunds, used, names };
        self.bytes += ENTRY_BYTES + ATTRIBUTE_BYTES * attributes.len();
        self.block.times.push(entry.at.wrapping_sub(self.last_at).cast_signed());
        self.last_at = entry.at;
        self.block.entries.push(Packed {
            verdict: entry.verdict,
            is_degraded: entry.is_degraded,
            amounts: entry.amounts,
            rule_id,
            attributes,
            rest: (rest != Rest::default()).then_some(rest),
        });
        (self.bytes >= BLOCK_BYTES).then(|| self.finish()).flatten()
    }

    /// Whether nothing was added since the last block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.entries.is_empty()
    }

    /// Counts decisions that could not be recorded.
    pub const fn add_dropped(&mut self, count: u64) {
        self.block.dropped += count;
    }

    /// The entries that were added since the last block, as a block; `None` if there are none.
    #[must_use]
    pub fn finish(&mut self) -> Option<Vec<u8>> {
        if self.block.entries.is_empty() && self.block.dropped == 0 {
            return None;
        }
        let block = std::mem::take(&mut self.block);
        self.places.clear();
        (self.last_at, self.bytes) = (0, 0);
        block::pack(&block)
    }

    /// The place of a text in the table, where it is added if it is new.
    fn place(&mut self, text: &str) -> u32 {
        if self.block.texts.is_empty() {
            self.block.texts.push(String::new());
        }
        if text.is_empty() {
            return 0;
        }
        if let Some(place) = self.places.get(text) {
            return *place;
        }
        let place = self.block.texts.len() as u32;
        self.block.texts.push(text.to_owned());
        self.places.insert(text.to_owned(), place);
        self.bytes += text.len();
        place
    }
}
