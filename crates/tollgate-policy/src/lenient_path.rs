//! Paths that cannot be refused, in a form that can be normalised.

use crate::MAX_PATTERN_SEGMENTS;
use crate::path::{MAX_PATH_BYTES, hex_digit, hex_value};

/// The most segments that are kept of a path that is too long: one more than a pattern can have, so that patterns
/// match or miss as they would the whole path.
const MAX_SEGMENTS: usize = MAX_PATTERN_SEGMENTS + 1;

/// The most bytes that are kept of each of them.
const MAX_SEGMENT_BYTES: usize = MAX_PATH_BYTES / MAX_SEGMENTS - 1;

/// The path in front of the query, with every byte escaped that a path may not hold.
pub(crate) fn repaired(target: &[u8]) -> String {
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(target.len());
    let mut rest = target.get(..end).unwrap_or(target);
    let mut path = String::with_capacity(rest.len() + 16);
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let escaped = after.split_first_chunk::<2>().and_then(|([high, low], after)| {
            Some((hex_value(*high)? << 4 | hex_value(*low)?, after))
        });
        match (byte, escaped) {
            (b'%', Some((escaped, after))) if !escaped.is_ascii_control() => {
                push_escape(&mut path, escaped);
                rest = after;
            }
            // A percent sign that escapes nothing, or what must not be escaped, stands for itself.
            (b'%', _) => push_escape(&mut path, b'%'),
            (byte, _) if byte.is_ascii_control() => {
                push_escape(&mut path, b'%');
                push_digits(&mut path, byte);
            }
            (byte, _) if byte.is_ascii() => path.push(char::from(byte)),
            (byte, _) => push_escape(&mut path, byte),
        }
    }
    path
}

/// The beginning of a normal path that is too long, or all of it.
pub(crate) fn shortened(path: &str) -> String {
    if path.len() <= MAX_PATH_BYTES {
        return path.to_owned();
    }
    let mut short = String::with_capacity(MAX_PATH_BYTES);
    for segment in path.split('/').skip(1).take(MAX_SEGMENTS) {
        short.push('/');
        short.extend(segment.chars().take(MAX_SEGMENT_BYTES));
    }
    short
}

fn push_escape(path: &mut String, byte: u8) {
    path.push('%');
    push_digits(path, byte);
}

fn push_digits(path: &mut String, byte: u8) {
    path.extend([hex_digit(byte >> 4), hex_digit(byte & 15)]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::RequestPath;

    fn endpoint(target: &[u8]) -> String {
        RequestPath::parse_any(target).into_endpoint().into_owned()
    }

    /// An error would let the request past its limits, and another path past the rule of this one.
    #[test]
    fn paths_that_cannot_be_refused_match_what_servers_make_of_them() {
        let (dots, id) = ("/.".repeat(MAX_PATH_BYTES), "i".repeat(MAX_PATH_BYTES));
        for (target, path) in [
            (&b"/login?\xff"[..], "/login"),
            (b"/login#%zz\x01", "/login"),
            (b"/%zz/../login", "/login"),
            (b"/%00/..%2flogin", "/login"),
            (b"/\x01/../login", "/login"),
            (b"/\xff/..;\xfe/%6cogin", "/login"),
            (b"/caf\xe9", "/caf%E9"),
            (b"/a%", "/a%25"),
            (b"/a%0d%zz", "/a%250d%25zz"),
            (format!("{dots}/login").as_bytes(), "/login"),
            (format!("/{dots}%zz/../login\u{1}").as_bytes(), "/login%2501"),
            (
                format!("/a/{id}/login").as_bytes(),
                &format!("/a/{}/login", &id[..MAX_SEGMENT_BYTES]),
            ),
        ] {
            assert_eq!(endpoint(target), path, "{:?}", String::from_utf8_lossy(target));
        }
        let long = endpoint("/a".repeat(MAX_PATH_BYTES).as_bytes());
        assert_eq!(long, "/a".repeat(MAX_SEGMENTS));
        let slashed = RequestPath::parse_any(b"/\xff\\..\\login");
        assert!(slashed.others().contains(&"/login".to_owned()), "{slashed:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

        #[test]
        fn every_target_is_a_path_within_its_bound(target: Vec<u8>, copies in 1..400_usize) {
            for target in [target.clone(), [b"/", &*target.repeat(copies)].concat()] {
                let path = RequestPath::parse_any(&target);
                for reading in [path.endpoint()].into_iter().chain(path.others().iter().map(String::as_str)) {
                    prop_assert!(reading.starts_with('/') && reading.len() <= MAX_PATH_BYTES);
                }
                prop_assert!(path.others().len() < 100);
            }
        }
    }
}
