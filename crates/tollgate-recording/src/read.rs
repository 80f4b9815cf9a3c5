//! Files become entries.

use std::io::{self, Read};

use crate::block::{self, Block, FRAME_BYTES, Rest};
use crate::{Entry, Header, MAGIC, MAX_BLOCK_BYTES, Used, VERSION};

/// Why a file cannot be read, or not any further.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It does not begin like a recording.
    #[error("this is not a recording of Tollgate")]
    NoRecording,
    /// A newer Tollgate wrote it.
    #[error(
        "the recording has version {0}, and this Tollgate reads up to {VERSION}: use a newer Tollgate"
    )]
    NewerVersion(u32),
    /// An early build wrote it.
    #[error(
        "the recording has version {0}, which was never released; this Tollgate reads {VERSION}: record again"
    )]
    OlderVersion(u32),
    /// A block does not have its checksum, or is no block.
    #[error("block {0} of the recording is damaged")]
    Damaged(u64),
    /// The file ends within a block.
    #[error("the recording ends within block {0}")]
    Truncated(u64),
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads the entries of a file in order.
pub struct Reader<R> {
    source: R,
    header: Header,
    block: Block,
    /// The next entry of the block.
    next: usize,
    at: u64,
    blocks: u64,
    dropped: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub fn open(mut source: R) -> Result<Self, ReadError> {
        let mut magic = [0; MAGIC.len()];
        if read_whole(&mut source, &mut magic)? != MAGIC.len() || magic != MAGIC {
            return Err(ReadError::NoRecording);
        }
        let body = next_body(&mut source, 0)?.ok_or(ReadError::Truncated(0))?;
        let header: Header = body.0.unpack(body.1, 0)?;
        if header.version > VERSION {
            return Err(ReadError::NewerVersion(header.version));
        }
        if header.version < VERSION {
            return Err(ReadError::OlderVersion(header.version));
        }
        Ok(Self { source, header, block: Block::default(), next: 0, at: 0, blocks: 0, dropped: 0 })
    }

    /// The header.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Decisions that were not recorded for want of room, up to here.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The next entry; `None` at the end. After an error there are no further ones.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>, ReadError> {
        while self.next >= self.block.entries.len() {
            if !self.next_block()? {
                return Ok(None);
            }
        }
        let damaged = ReadError::Damaged(self.blocks);
        let place = self.next;
        self.next += 1;
        let (Some(packed), Some(time)) =
            (self.block.entries.get(place), self.block.times.get(place))
        else {
            return Err(damaged);
        };
        self.at = self.at.wrapping_add(time.cast_unsigned());
        let text = |place: u32| self.block.texts.get(place as usize).map(String::as_str);
        let pair = |(name, value): &(u32, u32)| Some((text(*name)?, text(*value)?));
        let attributes: Option<Vec<_>> = packed.attributes.iter().map(pair).collect();
        let none = Rest::default();
        let rest = packed.rest.as_ref().unwrap_or(&none);
        let used = |(rule_id, tag, used): &(u32, u32, u64)| {
            Some(Used { rule_id: text(*rule_id)?, tag: text(*tag)?, used: *used })
        };
        let used: Option<Vec<_>> = rest.used.iter().map(used).collect();
        let names: Option<Vec<_>> = rest.names.iter().map(|name| text(*name)).collect();
        let (Some(attributes), Some(used), Some(names), Some(rule_id)) =
            (attributes, used, names, text(packed.rule_id))
        else {
            return Err(damaged);
        };
        Ok(Some(Entry {
            at: self.at,
            kind: rest.kind,
            verdict: packed.verdict,
            is_degraded: packed.is_degraded,
            amounts: packed.amounts,
            hold: rest.hold,
            part: rest.part,
            ttl: rest.ttl,
            refunds: rest.refunds,
            rule_id: (!rule_id.is_empty()).then_some(rule_id),
            attributes,
            used,
            names,
        }))
    }

    fn next_block(&mut self) -> Result<bool, ReadError> {
        self.block = Block::default();
        (self.next, self.at) = (0, 0);
        let Some((body, checksum)) = next_body(&mut self.source, self.blocks + 1)? else {
            return Ok(false);
        };
        self.blocks += 1;
        self.block = body.unpack(checksum, self.blocks)?;
        self.dropped = self.dropped.saturating_add(self.block.dropped);
        Ok(true)
    }
}

/// The bytes of a block.
struct Body(Vec<u8>);

impl Body {
    fn unpack<T: serde::de::DeserializeOwned>(
        &self,
        checksum: u32,
        number: u64,
    ) -> Result<T, ReadError> {
        block::unpack(&self.0, checksum).map_err(|_| ReadError::Damaged(number))
    }
}

/// The next block and its checksum; `None` at the end of the file.
fn next_body(source: &mut impl Read, number: u64) -> Result<Option<(Body, u32)>, ReadError> {
    let mut frame = [0; FRAME_BYTES];
    match read_whole(source, &mut frame)? {
        0 => return Ok(None),
        FRAME_BYTES => {}
        _ => return Err(ReadError::Truncated(number)),
    }
    let (length, checksum) = block::frame(frame);
    if length > MAX_BLOCK_BYTES {
        return Err(ReadError::Damaged(number));
    }
    let mut body = Vec::new();
    source.take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(ReadError::Truncated(number));
    }
    Ok(Some((Body(body), checksum)))
}

/// Fills the buffer as far as the source goes; returns how far that is.
fn read_whole(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..)
        && !rest.is_empty()
    {
        match source.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
