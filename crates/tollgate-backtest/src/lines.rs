//! Files as lines: decompressed by their first bytes, and bounded.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

/// The longest line that is read; longer ones are counted as malformed and skipped.
pub const MAX_LINE_BYTES: usize = 64 * 1024;

/// How much of a file is read at once.
const BUFFER_BYTES: usize = 128 * 1024;

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// The lines of one file.
pub(crate) struct Lines {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
    lossy: String,
    /// The number of the line that was read last, from 1 on.
    pub(crate) number: u64,
    is_first_read: bool,
}

/// One line, without its end.
pub(crate) enum Line<'l> {
    Text(&'l str),
    TooLong,
}

impl Lines {
    /// Opens a file. The bytes that are read of it, compressed or not, are added to `progress`.
    pub(crate) fn open(path: &Path, progress: &Arc<AtomicU64>) -> io::Result<Self> {
        Self::from_reader(Counted::open(path, progress)?)
    }

    fn from_reader(mut source: impl Read + 'static) -> io::Result<Self> {
        let mut magic = Vec::with_capacity(ZSTD_MAGIC.len());
        source.by_ref().take(ZSTD_MAGIC.len() as u64).read_to_end(&mut magic)?;
        let is_gzip = magic.starts_with(GZIP_MAGIC);
        let is_zstd = magic.starts_with(ZSTD_MAGIC);
        let source = BufReader::with_capacity(BUFFER_BYTES, Cursor::new(magic).chain(source));
        let reader: Box<dyn BufRead> = if is_gzip {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(source)))
        } else if is_zstd {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, ZstdFrames::new(source)))
        } else {
            Box::new(source)
        };
        let (line, lossy) = (Vec::new(), String::new());
        Ok(Self { reader, line, lossy, number: 0, is_first_read: true })
    }

    /// The next line that is not empty. What is not UTF-8 in it is replaced.
    pub(crate) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        loop {
            self.line.clear();
            let Some(is_complete) = self.read_line()? else { return Ok(None) };
            self.number += 1;
            if !is_complete {
                return Ok(Some(Line::TooLong));
            }
            if self.line.last() == Some(&b'\r') {
                self.line.pop();
            }
            if std::mem::take(&mut self.is_first_read)
                && let Some(rest) = self.line.strip_prefix(b"\xef\xbb\xbf")
            {
                self.line = rest.to_vec();
            }
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        if let Ok(text) = std::str::from_utf8(&self.line) {
            return Ok(Some(Line::Text(text)));
        }
        self.lossy.clear();
        self.lossy.push_str(&String::from_utf8_lossy(&self.line));
        Ok(Some(Line::Text(&self.lossy)))
    }

    /// Reads one line into the buffer; `None` at the end, `false` if it was too long to keep.
    fn read_line(&mut self) -> io::Result<Option<bool>> {
        let (mut is_complete, mut is_any) = (true, false);
        loop {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if available.is_empty() {
                return Ok(is_any.then_some(is_complete));
            }
            is_any = true;
            let end = memchr::memchr(b'\n', available);
            let part = available.get(..end.unwrap_or(available.len())).unwrap_or_default();
            if self.line.len() + part.len() > MAX_LINE_BYTES {
                is_complete = false;
            } else {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                return Ok(Some(is_complete));
            }
        }
    }
}

/// A file that counts what is read of it.
pub(crate) struct Counted {
    inner: File,
    read: Arc<AtomicU64>,
}

impl Counted {
    pub(crate) fn open(path: &Path, progress: &Arc<AtomicU64>) -> io::Result<Self> {
        Ok(Self { inner: File::open(path)?, read: Arc::clone(progress) })
    }
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// The frames of a zstd file one after the other, as `cat` and `zstd -T` make them.
struct ZstdFrames<R: BufRead>(Option<Frame<R>>);

enum Frame<R: BufRead> {
    Between(R),
    Inside(Box<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>),
}

impl<R: BufRead> ZstdFrames<R> {
    const fn new(source: R) -> Self {
        Self(Some(Frame::Between(source)))
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(frame) = self.0.take() {
            match frame {
                Frame::Between(mut source) => {
                    if source.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    let decoder = StreamingDecoder::new(source).map_err(io::Error::other)?;
                    self.0 = Some(Frame::Inside(Box::new(decoder)));
                }
                Frame::Inside(mut decoder) => match decoder.read(buffer)? {
                    0 => self.0 = Some(Frame::Between(decoder.into_inner())),
                    count => {
                        self.0 = Some(Frame::Inside(decoder));
                        return Ok(count);
                    }
                },
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Vec<String> {
        let mut lines = Lines::from_reader(Cursor::new(bytes.to_vec())).unwrap();
        let mut found = Vec::new();
        while let Ok(Some(line)) = lines.next() {
            found.push(match line {
                Line::Text(text) => text.to_owned(),
                Line::TooLong => "(too long)".to_owned(),
            });
        }
        found
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut encoder, text).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        ruzstd::encoding::compress_to_vec(text, level)
    }

    #[test]
    fn compressed_files_are_the_lines_that_were_compressed() {
        let text = "\u{feff}one\r\n\n  \ntwo".as_bytes();
        assert_eq!(all(text), ["one", "two"]);
        assert_eq!(all(&gzip(text)), ["one", "two"]);
        assert_eq!(all(&zstd(text)), ["one", "two"]);
        // Rotated files that were joined, and zstd's own frames.
        assert_eq!(all(&[gzip(b"one\n"), gzip(b"two\n")].concat()), ["one", "two"]);
        assert_eq!(all(&[zstd(b"one\n"), zstd(b"two\n")].concat()), ["one", "two"]);
    }

    #[test]
    fn long_lines_and_broken_bytes_do_not_stop_the_rest() {
        let long = [vec![b'x'; MAX_LINE_BYTES + 1], b"\nshort\n\xff\n".to_vec()].concat();
        assert_eq!(all(&long), ["(too long)", "short", "\u{fffd}"]);
        let gzipped = gzip(&b"one\n".repeat(10_000));
        let cut = all(gzipped.get(..gzipped.len() / 2).unwrap());
        assert!(cut.iter().all(|line| line == "one"));
    }
}
