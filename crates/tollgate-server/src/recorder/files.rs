//! The files of a recording: rotated, bounded in bytes and age.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tollgate_core::Nanos;
use tollgate_recording::{EXTENSION, Header, Sample, VERSION, header_bytes};

use super::RecorderOptions;

/// A file is full at this part of all bytes, or at the most.
const FILES: u64 = 8;
const MAX_FILE_BYTES: u64 = 64 << 20;
/// A file that is so full is closed, so that the next block begins another one. What a block must begin with depends on
/// it.
const FULL_PER_CENT: u64 = 85;

/// Recording stops before the disk has less room than this part of it, or than the most: rules, counters and the audit log
/// come first.
const MIN_FREE_SHARE: u64 = 20;
const MAX_MIN_FREE_BYTES: u64 = 1 << 30;

/// The digits of a time in a file's name, so that names sort by it.
const TIME_DIGITS: usize = 20;

pub(super) struct Files {
    dir: PathBuf,
    node: String,
    max_bytes: u64,
    max_age: Nanos,
    sample: Sample,
    current: Option<Current>,
    /// The time of the last entry.
    now: Nanos,
    /// Bytes of all files but the current one.
    others: u64,
    /// Dropped decisions that are written down already.
    dropped: u64,
}

struct Current {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Files {
    pub(super) fn open(options: &RecorderOptions, node: &str) -> io::Result<Self> {
        let RecorderOptions { dir, max_bytes, max_age, sample } = options.clone();
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|error| {
            io::Error::new(error.kind(), format!("recording.dir {}: {error}", dir.display()))
        })?;
        let plain = |char: char| if char.is_ascii_alphanumeric() { char } else { '-' };
        let node = node.chars().take(64).map(plain).collect();
        let mut files = Self {
            dir,
            node,
            max_bytes,
            max_age,
            sample,
            current: None,
            now: 0,
            others: 0,
            dropped: 0,
        };
        files.prune()?;
        Ok(files)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether the next block is appended to a file that has others.
    pub(super) const fn is_open(&self) -> bool {
        self.current.is_some()
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.others + self.current.as_ref().map_or(0, |current| current.bytes)
    }

    /// An entry of this time is to be written.
    pub(super) fn reach(&mut self, at: Nanos) {
        self.now = self.now.max(at);
    }

    /// How many decisions were dropped that no block says yet, of so many in all.
    pub(super) fn newly_dropped(&mut self, all: u64) -> u64 {
        all.saturating_sub(std::mem::replace(&mut self.dropped, all))
    }

    /// Appends a block. After an error the next block begins a new file: this one may end within a block.
    pub(super) fn append(&mut self, block: &[u8]) -> io::Result<()> {
        let written = self.try_append(block);
        if written.is_err() {
            self.close();
        }
        written
    }

    fn try_append(&mut self, block: &[u8]) -> io::Result<()> {
        self.check_room()?;
        let length = block.len() as u64;
        let file_bytes = (self.max_bytes / FILES).min(MAX_FILE_BYTES);
        if self.current.as_ref().is_some_and(|current| current.bytes + length > file_bytes) {
            self.close();
        }
        let mut current = match self.current.take() {
            Some(current) => current,
            None => self.begin()?,
        };
        current.file.write_all(block)?;
        current.bytes += length;
        let is_full = current.bytes * 100 >= file_bytes * FULL_PER_CENT;
        self.current = Some(current);
        if is_full {
            self.close();
        }
        if self.bytes() > self.max_bytes { self.prune() } else { Ok(()) }
    }

    fn close(&mut self) {
        if let Some(current) = self.current.take() {
            self.others += current.bytes;
        }
    }

    fn begin(&mut self) -> io::Result<Current> {
        self.prune()?;
        let name = format!("{:0TIME_DIGITS$}-{}.{EXTENSION}", self.now, self.node);
        let path = self.dir.join(name);
        // It says who asked for what.
        let mut file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&path)?;
        let header = Header {
            version: VERSION,
            started_at: self.now,
            node: self.node.clone(),
            sample: self.sample.clone(),
        };
        let header = header_bytes(&header).ok_or(io::ErrorKind::InvalidData)?;
        file.write_all(&header)?;
        Ok(Current { file, path, bytes: header.len() as u64 })
    }

    /// Removes the oldest files beyond the bounds.
    fn prune(&mut self) -> io::Result<()> {
        let own = self.current.as_ref().map(|current| current.path.clone());
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION)
                && own.as_ref() != Some(&path)
            {
                files.push((path, entry.metadata()?.len()));
            }
        }
        files.sort();
        let current = self.current.as_ref().map_or(0, |current| current.bytes);
        self.others = files.iter().map(|(_, bytes)| bytes).sum();
        for (path, bytes) in files {
            let is_old = started_at(&path)
                .is_some_and(|started| started.saturating_add(self.max_age) < self.now);
            if self.others + current <= self.max_bytes && !is_old {
                break;
            }
            std::fs::remove_file(&path)?;
            self.others -= bytes;
        }
        Ok(())
    }

    fn check_room(&self) -> io::Result<()> {
        let disk = rustix::fs::statvfs(&self.dir)?;
        let least = (disk.f_blocks * disk.f_frsize / MIN_FREE_SHARE).min(MAX_MIN_FREE_BYTES);
        if disk.f_bavail * disk.f_frsize < least {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!("less than {least} bytes of the disk are free"),
            ));
        }
        Ok(())
    }
}

/// When a file was begun, by its name.
fn started_at(path: &Path) -> Option<Nanos> {
    path.file_name()?.to_str()?.get(..TIME_DIGITS)?.parse().ok()
}
