//! Paths in normal form, so that one resource has one name and no spelling slips past a rule.

use std::borrow::Cow;

/// The longest path that is looked at.
pub const MAX_PATH_BYTES: usize = 8 * 1024;

/// The most encoded slashes of a path: each doubles the ways in which servers can read it.
pub const MAX_ENCODED_SLASHES: usize = 5;

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
    /// More than [`MAX_ENCODED_SLASHES`].
    #[error("the path holds more than {MAX_ENCODED_SLASHES} encoded slashes (%2F)")]
    TooManyEncodedSlashes,
    /// Neither a path nor a URL with a host.
    #[error("the path must start with / or be a URL such as https://host/path")]
    NotAPath,
}

/// The form of a path that rules are matched with and that counters are keyed by: as [`canonical_path`], and in
/// addition without path parameters (`/login;x=1` is `/login`) and with encoded slashes as separators
/// (`/api%2Flogin` is `/api/login`). A backslash, plain or encoded, is a character of its segment.
///
/// Some servers keep an encoded slash inside its segment, and some read a backslash as a slash. Rules must hold there,
/// too, so set the endpoint of a request with [`crate::RequestPath`], which has all readings.
pub fn normalize_path(path: &str) -> Result<Cow<'_, str>, PathError> {
    rewrite(path, Form::Split)
}

/// How many encoded slashes the path holds in front of its query.
pub(crate) fn count_encoded_slashes(path: &str) -> usize {
    let (mut rest, mut count) = (without_query(path), 0);
    while let Some(place) = find_escape(rest, ENCODED_SLASH) {
        rest = rest.get(place + ESCAPE_BYTES..).unwrap_or_default();
        count += 1;
    }
    count
}

/// The form of a path that is sent to an upstream: query and fragment cut off, dot segments resolved, empty segments
/// dropped, unreserved characters decoded, all others encoded the same way. `%2F` stays encoded and separates
/// nothing; path parameters stay. A trailing slash is kept (patterns match with or without it). Borrowed where
/// nothing changes.
pub fn canonical_path(path: &str) -> Result<Cow<'_, str>, PathError> {
    rewrite(path, Form::Forwarding)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Without parameters; encoded slashes separate.
    Split,
    /// Without parameters; those encoded slashes separate whose bit is set, the first one's being the lowest. The
    /// others stay in their segment, and dot segments are resolved without splitting there.
    PartlySplit(u32),
    /// As an upstream gets it.
    Forwarding,
}

/// The path of a request target: the target itself, or what follows the host of a URL (`http://host/login`). None for
/// anything else: it would be read as another path than the one that the service reads.
pub(crate) fn path_of_target(target: &str) -> Option<&str> {
    if target.is_empty() || target.starts_with('/') {
        return Some(target);
    }
    let (scheme, rest) = target.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    if is_scheme { after_host(rest) } else { None }
}

/// What follows the host in front of it. Servers disagree about a backslash and about no host at all.
pub(crate) fn after_host(text: &str) -> Option<&str> {
    let (host, path) = text.split_at(text.find(['/', '?', '#']).unwrap_or(text.len()));
    let is_host = host.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    (!host.is_empty() && is_host).then_some(path)
}

const ENCODED_SLASH: &str = "%2F";

const ENCODED_BACKSLASH: &str = "%5C";

/// The path as servers read it that take a backslash for a slash: the plain ones (browsers' rules for URLs), and the
/// encoded ones, too (they decode first). Each only where it differs.
pub(crate) fn slashed_paths(path: &str) -> [Option<String>; 2] {
    let path = without_query(path);
    let plain = path.contains('\\').then(|| path.replace('\\', "/"));
    let is_encoded = find_escape(path, ENCODED_BACKSLASH).is_some();
    let all = is_encoded.then(|| {
        let slashed = path.replace('\\', "/");
        slashed.replace(ENCODED_BACKSLASH, "/").replace("%5c", "/")
    });
    [plain, all]
}

pub(crate) fn without_query(path: &str) -> &str {
    let end = path.find(['?', '#']).unwrap_or(path.len());
    path.get(..end).unwrap_or(path)
}

pub(crate) fn rewrite(path: &str, form: Form) -> Result<Cow<'_, str>, PathError> {
    if path.len() <= MAX_PATH_BYTES && is_normal(path, form) {
        return Ok(Cow::Borrowed(path));
    }
    let path = without_query(path);
    if path.len() > MAX_PATH_BYTES {
        return Err(PathError::TooLong);
    }
    if is_normal(path, form) {
        return Ok(Cow::Borrowed(path));
    }
    let normal = build(path, form)?;
    if normal.len() > MAX_PATH_BYTES {
        return Err(PathError::TooLong);
    }
    Ok(Cow::Owned(normal))
}

/// A path without its query in this form, however long it is.
pub(crate) fn build(path: &str, form: Form) -> Result<String, PathError> {
    let mut normal = NormalPath::new(path.len() + 1);
    let mut splits = match form {
        Form::Split => Splits::All,
        Form::PartlySplit(splits) => Splits::Some(splits),
        Form::Forwarding => {
            path.split('/').try_for_each(|raw| normal.push(raw, raw))?;
            return Ok(normal.finish());
        }
    };
    for raw in path.split('/') {
        let (mut rest, mut looked_at) = (raw, 0);
        while let Some(place) =
            find_escape(rest.get(looked_at..).unwrap_or_default(), ENCODED_SLASH)
        {
            let place = looked_at + place;
            if splits.next() {
                let (segment, after) = rest.split_at(place);
                normal.push(without_parameters(segment), segment)?;
                (rest, looked_at) = (after.get(ESCAPE_BYTES..).unwrap_or_default(), 0);
            } else {
                looked_at = place + ESCAPE_BYTES;
            }
        }
        normal.push(without_parameters(rest), rest)?;
    }
    Ok(normal.finish())
}

/// Which encoded slashes separate, one after the other.
enum Splits {
    All,
    /// The lowest bit is the next one's.
    Some(u32),
}

impl Splits {
    fn next(&mut self) -> bool {
        match self {
            Self::All => true,
            Self::Some(bits) => {
                let is_set = *bits & 1 == 1;
                *bits >>= 1;
                is_set
            }
        }
    }
}

/// A path as it grows by segments.
struct NormalPath {
    path: String,
    segment: String,
    /// Whether it ends with a slash if nothing follows.
    is_open: bool,
}

impl NormalPath {
    fn new(capacity: usize) -> Self {
        Self { path: String::with_capacity(capacity), segment: String::new(), is_open: true }
    }

    /// Appends a segment. `whole` is the segment with its parameters, which must be well formed, too.
    fn push(&mut self, raw: &str, whole: &str) -> Result<(), PathError> {
        if raw.len() < whole.len() {
            self.segment.clear();
            push_segment(&mut self.segment, whole)?;
        }
        self.segment.clear();
        push_segment(&mut self.segment, raw)?;
        self.is_open = true;
        match self.segment.as_str() {
            "" | "." => {}
            ".." => self.path.truncate(self.path.rfind('/').unwrap_or(0)),
            segment => {
                self.path.push('/');
                self.path.push_str(segment);
                self.is_open = false;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> String {
        if self.is_open {
            self.path.push('/');
        }
        self.path
    }
}

/// A percent sign and two digits.
const ESCAPE_BYTES: usize = 3;

/// A segment up to its first path parameter, which starts at a semicolon, plain or encoded.
pub(crate) fn without_parameters(segment: &str) -> &str {
    let plain = segment.find(';').unwrap_or(segment.len());
    let encoded = find_escape(segment, "%3B").unwrap_or(segment.len());
    segment.get(..plain.min(encoded)).unwrap_or(segment)
}

/// Where an escape stands, its digits in either case.
pub(crate) fn find_escape(text: &str, escape: &str) -> Option<usize> {
    text.as_bytes()
        .windows(ESCAPE_BYTES)
        .position(|window| window.eq_ignore_ascii_case(escape.as_bytes()))
}

/// True only for paths that normalisation would not change. False negatives cost time, not
/// correctness: a `%` or a segment that starts with a dot takes the long way.
fn is_normal(path: &str, form: Form) -> bool {
    let Some((b'/', rest)) = path.as_bytes().split_first() else { return false };
    let mut begins_segment = true;
    for byte in rest {
        match KINDS.get(usize::from(*byte)) {
            Some(Kind::Plain) => begins_segment = false,
            Some(Kind::Slash) if !begins_segment => begins_segment = true,
            Some(Kind::Dot) if !begins_segment => {}
            Some(Kind::Semicolon) if form == Form::Forwarding => begins_segment = false,
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
    Semicolon,
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
            b';' => Kind::Semicolon,
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

pub(crate) const fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

pub(crate) const fn hex_digit(value: u8) -> char {
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
            ("/a/%2F../b", "/b"),
            ("/a%2fb", "/a/b"),
            ("/%2Flogin", "/login"),
            ("/login%2f", "/login/"),
            ("/x%2F..%2Flogin", "/login"),
            ("/login;x=1", "/login"),
            ("/login;", "/login"),
            ("/login%3Bx", "/login"),
            ("/a;b/..;c/login;d=%2F", "/login/"),
            ("/a;%2F..%2Flogin", "/login"),
            ("/login;x%2Fmore", "/login/more"),
            ("/;x/login", "/login"),
            ("/login/;x", "/login/"),
            ("/a%252Fb", "/a%252Fb"),
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
            ("/a;%00", PathError::Control),
            ("/a;%4", PathError::BadEscape),
            ("/a%2F%00", PathError::Control),
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

    #[test]
    fn what_is_forwarded_keeps_parameters_and_encoded_slashes() {
        for (from, to) in [
            ("/login;x=1", "/login;x=1"),
            ("/a%2fb", "/a%2Fb"),
            ("/a/%2F../b", "/a/%2F../b"),
            ("/a/../login;x?q", "/login;x"),
        ] {
            assert_eq!(canonical_path(from).as_deref(), Ok(to), "{from:?}");
        }
        assert!(matches!(canonical_path("/a;b=1/c"), Ok(Cow::Borrowed("/a;b=1/c"))));
    }

    #[test]
    fn an_unsplit_path_keeps_encoded_slashes_in_their_segment() {
        for (from, to) in [
            ("/files/a%2fb", "/files/a%2Fb"),
            ("/a%2F..%2Flogin", "/a%2F..%2Flogin"),
            ("/a%2Fb/../login", "/login"),
            ("/a%2Fb/..;x/login;y%2Fz", "/login"),
            ("/a%5C..%5Cb", "/a%5C..%5Cb"),
            ("/a%2F%2e%2E/b?x=%2F", "/a%2F../b"),
        ] {
            assert_eq!(rewrite(from, Form::PartlySplit(0)).as_deref(), Ok(to), "{from:?}");
        }
        assert_eq!(count_encoded_slashes("/%2fa%2Fb/%2F%2f?b=%2F"), 4);
        assert_eq!(rewrite("/a;%2F%4", Form::PartlySplit(0)), Err(PathError::BadEscape));
    }

    #[test]
    fn each_encoded_slash_may_separate_by_itself() {
        let path = "/%2Flogin/a%2Fb";
        for (splits, read) in
            [(0, "/%2Flogin/a%2Fb"), (1, "/login/a%2Fb"), (2, "/%2Flogin/a/b"), (3, "/login/a/b")]
        {
            let form = Form::PartlySplit(splits);
            assert_eq!(rewrite(path, form).as_deref(), Ok(read), "{splits}");
        }
        let third = Form::PartlySplit(0b100);
        assert_eq!(rewrite("/x%2Fy;p%2Fq%2F../z", third).as_deref(), Ok("/z"));
    }

    fn check(path: &str) {
        for form in [Form::Split, Form::PartlySplit(0), Form::PartlySplit(2), Form::Forwarding] {
            let Ok(once) = rewrite(path, form) else { continue };
            // Which encoded slashes of a result separate is another question.
            let again = if form == Form::PartlySplit(2) { Form::PartlySplit(0) } else { form };
            assert_eq!(rewrite(&once, again).as_deref(), Ok(&*once), "{path:?}");
            assert!(once.starts_with('/') && !once.contains("//"), "{path:?} -> {once:?}");
            let is_plain = once.split('/').all(|segment| segment != "." && segment != "..");
            assert!(is_plain, "{path:?} -> {once:?}");
        }
        if let Ok(matched) = normalize_path(path) {
            assert!(!matched.contains(';') && !matched.contains("%2F") && !matched.contains("%3B"));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..Default::default() })]

        #[test]
        fn idempotent_and_panic_free(path in any::<String>()) {
            check(&path);
        }

        #[test]
        fn idempotent_on_tricky_paths(path in "(/|\\.|%2e|%2F|;|%3b|%|a|\u{e9}|~|%7E|\\?|#|\\\\| ){0,24}") {
            check(&path);
        }
    }
}
