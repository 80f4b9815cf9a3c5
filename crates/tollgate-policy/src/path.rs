//! Paths in normal form, so that one resource has one name and no spelling slips past a rule.

use std::borrow::Cow;

/// The longest path that is looked at.
pub const MAX_PATH_BYTES: usize = 8 * 1024;

/// Why a path cannot be normalised. Such a request should be refused: servers differ in how they
/// read these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Longer than [`MAX_PATH_BYTES`].
    #[error("the path is longer than {MAX_PATH_BYTES} bytes")]
    TooLong,
    /// A control byte, plain or percent-encoded.
    #[error("the path holds a control character")]
    Control,
    /// A `%` that two hexadecimal digits do not follow.
    #[error("the path holds a % that is not followed by two hexadecimal digits")]
    BadEscape,
}

/// The normal form of a path: query and fragment cut off, dot segments resolved, empty segments
/// dropped, unreserved characters decoded, all others encoded the same way. `%2F` stays encoded and
/// separates nothing. A trailing slash is kept (patterns match with or without it). Borrowed where
/// nothing changes.
pub fn normalize_path(path: &str) -> Result<Cow<'_, str>, PathError> {
    if path.len() <= MAX_PATH_BYTES && is_normal(path) {
        return Ok(Cow::Borrowed(path));
    }
    let end = path.find(['?', '#']).unwrap_or(path.len());
    let path = path.get(..end).unwrap_or(path);
    if path.len() > MAX_PATH_BYTES {
        return Err(PathError::TooLong);
    }
    if is_normal(path) {
        return Ok(Cow::Borrowed(path));
    }
    let mut normal = String::with_capacity(path.len() + 1);
    let mut segment = String::new();
    let mut open = true;
    for raw in path.split('/') {
        segment.clear();
        push_segment(&mut segment, raw)?;
        open = true;
        match segment.as_str() {
            "" | "." => {}
            ".." => normal.truncate(normal.rfind('/').unwrap_or(0)),
            _ => {
                normal.push('/');
                normal.push_str(&segment);
                open = false;
            }
        }
    }
    if open {
        normal.push('/');
    }
    if normal.len() > MAX_PATH_BYTES {
        return Err(PathError::TooLong);
    }
    Ok(Cow::Owned(normal))
}

/// True only for paths that normalisation would not change. False negatives cost time, not
/// correctness: a `%` or a segment that starts with a dot takes the long way.
fn is_normal(path: &str) -> bool {
    let Some((b'/', rest)) = path.as_bytes().split_first() else { return false };
    let mut begins_segment = true;
    for byte in rest {
        match KINDS.get(usize::from(*byte)) {
            Some(Kind::Plain) => begins_segment = false,
            Some(Kind::Slash) if !begins_segment => begins_segment = true,
            Some(Kind::Dot) if !begins_segment => {}
            _ => return false,
        }
    }
    true
}

/// What a byte of a path is to one who asks whether the path is normal.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Plain,
    Slash,
    Dot,
    Other,
}

/// The kind of every byte: every request's path is looked at, byte by byte.
const KINDS: [Kind; 256] = {
    let mut kinds = [Kind::Other; 256];
    let (mut rest, mut byte) = (kinds.as_mut_slice(), 0_u8);
    while let Some((kind, others)) = rest.split_first_mut() {
        *kind = match byte {
            b'/' => Kind::Slash,
            b'.' => Kind::Dot,
            _ if is_path_byte(byte) => Kind::Plain,
            _ => Kind::Other,
        };
        (rest, byte) = (others, byte.wrapping_add(1));
    }
    kinds
};

/// Bytes that stand for themselves in a path segment.
const fn is_path_byte(byte: u8) -> bool {
    is_unreserved(byte)
        || matches!(
            byte,
            b'!' | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b','
                | b';'
                | b'='
                | b':'
                | b'@'
        )
}

const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Appends one segment in normal form.
pub(crate) fn push_segment(out: &mut String, raw: &str) -> Result<(), PathError> {
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        let (byte, escaped) = if byte == b'%' {
            let high = bytes.next().and_then(hex_value).ok_or(PathError::BadEscape)?;
            let low = bytes.next().and_then(hex_value).ok_or(PathError::BadEscape)?;
            (high << 4 | low, true)
        } else {
            (byte, false)
        };
        if byte.is_ascii_control() {
            return Err(PathError::Control);
        }
        if is_unreserved(byte) || (!escaped && is_path_byte(byte)) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(hex_digit(byte >> 4));
            out.push(hex_digit(byte & 15));
        }
    }
    Ok(())
}

const fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

const fn hex_digit(value: u8) -> char {
    (if value < 10 { b'0' + value } else { b'A' + value - 10 }) as char
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn table() {
        for (from, to) in [
            ("/a/b", "/a/b"),
            ("", "/"),
            ("a", "/a"),
            ("/", "/"),
            ("//", "/"),
            ("/a//b/", "/a/b/"),
            ("/a/./b/../c", "/a/c"),
            ("/a/..", "/"),
            ("/../../a", "/a"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/%2F../b", "/a/%2F../b"),
            ("/a%2fb", "/a%2Fb"),
            ("/%7euser/%41", "/~user/A"),
            ("/caf\u{e9}", "/caf%C3%A9"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/a b", "/a%20b"),
            ("/a\\..\\b", "/a%5C..%5Cb"),
            ("/a?x=/../", "/a"),
            ("/a#f", "/a"),
            ("/a%3Fb", "/a%3Fb"),
            ("/a/...", "/a/..."),
            ("/.well-known/x", "/.well-known/x"),
        ] {
            assert_eq!(normalize_path(from).as_deref(), Ok(to), "{from:?}");
        }
        for (path, error) in [
            ("/%", PathError::BadEscape),
            ("/%4", PathError::BadEscape),
            ("/%zz", PathError::BadEscape),
            ("/%\u{e9}", PathError::BadEscape),
            ("/%00", PathError::Control),
            ("/a\n", PathError::Control),
            ("/\u{7f}", PathError::Control),
        ] {
            assert_eq!(normalize_path(path), Err(error), "{path:?}");
        }
        assert_eq!(normalize_path(&"/a".repeat(MAX_PATH_BYTES)), Err(PathError::TooLong));
        let grows = format!("/{}", "\u{e9}".repeat(MAX_PATH_BYTES / 3));
        assert_eq!(normalize_path(&grows), Err(PathError::TooLong));
        assert!(matches!(normalize_path("/v1/chat?x"), Ok(Cow::Borrowed("/v1/chat"))));
    }

    fn check(path: &str) {
        let Ok(once) = normalize_path(path) else { return };
        assert_eq!(normalize_path(&once).as_deref(), Ok(&*once), "{path:?}");
        assert!(once.starts_with('/') && !once.contains("//"), "{path:?} -> {once:?}");
        let segments_are_plain = once.split('/').all(|segment| segment != "." && segment != "..");
        assert!(segments_are_plain, "{path:?} -> {once:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn idempotent_and_panic_free(path in any::<String>()) {
            check(&path);
        }

        #[test]
        fn idempotent_on_tricky_paths(path in "(/|\\.|%2e|%2F|%|a|\u{e9}|~|%7E|\\?|#|\\\\| ){0,24}") {
            check(&path);
        }
    }
}
