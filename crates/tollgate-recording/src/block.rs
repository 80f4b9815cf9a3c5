//! Blocks: entries with their texts in one table, compressed.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Amounts, Kind, MAX_BLOCK_BYTES, Part, Refunds, Verdict};

/// The bytes in front of a block: its length and its checksum.
pub(crate) const FRAME_BYTES: usize = 8;

/// The entries of one block.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Block {
    /// Every text once. The first one is empty and stands for none.
    pub(crate) texts: Vec<String>,
    /// The time of the first entry; of the others the difference to the one before.
    pub(crate) times: Vec<i64>,
    pub(crate) entries: Vec<Packed>,
    /// Decisions that were not recorded for want of room since the block before.
    pub(crate) dropped: u64,
}

/// An entry that names texts by their place in the table.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Packed {
    pub(crate) verdict: Verdict,
    pub(crate) is_degraded: bool,
    pub(crate) amounts: Amounts,
    pub(crate) rule_id: u32,
    pub(crate) attributes: Vec<(u32, u32)>,
    /// What few entries have.
    pub(crate) rest: Option<Rest>,
}

/// What entries have that are no plain decision.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rest {
    pub(crate) kind: Kind,
    pub(crate) hold: u64,
    pub(crate) part: Part,
    pub(crate) ttl: Option<u64>,
    pub(crate) refunds: Refunds,
    /// Rule, limit, how much.
    pub(crate) used: Vec<(u32, u32, u64)>,
    pub(crate) names: Vec<u32>,
}

/// Why bytes are no block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Damaged;

/// A value as a block.
pub(crate) fn pack(value: &impl Serialize) -> Option<Vec<u8>> {
    let plain = postcard::to_allocvec(value).ok()?;
    let mut encoder = DeflateEncoder::new(vec![0; FRAME_BYTES], Compression::fast());
    encoder.write_all(&plain).ok()?;
    let mut bytes = encoder.finish().ok()?;
    let (frame, body) = bytes.split_first_chunk_mut::<FRAME_BYTES>()?;
    let length = u32::try_from(body.len()).ok()?;
    let checksum = checksum(body);
    *frame = (u64::from(checksum) << 32 | u64::from(length)).to_le_bytes();
    Some(bytes)
}

/// The length and the checksum of the block that follows.
pub(crate) fn frame(bytes: [u8; FRAME_BYTES]) -> (usize, u32) {
    let value = u64::from_le_bytes(bytes);
    ((value & u64::from(u32::MAX)) as usize, (value >> 32) as u32)
}

/// The value in the body of a block.
pub(crate) fn unpack<T: DeserializeOwned>(body: &[u8], expected: u32) -> Result<T, Damaged> {
    if checksum(body) != expected {
        return Err(Damaged);
    }
    let mut plain = Vec::new();
    let mut decoder = DeflateDecoder::new(body).take(MAX_BLOCK_BYTES as u64 + 1);
    decoder.read_to_end(&mut plain).map_err(|_| Damaged)?;
    if plain.len() > MAX_BLOCK_BYTES {
        return Err(Damaged);
    }
    postcard::from_bytes(&plain).map_err(|_| Damaged)
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}
