//! The most tokens that a piece can have, where no two neighbours make up an entry of the table.

use super::table::{Table, short_key};

/// Neighbours are looked up together up to this length; longer ones are taken for allowed.
const MAX_PAIR: usize = 8;

/// The most tokens of the bytes up to a place, by the length of the last token. The first is for a last token of at
/// least `MAX_PAIR` bytes, which may have any neighbour.
type Counts = [u32; MAX_PAIR];

/// No sequence ends like this.
const NONE: u32 = 0;

/// The count of no tokens: counts are kept with this added, so that none is [`NONE`].
const BASE: u32 = 1;

/// Finds the longest sequence of tokens, byte by byte.
#[derive(Debug)]
pub(super) struct Merge<'t> {
    table: &'t Table,
    /// The counts at the last places: at place `i` in `i % MAX_PAIR`.
    counts: [Counts; MAX_PAIR],
    /// Whether the tokenizers may cut the text at these places.
    cuts: [bool; MAX_PAIR],
    /// Whether a character begins at these places.
    begins: [bool; MAX_PAIR],
    /// Bytes that are missing of the last character.
    missing: u32,
    /// The last eight bytes.
    last: u64,
    place: usize,
    /// The most at places that are at least `MAX_PAIR` bytes back.
    far: u32,
}

impl<'t> Merge<'t> {
    pub(super) const fn new(table: &'t Table) -> Self {
        let mut counts = [[NONE; MAX_PAIR]; MAX_PAIR];
        counts[0][0] = BASE;
        let (cuts, begins) = ([true; MAX_PAIR], [true; MAX_PAIR]);
        Self { table, counts, cuts, begins, missing: 0, last: 0, place: 0, far: NONE }
    }

    /// The most tokens of a piece.
    pub(super) fn of(table: &'t Table, piece: &[u8]) -> u64 {
        let mut merge = Self::new(table);
        for byte in piece {
            merge.push(*byte, false);
        }
        merge.total()
    }

    /// One byte more; `may_cut` where a tokenizer may cut the text before it.
    pub(super) fn push(&mut self, byte: u8, may_cut: bool) {
        self.set_place(byte, may_cut);
        self.last = (self.last << 8) | u64::from(byte);
        self.place += 1;
        let known = self.known();
        let mut counts: Counts = [NONE; MAX_PAIR];
        // The slot of this place still holds what is `MAX_PAIR` bytes back.
        let back = self.slot(0).iter().copied().max().unwrap_or(NONE);
        if self.place >= MAX_PAIR {
            self.far = self.far.max(back);
        }
        for (length, count) in counts.iter_mut().enumerate() {
            let before = match length {
                0 => self.far,
                _ if length > self.place || !self.is_possible(length) => NONE,
                _ => self.before(length, known),
            };
            if before != NONE {
                *count = before + 1;
            }
        }
        if let Some(slot) = self.counts.get_mut(self.place % MAX_PAIR) {
            *slot = counts;
        }
    }

    /// The most before a last token of this length.
    fn before(&self, length: usize, known: u16) -> u32 {
        let counts = self.slot(length);
        let is_cut = self.cuts.get((self.place - length) % MAX_PAIR).copied().unwrap_or(true);
        let mut most = NONE;
        for (previous, count) in counts.iter().enumerate() {
            let pair = previous + length;
            let is_entry = previous > 0 && pair <= MAX_PAIR && known & (1 << pair) != 0;
            if is_cut || !is_entry {
                most = most.max(*count);
            }
        }
        most
    }

    /// Which lengths of the bytes up to here are entries, as bits.
    fn known(&self) -> u16 {
        let mut known = 0;
        let mut mask = 0xff_u64;
        for length in 2..=MAX_PAIR.min(self.place) {
            mask = (mask << 8) | 0xff;
            if self.table.has_key(short_key(length, self.last & mask)) {
                known |= 1 << length;
            }
        }
        known
    }

    /// The counts so many places back.
    fn slot(&self, back: usize) -> &Counts {
        const EMPTY: &Counts = &[NONE; MAX_PAIR];
        self.counts.get((self.place + MAX_PAIR - back) % MAX_PAIR).unwrap_or(EMPTY)
    }

    /// Notes what is known of the place before a byte.
    fn set_place(&mut self, byte: u8, may_cut: bool) {
        let begins = byte & 0xc0 != 0x80;
        self.missing = match byte {
            0xc0..=0xdf => 1,
            0xe0..=0xef => 2,
            0xf0..=0xff => 3,
            _ => self.missing.saturating_sub(1),
        };
        let slot = self.place % MAX_PAIR;
        if let (Some(cut), Some(begin)) = (self.cuts.get_mut(slot), self.begins.get_mut(slot)) {
            (*cut, *begin) = (may_cut, begins);
        }
    }

    /// Whether the last bytes can be a token: of those that begin or end within a character, few are.
    fn is_possible(&self, length: usize) -> bool {
        let begins = self.begins.get((self.place - length) % MAX_PAIR).copied().unwrap_or(true);
        if length == 1 || (begins && self.missing == 0) {
            return true;
        }
        let mask = u64::MAX >> (64 - 8 * length.min(8));
        self.table.has_fragment(short_key(length, self.last & mask))
    }

    /// The most tokens of all bytes so far.
    pub(super) fn total(&self) -> u64 {
        let most = self.slot(0).iter().copied().max().unwrap_or(BASE);
        u64::from(most.saturating_sub(BASE))
    }
}
