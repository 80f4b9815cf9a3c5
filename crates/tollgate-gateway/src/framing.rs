//! Watches what a client sends over HTTP/1.1 for requests that state the length of their body twice.
//!
//! A request with both `Content-Length` and `Transfer-Encoding` is how requests are smuggled past
//! proxies. The HTTP library takes the first out before anybody sees the request, so it is looked for
//! here, in the bytes on their way in. Nothing is held back or changed: once such a head has been
//! seen, the connection is marked, and whatever comes over it is refused.
//!
//! The watch finds the ends of bodies, so that it reads heads only. Where it cannot make sense of
//! what it sees it stops looking; the library then refuses that too, or reads it in the one safe way.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The longest line that is looked at in full; of a longer one, the beginning.
const MAX_LINE_BYTES: usize = 256;

/// What an HTTP/2 connection begins with.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0";

/// Whether a connection has been misused.
#[derive(Debug, Default)]
pub struct FramingWatch {
    is_ambiguous: AtomicBool,
}

impl FramingWatch {
    /// Whether a request has come over this connection whose end can be read in two ways.
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// The lines of a head.
    Head,
    /// So many bytes of a body, or of a chunk.
    Bytes { left: u64, of_chunk: bool },
    /// The line with a chunk's size.
    ChunkSize,
    /// The empty line after a chunk.
    ChunkEnd,
    /// Lines after the last chunk.
    Trailers,
    /// Nothing any more.
    Off,
}

/// Follows the requests of one connection.
#[derive(Debug)]
struct Scanner {
    reading: Reading,
    /// The beginning of the line so far.
    line: Vec<u8>,
    is_first_line: bool,
    length: Option<u64>,
    is_chunked: bool,
}

impl Scanner {
    const fn new() -> Self {
        Self {
            reading: Reading::Head,
            line: Vec::new(),
            is_first_line: true,
            length: None,
            is_chunked: false,
        }
    }

    /// Looks at what has come in. True if a head states its length twice.
    fn look(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match self.reading {
                Reading::Off => return false,
                Reading::Bytes { left, of_chunk } => {
                    let here = left.min(bytes.len() as u64);
                    // No more than there are bytes, which fits.
                    bytes = bytes.get(here as usize..).unwrap_or_default();
                    self.reading = match (left - here, of_chunk) {
                        (0, true) => Reading::ChunkEnd,
                        (0, false) => Reading::Head,
                        (left, of_chunk) => Reading::Bytes { left, of_chunk },
                    };
                }
                _ => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let (part, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
                    let room = MAX_LINE_BYTES.saturating_sub(self.line.len());
                    if end.is_none() {
                        self.line.extend(part.iter().take(room));
                        return false;
                    }
                    bytes = rest.get(1..).unwrap_or_default();
                    // Most lines come in one piece, and need not be copied.
                    let is_twice = if self.line.is_empty() {
                        self.line_ended(part)
                    } else {
                        self.line.extend(part.iter().take(room));
                        let line = std::mem::take(&mut self.line);
                        self.line_ended(&line)
                    };
                    if is_twice {
                        self.reading = Reading::Off;
                        return true;
                    }
                }
            }
        }
        false
    }

    fn line_ended(&mut self, line: &[u8]) -> bool {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match self.reading {
            Reading::Head => return self.head_line(line),
            Reading::ChunkSize => self.reading = chunk(line),
            Reading::ChunkEnd if line.is_empty() => self.reading = Reading::ChunkSize,
            Reading::Trailers if line.is_empty() => self.reading = Reading::Head,
            Reading::Trailers => {}
            _ => self.reading = Reading::Off,
        }
        false
    }

    fn head_line(&mut self, line: &[u8]) -> bool {
        if self.is_first_line {
            // Empty lines before a request are let pass.
            self.is_first_line = line.is_empty();
            if line == HTTP2_PREFACE {
                self.reading = Reading::Off;
            }
            return false;
        }
        if !line.is_empty() {
            self.field(line);
            return self.is_chunked && self.length.is_some();
        }
        self.reading = match (self.is_chunked, self.length) {
            (true, _) => Reading::ChunkSize,
            (false, Some(left)) if left > 0 => Reading::Bytes { left, of_chunk: false },
            _ => Reading::Head,
        };
        self.is_first_line = true;
        self.is_chunked = false;
        self.length = None;
        false
    }

    fn field(&mut self, line: &[u8]) {
        /// The shorter of the two names.
        const SHORTEST: usize = "content-length".len();
        if line.len() < SHORTEST {
            return;
        }
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (Some(name), Some(value)) = (parts.next(), parts.next()) else { return };
        let name = name.trim_ascii();
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let digits = std::str::from_utf8(value.trim_ascii()).unwrap_or_default();
            self.length = Some(digits.parse().unwrap_or(u64::MAX));
        }
    }
}

fn chunk(line: &[u8]) -> Reading {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let digits = std::str::from_utf8(digits).unwrap_or_default();
    match u64::from_str_radix(digits, 16) {
        Ok(0) => Reading::Trailers,
        Ok(left) => Reading::Bytes { left, of_chunk: true },
        Err(_) => Reading::Off,
    }
}

/// A connection whose requests are watched. For TLS, it goes around the decrypted stream.
#[derive(Debug)]
pub struct WatchedStream<S> {
    inner: S,
    scanner: Scanner,
    watch: Arc<FramingWatch>,
}

impl<S> WatchedStream<S> {
    /// Watches a connection from its beginning.
    pub fn new(inner: S) -> (Self, Arc<FramingWatch>) {
        let watch = Arc::new(FramingWatch::default());
        (Self { inner, scanner: Scanner::new(), watch: Arc::clone(&watch) }, watch)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        if self.scanner.reading != Reading::Off {
            let read = buffer.filled().get(before..).unwrap_or_default();
            if self.scanner.look(read) {
                self.watch.is_ambiguous.store(true, Ordering::Relaxed);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_ambiguous(pieces: &[&[u8]]) -> bool {
        let mut scanner = Scanner::new();
        pieces.iter().any(|piece| scanner.look(piece))
    }

    const BOTH: &str = "POST / HTTP/1.1\r\nContent-Length: 3\r\ntransfer-encoding: chunked\r\n\r\n";

    #[test]
    fn both_lengths_are_found_wherever_a_head_is() {
        for before in [
            "",
            "\r\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: y\r\n\r\n",
            "POST / HTTP/1.1\ntransfer-encoding: chunked\n\nA\n0123456789\n0\n\n",
        ] {
            let text = format!("{before}{BOTH}");
            assert!(is_ambiguous(&[text.as_bytes()]), "{before:?}");
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert!(is_ambiguous(&bytes), "{before:?} byte by byte");
        }
        let swapped = "POST / HTTP/1.1\r\nTransfer-Encoding : x\r\nCONTENT-LENGTH:3\r\n\r\n";
        assert!(is_ambiguous(&[swapped.as_bytes()]));
    }

    #[test]
    fn bodies_may_look_like_heads() {
        let length = BOTH.len();
        let sized = format!("POST / HTTP/1.1\r\ncontent-length: {length}\r\n\r\n{BOTH}");
        let chunked = format!(
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{BOTH}\r\n0\r\n\r\n"
        );
        let in_turn = "POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n\
                       POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
        let http2 = format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{BOTH}");
        for text in [&sized, &chunked, in_turn, &http2] {
            assert!(!is_ambiguous(&[text.as_bytes()]), "{text:?}");
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(3).collect();
            assert!(!is_ambiguous(&bytes), "{text:?} in pieces");
        }
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference_and_nothing_grows(
            text in "(POST / HTTP/1.1\r\n|content-length: [0-9]{1,3}\r\n|\r\n|transfer-encoding: chunked\r\n|[0-9a-f]{1,2}\r\n|x{0,400}|\n){0,20}",
            size in 1..50_usize,
        ) {
            let whole = is_ambiguous(&[text.as_bytes()]);
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            prop_assert_eq!(is_ambiguous(&pieces), whole);
            let mut scanner = Scanner::new();
            scanner.look(text.as_bytes());
            prop_assert!(scanner.line.len() <= MAX_LINE_BYTES);
        }
    }
}
