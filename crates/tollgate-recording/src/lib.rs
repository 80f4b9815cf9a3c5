//! Recorded decisions as files.
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

/// The version of the format.
pub const VERSION: u32 = 1;

/// The extension of the files.
pub const EXTENSION: &str = "tgrec";

/// The most bytes of one block, before compression. A reader refuses more.
pub const MAX_BLOCK_BYTES: usize = 4 << 20;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It was allowed.
    Allowed,
    /// It was allowed after a wait.
    Throttled,
    /// It was stored, to be sent later.
    Queued,
    /// It was refused.
    Refused,
}

/// One decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'e> {
    /// When it was decided, in nanoseconds since 1970.
    pub at: u64,
    /// What became of the request.
    pub verdict: Verdict,
    /// Whether a fallback decided, because a store was unavailable.
    pub is_degraded: bool,
    /// What the request uses.
    pub amounts: Amounts,
    /// The rule that decided, if one did.
    pub rule_id: Option<&'e str>,
    /// The attributes by name; of API keys the ids.
    pub attributes: Vec<(&'e str, &'e str)>,
}
