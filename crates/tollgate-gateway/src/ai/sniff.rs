//! What the first bytes of data say about the rest.

/// So many bytes are looked at: readers of PDF find its beginning anywhere in the first 1,024.
const LOOKED_AT: usize = 1_032;

/// The first bytes of documents and archives.
const BEGINNINGS: [&[u8]; 10] = [
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"PK\x07\x08",
    b"\xd0\xcf\x11\xe0",
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ",
    b"\x28\xb5\x2f\xfd",
    b"7z\xbc\xaf",
    b"Rar!",
];

/// Whether data, in base64 or as it is, begins like a PDF, an office document or an archive.
pub(super) fn is_document(data: &str, is_base64: bool) -> bool {
    let bytes = if is_base64 { beginning(data) } else { data.bytes().take(LOOKED_AT).collect() };
    BEGINNINGS.iter().any(|it| bytes.starts_with(it)) || bytes.windows(5).any(|it| it == b"%PDF-")
}

/// Tokens that models make of a second of sound, at most.
const TOKENS_PER_SECOND: u64 = 32;

/// The first bytes of recordings whose duration is not read here. Silence takes up next to nothing in most of them.
const COMPRESSED: [&[u8]; 8] =
    [b"fLaC", b"OggS", b"\x1a\x45\xdf\xa3", b"FORM", b".snd", b"RIFX", b"RF64", b"riff"];

/// What the first bytes of data say about a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recording {
    /// It has so many tokens by its duration, at most.
    Tokens(u64),
    /// Its duration is not known here.
    Unknown,
    /// It is none that is known, or one of which a second is never much shorter than usual.
    Other,
}

/// What data in base64 is as a recording.
pub(super) fn recording(data: &str) -> Recording {
    let bytes = beginning(data);
    if COMPRESSED.iter().any(|it| bytes.starts_with(it)) || bytes.get(4..8) == Some(b"ftyp") {
        return Recording::Unknown;
    }
    if !bytes.starts_with(b"RIFF") || bytes.get(8..12) != Some(b"WAVE") {
        return Recording::Other;
    }
    let length = (data.len() as u64).saturating_mul(3).div_ceil(4);
    match wav_rate(&bytes) {
        Some(rate) => {
            Recording::Tokens(length.saturating_mul(TOKENS_PER_SECOND).div_ceil(rate.max(1)))
        }
        None => Recording::Unknown,
    }
}

/// The fewest bytes of a second that the header of a WAV file states, in any of the ways in which readers compute it. None
/// where it is compressed, or its format is not stated at its beginning.
fn wav_rate(bytes: &[u8]) -> Option<u64> {
    const UNCOMPRESSED: [u64; 5] = [1, 3, 6, 7, 0xfffe];
    let number = |at: usize, length: usize| {
        let digits = bytes.get(at..at.checked_add(length)?)?;
        Some(digits.iter().rev().fold(0_u64, |number, digit| (number << 8) | u64::from(*digit)))
    };
    let mut at = 12;
    while bytes.get(at..at + 4)? != b"fmt " {
        let length = usize::try_from(number(at + 4, 4)?).ok()?;
        at = at.checked_add(8)?.checked_add(length)?.checked_add(length % 2)?;
    }
    let [kind, channels, block, bits] =
        [number(at + 8, 2)?, number(at + 10, 2)?, number(at + 20, 2)?, number(at + 22, 2)?];
    let (rate, stated) = (number(at + 12, 4)?, number(at + 16, 4)?);
    let computed = rate.saturating_mul(channels.saturating_mul(bits.div_ceil(8)));
    UNCOMPRESSED.contains(&kind).then(|| stated.min(computed).min(rate.saturating_mul(block)))
}

/// Whether data in base64 begins like a text.
pub(super) fn is_text(data: &str) -> bool {
    let bytes = beginning(data);
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text,
        // A character may be cut at the end of what is looked at.
        Err(error) if error.error_len().is_none() => {
            let (text, _) = bytes.split_at(error.valid_up_to());
            std::str::from_utf8(text).unwrap_or_default()
        }
        Err(_) => return false,
    };
    !text.contains(|it: char| it.is_control() && !matches!(it, '\t' | '\n' | '\r' | '\u{c}'))
}

/// The first bytes of data in base64, in either of its alphabets. What is no letter of it is left out, as most readers do.
fn beginning(data: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    // Of data that is mostly something else, only so much is read.
    for byte in data.bytes().take(4 * LOOKED_AT).take_while(|it| *it != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => continue,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            if bytes.len() >= LOOKED_AT {
                break;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base64(bytes: &[u8]) -> String {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut out = String::new();
        for three in bytes.chunks(3) {
            let bits = (0..3)
                .fold(0, |bits, at| (bits << 8) | usize::from(three.get(at).copied().unwrap_or(0)));
            let letters = [18, 12, 6, 0].map(|shift| char::from(LETTERS[(bits >> shift) & 63]));
            out.extend(&letters[..=three.len()]);
        }
        out
    }

    fn wav(kind: u16, rate: u32, bytes_per_second: u32, before: &[u8], length: usize) -> String {
        let mut file = b"RIFF\0\0\0\0WAVE".to_vec();
        file.extend_from_slice(before);
        file.extend_from_slice(b"fmt \x10\0\0\0");
        file.extend_from_slice(&kind.to_le_bytes());
        file.extend_from_slice(&1_u16.to_le_bytes());
        file.extend_from_slice(&rate.to_le_bytes());
        file.extend_from_slice(&bytes_per_second.to_le_bytes());
        file.extend_from_slice(&2_u16.to_le_bytes());
        file.extend_from_slice(&16_u16.to_le_bytes());
        file.resize(length, 0);
        base64(&file)
    }

    #[test]
    fn the_header_of_a_recording_says_how_long_it_is() {
        let seconds = |tokens: u64| tokens / TOKENS_PER_SECOND;
        let of = |data: &str| match recording(data) {
            Recording::Tokens(tokens) => seconds(tokens),
            other => panic!("{other:?}"),
        };
        assert_eq!(of(&wav(1, 16_000, 32_000, b"", 64_000)), 2);
        assert_eq!(of(&wav(1, 1, 2, b"", 64_000)), 32_000, "a sample a second");
        assert_eq!(of(&wav(1, 1, 32_000, b"", 64_000)), 32_000, "by the rate of its samples");
        let rounded = 63_999..=64_001;
        assert!(rounded.contains(&of(&wav(1, 16_000, 1, b"", 64_000))), "by the rate of its bytes");
        assert!(rounded.contains(&of(&wav(1, 0, 0, b"", 64_000))), "nothing is not divided by");
        let before = b"LIST\x03\0\0\0abc\0";
        assert_eq!(of(&wav(1, 1, 2, before, 64_000)), 32_000, "behind another chunk");
        let hidden = [&b"LIST\0\x08\0\0"[..], &[0; 2_048]].concat();
        for data in [
            wav(1, 16_000, 32_000, &hidden, 64_000),
            wav(85, 16_000, 32_000, b"", 64_000),
            base64(b"fLaC and silence"),
            base64(b"\0\0\0\x20ftypM4A "),
        ] {
            assert_eq!(recording(&data), Recording::Unknown);
        }
        assert_eq!(recording("AAAA"), Recording::Other);
    }
}
