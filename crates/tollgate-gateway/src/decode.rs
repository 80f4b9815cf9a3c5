//! Answers that an upstream compressed although it was asked not to: decoded while they pass, in bounded memory.

use std::io::Write as _;

use bytes::{Buf as _, Bytes};
use flate2::write::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// How much is decoded at a time. It becomes at most a thousand times as much.
const STEP_BYTES: usize = 1_024;

/// The room for what a step of `deflate` brings; it is grown as needed.
const OUTPUT_BYTES: usize = 16 * 1_024;

/// What an answer is that says so in its headers.
#[derive(Debug)]
pub(crate) enum Coding {
    /// As it is.
    Plain,
    /// Compressed in a way that is known here.
    Known(Box<Decoder>),
    /// Compressed in another way, or more than once.
    Unknown,
}

impl Coding {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut codings = headers.get_all(CONTENT_ENCODING).iter();
        let Some(coding) = codings.next() else { return Self::Plain };
        let name = coding.as_bytes().trim_ascii().to_ascii_lowercase();
        let format = match name.as_slice() {
            _ if codings.next().is_some() => return Self::Unknown,
            b"" | b"identity" => return Self::Plain,
            b"gzip" | b"x-gzip" => Format::Gzip(MultiGzDecoder::new(Vec::new())),
            b"deflate" => Format::Unsaid,
            _ => return Self::Unknown,
        };
        Self::Known(Box::new(Decoder { pending: Bytes::new(), format }))
    }
}

/// Why an answer cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("it is not compressed as it says")]
    Corrupt,
    #[error("it ends before its end")]
    Truncated,
}

#[derive(Debug)]
enum Format {
    Gzip(MultiGzDecoder<Vec<u8>>),
    /// `deflate` before its first byte: some servers leave out the header that belongs to it.
    Unsaid,
    Deflate {
        decoder: Decompress,
        is_over: bool,
    },
}

/// Decodes one answer.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// What has come and is not decoded yet.
    pending: Bytes,
    format: Format,
}

impl Decoder {
    /// Takes the next piece, when [`Self::next`] has given all of the one before.
    pub(crate) fn feed(&mut self, piece: Bytes) {
        debug_assert!(self.pending.is_empty(), "one after another");
        self.pending = piece;
    }

    /// The next part of what is decoded; None when another piece is needed.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, DecodeError> {
        while !self.pending.is_empty() {
            let step = self.pending.split_to(self.pending.len().min(STEP_BYTES));
            let out = self.format.step(step)?;
            if !out.is_empty() {
                return Ok(Some(out.into()));
            }
        }
        Ok(None)
    }

    /// The answer has ended: what is left of it.
    pub(crate) fn finish(&mut self) -> Result<Bytes, DecodeError> {
        match &mut self.format {
            Format::Gzip(decoder) => {
                decoder.try_finish().map_err(|_| DecodeError::Truncated)?;
                Ok(std::mem::take(decoder.get_mut()).into())
            }
            Format::Deflate { is_over: false, .. } => Err(DecodeError::Truncated),
            Format::Unsaid | Format::Deflate { .. } => Ok(Bytes::new()),
        }
    }
}

impl Format {
    fn step(&mut self, step: Bytes) -> Result<Vec<u8>, DecodeError> {
        match self {
            Self::Gzip(decoder) => {
                let written = decoder.write_all(&step).and_then(|()| decoder.flush());
                written.map_err(|_| DecodeError::Corrupt)?;
                Ok(std::mem::take(decoder.get_mut()))
            }
            Self::Unsaid => {
                // A zlib header begins with the method, which is 8, and a window of at most 32 KiB; no raw stream that
                // a server makes begins so.
                let has_header = step.first().is_some_and(|byte| byte & 0x8f == 0x08);
                *self = Self::Deflate { decoder: Decompress::new(has_header), is_over: false };
                self.step(step)
            }
            Self::Deflate { decoder, is_over } => inflate(decoder, is_over, step),
        }
    }
}

fn inflate(
    decoder: &mut Decompress,
    is_over: &mut bool,
    mut step: Bytes,
) -> Result<Vec<u8>, DecodeError> {
    let mut out = Vec::with_capacity(OUTPUT_BYTES);
    while !*is_over {
        if out.len() == out.capacity() {
            out.reserve(OUTPUT_BYTES);
        }
        let (read, written) = (decoder.total_in(), out.len());
        let status = decoder.decompress_vec(&step, &mut out, FlushDecompress::None);
        let status = status.map_err(|_| DecodeError::Corrupt)?;
        let taken = usize::try_from(decoder.total_in() - read).unwrap_or(usize::MAX);
        step.advance(taken.min(step.len()));
        *is_over = status == Status::StreamEnd;
        if taken == 0 && out.len() == written {
            break;
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn coding(values: &[&'static str]) -> Coding {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(CONTENT_ENCODING, HeaderValue::from_static(value));
        }
        Coding::of(&headers)
    }

    fn decode(name: &'static str, bytes: &[u8], cuts: &[usize]) -> Result<Vec<u8>, DecodeError> {
        let Coding::Known(mut decoder) = coding(&[name]) else { panic!("{name} is known") };
        let (mut out, mut from) = (Vec::new(), 0);
        for cut in cuts.iter().copied().chain([bytes.len()]) {
            let cut = cut.clamp(from, bytes.len());
            decoder.feed(Bytes::copy_from_slice(&bytes[from..cut]));
            while let Some(part) = decoder.next()? {
                assert!(part.len() <= 2 << 20, "{} at once", part.len());
                out.extend_from_slice(&part);
            }
            from = cut;
        }
        out.extend_from_slice(&decoder.finish()?);
        Ok(out)
    }

    /// Compressed in each way that is known, with the name of the way.
    fn compressed(plain: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(plain).unwrap();
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(plain).unwrap();
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::default());
        raw.write_all(plain).unwrap();
        let gzip = gzip.finish().unwrap();
        let two = [gzip.clone(), gzip.clone()].concat();
        assert_eq!(decode("gzip", &two, &[3]).unwrap(), [plain, plain].concat());
        vec![
            ("gzip", gzip),
            ("deflate", zlib.finish().unwrap()),
            ("deflate", raw.finish().unwrap()),
        ]
    }

    proptest! {
        #[test]
        fn what_was_compressed_is_read_in_any_pieces(
            plain in prop::collection::vec(any::<u8>(), 1..4_000),
            mut cuts in prop::collection::vec(0_usize..4_000, 0..8),
        ) {
            cuts.sort_unstable();
            for (name, bytes) in compressed(&plain) {
                prop_assert_eq!(decode(name, &bytes, &cuts).unwrap(), plain.clone());
            }
        }
    }

    #[test]
    fn what_is_cut_or_wrong_is_found_out() {
        for (name, bytes) in compressed(&b"data: hello\n\n".repeat(50)) {
            let cut = decode(name, &bytes[..bytes.len() - 6], &[]);
            assert_eq!(cut, Err(DecodeError::Truncated), "{name}");
        }
        assert!(decode("gzip", b"{\"usage\":{}}", &[]).is_err());
        assert!(decode("deflate", &[0xff; 40], &[]).is_err());
    }

    #[test]
    fn a_bomb_comes_in_bounded_parts() {
        for (name, bytes) in compressed(&vec![0; 30 << 20]) {
            assert_eq!(decode(name, &bytes, &[]).unwrap().len(), 30 << 20, "{name}");
        }
    }

    #[test]
    fn each_piece_is_decoded_when_it_comes() {
        let Coding::Known(mut decoder) = coding(&["gzip"]) else { panic!("known") };
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        for event in ["data: one\n\n", "data: two\n\n"] {
            encoder.write_all(event.as_bytes()).unwrap();
            encoder.flush().unwrap();
            decoder.feed(std::mem::take(encoder.get_mut()).into());
            let mut out = Vec::new();
            while let Some(part) = decoder.next().unwrap() {
                out.extend_from_slice(&part);
            }
            assert_eq!(String::from_utf8(out).unwrap(), event);
        }
    }

    #[test]
    fn codings_by_name() {
        assert!(matches!(coding(&[]), Coding::Plain));
        assert!(matches!(coding(&["identity"]), Coding::Plain));
        assert!(matches!(coding(&["GZIP"]), Coding::Known(_)));
        for unknown in [&["br"][..], &["zstd"], &["gzip, br"], &["gzip", "gzip"]] {
            assert!(matches!(coding(unknown), Coding::Unknown), "{unknown:?}");
        }
    }
}
