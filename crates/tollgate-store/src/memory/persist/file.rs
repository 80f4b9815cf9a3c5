//! Files of checksummed frames.
//!
//! A file starts with a header that names its kind, the fingerprint secret it was written under and
//! its generation. Then frames follow: length, checksum, payload. The checksum covers the frame's
//! place in this very file, so that a frame of another file, or out of order, is not taken for one.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64_with_seed;

const MAGIC: &[u8; 8] = b"TOLLGAT1";
const HEADER_BYTES: usize = 40;

/// The longest frame. One record is one frame at least, and a log may be long.
const LONGEST_FRAME: usize = 1 << 30;

/// The payload of the frame that closes a base: without it the base is torn.
pub(super) const CLOSING: &[u8] = b"closed";

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// All counters at one time.
    Base = 1,
    /// Changes since.
    Journal = 2,
}

/// Why a file is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("it is not a Tollgate counter file of this version")]
    Foreign,
    #[error("it was written under another fingerprint secret")]
    ForeignSecret,
    #[error("it is of generation {0:x}, not of the one in its name")]
    Misnamed(u64),
    #[error("it is torn or damaged after {0} good frames")]
    Torn(u64),
}

fn seed(identity: u64, generation: u64, frame: u64) -> u64 {
    identity ^ generation.rotate_left(32) ^ frame.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn header(kind: Kind, identity: u64, generation: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let fields = [u64::from_le_bytes(*MAGIC), kind as u64, identity, generation];
    let mut body = Vec::with_capacity(HEADER_BYTES);
    for field in fields {
        body.extend_from_slice(&field.to_le_bytes());
    }
    let checksum = xxh3_64_with_seed(&body, 0);
    body.extend_from_slice(&checksum.to_le_bytes());
    bytes.copy_from_slice(&body);
    bytes
}

/// Writes frames.
pub(super) struct FrameWriter {
    file: File,
    identity: u64,
    generation: u64,
    frames: u64,
    pub(super) bytes: u64,
}

/// A new file that nobody but its owner reads: keys of counters name clients.
fn private_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    // One that was there before keeps its permissions when it is opened.
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(file)
}

impl FrameWriter {
    pub(super) fn create(
        path: &Path,
        kind: Kind,
        identity: u64,
        generation: u64,
    ) -> io::Result<Self> {
        let mut file = private_file(path)?;
        file.write_all(&header(kind, identity, generation))?;
        Ok(Self { file, identity, generation, frames: 0, bytes: HEADER_BYTES as u64 })
    }

    pub(super) fn write(&mut self, payload: &[u8]) -> io::Result<()> {
        if payload.len() > LONGEST_FRAME {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "a frame is too long"));
        }
        let seed = seed(self.identity, self.generation, self.frames);
        let mut head = [0; 12];
        let (length, checksum) = head.split_at_mut(4);
        length.copy_from_slice(&(payload.len() as u32).to_le_bytes());
        checksum.copy_from_slice(&xxh3_64_with_seed(payload, seed).to_le_bytes());
        self.file.write_all(&head)?;
        self.file.write_all(payload)?;
        self.frames += 1;
        self.bytes += (head.len() + payload.len()) as u64;
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Whether this file is the one at `path`.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let (Ok(written), Ok(found)) = (self.file.metadata(), std::fs::metadata(path)) else {
            return false;
        };
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            written.dev() == found.dev() && written.ino() == found.ino()
        }
        #[cfg(not(unix))]
        {
            written.len() == found.len()
        }
    }
}

/// Reads frames back until the first that is not whole.
pub(super) struct FrameReader {
    file: BufReader<File>,
    identity: u64,
    generation: u64,
    pub(super) frames: u64,
    pub(super) bytes: u64,
}

impl FrameReader {
    /// Opens a file that must be of this origin: the secret's identity and the generation.
    pub(super) fn open(
        path: &Path,
        kind: Kind,
        (identity, expected): (u64, u64),
    ) -> Result<Self, FileError> {
        let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact(&mut bytes).map_err(|_| FileError::Foreign)?;
        let mut fields = bytes
            .chunks_exact(8)
            .map(|chunk| chunk.try_into().map(u64::from_le_bytes).unwrap_or_default());
        let mut field = || fields.next().unwrap_or_default();
        let (magic, found_kind, found_identity, generation) = (field(), field(), field(), field());
        if magic != u64::from_le_bytes(*MAGIC) || found_kind != kind as u64 {
            return Err(FileError::Foreign);
        }
        if bytes != header(kind, found_identity, generation) {
            return Err(FileError::Torn(0));
        }
        if found_identity != identity {
            return Err(FileError::ForeignSecret);
        }
        if generation != expected {
            return Err(FileError::Misnamed(generation));
        }
        Ok(Self { file, identity, generation, frames: 0, bytes: HEADER_BYTES as u64 })
    }

    /// The next frame into `payload`; false at the end of the file.
    pub(super) fn read(&mut self, payload: &mut Vec<u8>) -> Result<bool, FileError> {
        let mut head = [0; 12];
        match read_up_to(&mut self.file, &mut head)? {
            0 => return Ok(false),
            12 => {}
            _ => return Err(FileError::Torn(self.frames)),
        }
        let (length, checksum) = head.split_at(4);
        let length = length.try_into().map_or(u32::MAX, u32::from_le_bytes) as usize;
        let checksum = checksum.try_into().map(u64::from_le_bytes).unwrap_or_default();
        if length > LONGEST_FRAME {
            return Err(FileError::Torn(self.frames));
        }
        // A damaged length must not allocate more than the file holds.
        payload.clear();
        if (&mut self.file).take(length as u64).read_to_end(payload)? != length {
            return Err(FileError::Torn(self.frames));
        }
        let seed = seed(self.identity, self.generation, self.frames);
        if xxh3_64_with_seed(payload, seed) != checksum {
            return Err(FileError::Torn(self.frames));
        }
        self.frames += 1;
        self.bytes += (head.len() + length) as u64;
        Ok(true)
    }
}

fn read_up_to(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
