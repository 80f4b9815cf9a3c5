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
