//! Takes an HTTP/1.1 answer apart, in whatever pieces it comes. Nothing is allocated while answers fit
//! the buffer of the earlier ones.

use crate::outcome::Fault;

/// The largest answer: a batch of 1,000 decisions has less than a tenth of it.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// More headers than any server sends.
const MAX_HEADERS: usize = 64;
/// What the buffer begins with.
const FIRST_BYTES: usize = 8 << 10;

/// The answer on one connection that is being read.
#[derive(Debug)]
pub(crate) struct Response {
    buffer: Vec<u8>,
    filled: usize,
    head: Option<Head>,
    /// The body, where it came in chunks.
    joined: Vec<u8>,
    /// How far chunks are joined already.
    next_chunk: usize,
}

/// What is known from the lines before the body.
#[derive(Debug, Clone, Copy)]
struct Head {
    status: u16,
    length_bytes: usize,
    framing: Framing,
    is_last: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClosed,
}

/// A whole answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Whole<'r> {
    pub(crate) status: u16,
    pub(crate) body: &'r [u8],
    /// The server hangs up after it.
    pub(crate) is_last: bool,
}

impl Default for Response {
    fn default() -> Self {
        let buffer = vec![0; FIRST_BYTES];
        Self { buffer, filled: 0, head: None, joined: Vec::new(), next_chunk: 0 }
    }
}

impl Response {
    /// Forgets the answer before.
    pub(crate) fn clear(&mut self) {
        self.filled = 0;
        self.head = None;
        self.joined.clear();
        self.next_chunk = 0;
    }

    /// Where the next bytes go; never empty.
    pub(crate) fn room(&mut self) -> Result<&mut [u8], Fault> {
        if self.filled == self.buffer.len() {
            if self.filled >= MAX_ANSWER_BYTES {
                return Err(Fault::Protocol);
            }
            self.buffer.resize(self.filled * 2, 0);
        }
        self.buffer.get_mut(self.filled..).ok_or(Fault::Protocol)
    }

    /// So many bytes came; 0 is the end of the stream. True once the answer is whole.
    pub(crate) fn advance(&mut self, count: usize) -> Result<bool, Fault> {
        self.filled = (self.filled + count).min(self.buffer.len());
        let is_whole = match self.head {
            Some(head) => self.has_body(head, count == 0)?,
            None => match self.parse_head()? {
                Some(head) => {
                    self.head = Some(head);
                    self.next_chunk = head.length_bytes;
                    self.has_body(head, count == 0)?
                }
                None => false,
            },
        };
        if count == 0 && !is_whole { Err(Fault::Closed) } else { Ok(is_whole) }
    }

    /// The answer, once it is whole.
    pub(crate) fn whole(&self) -> Option<Whole<'_>> {
        let head = self.head?;
        let begin = head.length_bytes;
        let body = match head.framing {
            Framing::Length(length) => self.buffer.get(begin..begin + length)?,
            Framing::UntilClosed => self.buffer.get(begin..self.filled)?,
            Framing::Chunked => &self.joined,
        };
        Some(Whole { status: head.status, body, is_last: head.is_last })
    }

    fn filled(&self) -> &[u8] {
        self.buffer.get(..self.filled).unwrap_or_default()
    }

    fn parse_head(&self) -> Result<Option<Head>, Fault> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let length_bytes = match response.parse(self.filled()) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(Fault::Protocol),
        };
        let status = response.code.unwrap_or(0);
        let mut framing = None;
        let mut is_last = response.version == Some(0);
        for header in response.headers.iter() {
            if header.name.eq_ignore_ascii_case("content-length") {
                let length = std::str::from_utf8(header.value).ok();
                let length = length.and_then(|length| length.trim().parse().ok());
                let length = length.filter(|&it| it <= MAX_ANSWER_BYTES).ok_or(Fault::Protocol)?;
                framing = framing.or(Some(Framing::Length(length)));
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                framing = Some(Framing::Chunked);
            } else if header.name.eq_ignore_ascii_case("connection") {
                is_last = header.value.eq_ignore_ascii_case(b"close");
            }
        }
        let framing = match (framing, status) {
            // Not asked for, and nobody can say what comes after.
            (_, 100..=199) => return Err(Fault::Protocol),
            (_, 204 | 304) => Framing::Length(0),
            (Some(framing), _) => framing,
            (None, _) => Framing::UntilClosed,
        };
        is_last |= framing == Framing::UntilClosed;
        Ok(Some(Head { status, length_bytes, framing, is_last }))
    }

    fn has_body(&mut self, head: Head, is_closed: bool) -> Result<bool, Fault> {
        match head.framing {
            Framing::Length(length) => Ok(self.filled >= head.length_bytes + length),
            Framing::UntilClosed => Ok(is_closed),
            Framing::Chunked => self.join_chunks(),
        }
    }

    /// Joins the chunks that are whole. True after the last one.
    fn join_chunks(&mut self) -> Result<bool, Fault> {
        loop {
            let filled = self.buffer.get(..self.filled).unwrap_or_default();
            let rest = filled.get(self.next_chunk..).unwrap_or_default();
            let Some(line) = memchr::memmem::find(rest, b"\r\n") else { return Ok(false) };
            let size = chunk_size(rest.get(..line).unwrap_or_default())?;
            let begin = line + 2;
            if size == 0 {
                // Trailers end with an empty line, as no trailers do.
                let trailers = rest.get(line..).unwrap_or_default();
                return Ok(memchr::memmem::find(trailers, b"\r\n\r\n").is_some());
            }
            let Some(chunk) = rest.get(begin..begin + size) else { return Ok(false) };
            match rest.get(begin + size..begin + size + 2) {
                Some(b"\r\n") => {}
                Some(_) => return Err(Fault::Protocol),
                None => return Ok(false),
            }
            self.joined.extend_from_slice(chunk);
            self.next_chunk += begin + size + 2;
        }
    }
}

fn chunk_size(line: &[u8]) -> Result<usize, Fault> {
    let line = std::str::from_utf8(line).map_err(|_| Fault::Protocol)?;
    let size = line.split(';').next().unwrap_or_default().trim();
    let size = usize::from_str_radix(size, 16).map_err(|_| Fault::Protocol)?;
    if size > MAX_ANSWER_BYTES { Err(Fault::Protocol) } else { Ok(size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an answer that comes in pieces, and says what it was.
    fn read(pieces: &[&[u8]]) -> Result<Option<(u16, Vec<u8>, bool)>, Fault> {
        let mut response = Response::default();
        for piece in pieces {
            response.room()?[..piece.len()].copy_from_slice(piece);
            if response.advance(piece.len())? {
                let whole = response.whole().expect("it said so");
                return Ok(Some((whole.status, whole.body.to_vec(), whole.is_last)));
            }
        }
        Ok(None)
    }

    const ANSWERS: [(&[u8], u16, &[u8], bool); 5] = [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", false),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", false),
        (
            b"HTTP/1.1 503 Busy\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno",
            503,
            b"no",
            true,
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n",
            200,
            b"hello",
            false,
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx: y\r\n\r\n",
            200,
            b"hello",
            false,
        ),
    ];

    #[test]
    fn answers_are_whole_at_their_last_byte_wherever_they_are_split() {
        for (bytes, status, body, is_last) in ANSWERS {
            let expected = Ok(Some((status, body.to_vec(), is_last)));
            assert_eq!(read(&[bytes]), expected);
            for first in 1..bytes.len() {
                let (before, after) = bytes.split_at(first);
                assert_eq!(read(&[before]), Ok(None), "{first}");
                assert_eq!(read(&[before, after]), expected, "{first}");
                for second in 1..after.len() {
                    let (middle, after) = after.split_at(second);
                    assert_eq!(read(&[before, middle, after]), expected, "{first} {second}");
                }
            }
            let bytes: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(read(&bytes), expected);
        }
    }

    #[test]
    fn an_answer_without_a_length_ends_with_the_stream() {
        let mut response = Response::default();
        let bytes = b"HTTP/1.0 200 OK\r\n\r\nhello";
        response.room().expect("room")[..bytes.len()].copy_from_slice(bytes);
        assert_eq!(response.advance(bytes.len()), Ok(false));
        assert_eq!(response.advance(0), Ok(true));
        let whole = response.whole().expect("an answer");
        assert_eq!((whole.body, whole.is_last), (b"hello".as_slice(), true));
    }

    #[test]
    fn what_is_cut_off_or_no_http_is_a_fault() {
        let mut response = Response::default();
        assert_eq!(response.advance(0), Err(Fault::Closed));
        for bytes in [
            b"SSH-2.0-OpenSSH\r\n\r\n".as_slice(),
            b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
        ] {
            assert_eq!(read(&[bytes]), Err(Fault::Protocol), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn large_answers_make_the_buffer_grow_and_one_response_reads_many() {
        let mut response = Response::default();
        for length in [10, 100_000, 3] {
            response.clear();
            let mut bytes =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").into_bytes();
            bytes.resize(bytes.len() + length, b'x');
            let mut rest = bytes.as_slice();
            loop {
                let room = response.room().expect("room");
                let count = room.len().min(rest.len());
                room[..count].copy_from_slice(&rest[..count]);
                rest = &rest[count..];
                if response.advance(count).expect("no fault") {
                    break;
                }
            }
            assert_eq!(response.whole().expect("an answer").body.len(), length);
        }
    }
}
