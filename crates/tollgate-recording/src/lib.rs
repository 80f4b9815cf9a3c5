//! Recorded decisions as files, and all that changes what decisions depend on.
//!
//! A file is a header and blocks. A block holds a few thousand entries: times as differences, every text once, and
//! all of it compressed. Each block has its length and a checksum and can be read alone, so that a file that was cut
//! off is good up to its last whole block.
//!
//! ```text
//! file    MAGIC, block with the header, blocks with entries
//! block   length (4 bytes), CRC-32 (4 bytes), that many bytes compressed by DEFLATE
//! ```
//!
//! Readers refuse files of a version they do not know.

mod block;
mod read;
mod sample;
#[cfg(test)]
mod tests;
mod write;

use serde::{Deserialize, Serialize};

pub use read::{ReadError, Reader};
pub use sample::Sample;
pub use write::{Writer, header_bytes};

/// What a file begins with.
pub const MAGIC: [u8; 8] = *b"TOLLREC\n";

/// The version of the format. Version 1 had decisions only, and was never released.
pub const VERSION: u32 = 2;

/// The extension of the files.
pub const EXTENSION: &str = "tgrec";

/// The most bytes of one block, before compression. A reader refuses more.
pub const MAX_BLOCK_BYTES: usize = 4 << 20;

/// The most bytes of rules in one entry. Of longer ones only the fact is recorded that they came into force.
pub const MAX_RULES_BYTES: usize = 1 << 20;

/// The first block of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the format.
    pub version: u32,
    /// When the file was begun, in nanoseconds since 1970.
    pub started_at: u64,
    /// Which node wrote it.
    pub node: String,
    /// Which part of the traffic it holds.
    pub sample: Sample,
}

/// What a request uses, by unit. What is absent was not stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amounts {
    /// On rules of unit requests or cost.
    pub cost: Option<u64>,
    /// On rules of unit tokens.
    pub tokens: Option<u64>,
    /// On rules of unit `input_tokens`.
    pub input_tokens: Option<u64>,
    /// On rules of unit `output_tokens`.
    pub output_tokens: Option<u64>,
    /// On rules of unit `cached_tokens`.
    pub cached_tokens: Option<u64>,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Verdict {
    /// It was allowed.
    #[default]
    Allowed,
    /// It was allowed after a wait.
    Throttled,
    /// It was stored, to be sent later.
    Queued,
    /// It was refused.
    Refused,
}

/// What an entry is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Kind {
    /// A decision about a request.
    #[default]
    Decision,
    /// More of a request that was allowed before, charged while it runs.
    More,
    /// What a request holds was settled at the stated amounts.
    Settled,
    /// What a request holds was given back.
    Released,
    /// What a request holds is held for longer.
    Renewed,
    /// The counters of a client were reset; `names` are the rules.
    Reset,
    /// Rules came into force; `names` are the enforcement mode and the rules as JSON, empty if they are too long.
    Rules,
}

/// Which part of what a request holds an entry is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Part {
    /// All of it.
    #[default]
    All,
    /// Its slots.
    Slots,
    /// All but its slots.
    Charges,
}

/// Whether charges could be refunded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Refunds {
    /// They could not.
    #[default]
    Never,
    /// While the request waited for its turn.
    WhileWaiting,
    /// Until it was settled or released.
    Always,
}

/// How much of a limit was used before the first recorded request that it applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used<'e> {
    /// The rule.
    pub rule_id: &'e str,
    /// Which of its limits.
    pub tag: &'e str,
    /// How much.
    pub used: u64,
}

/// One event: a decision, or something that changed what decisions depend on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entry<'e> {
    /// When it happened, in nanoseconds since 1970.
    pub at: u64,
    /// What it is about.
    pub kind: Kind,
    /// What became of the request.
    pub verdict: Verdict,
    /// Whether a fallback decided, because a store was unavailable.
    pub is_degraded: bool,
    /// What the request uses.
    pub amounts: Amounts,
    /// Names what the request holds in later entries; 0 where it holds nothing.
    pub hold: u64,
    /// Which part of it.
    pub part: Part,
    /// For how long it is held.
    pub ttl: Option<u64>,
    /// Whether its charges could be refunded.
    pub refunds: Refunds,
    /// The rule that decided, if one did.
    pub rule_id: Option<&'e str>,
    /// The attributes by name; of API keys the ids.
    pub attributes: Vec<(&'e str, &'e str)>,
    /// What was used of limits that the recording, or this file of it, had not met before.
    pub used: Vec<Used<'e>>,
    /// See [`Kind`].
    pub names: Vec<&'e str>,
}
