//! The path of a request in all the ways that servers read it.

use std::borrow::Cow;

use crate::PathError;
use crate::lenient_path::{repaired, shortened};
use crate::path::{
    Form, MAX_ENCODED_SLASHES, after_host, build, count_encoded_slashes, path_of_target, rewrite,
    slashed_paths, without_query,
};

/// The path of a request, normalised.
///
/// Most servers read `%2F` as a separator, some (GitLab, npm) as a character of a segment: `/files/a%2Fb` is a file
/// `b` in `a` to the former, and a file named `a/b` to the latter; a proxy in between may decode one and leave another.
/// How the upstream reads it cannot be known here, so each encoded slash has two readings, and rules are resolved for
/// every combination of them ([`crate::RuleSet::resolve`]). Likewise, `//host/login` is `/host/login` to most servers, and
/// a URL without a scheme, whose path is `/login`, to some (Node.js); and a backslash is a character of its segment to
/// most, and a slash to those that parse URLs as browsers do, or that run on Windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestPath<'a> {
    endpoint: Cow<'a, str>,
    /// The other readings, each once: first the one in which no encoded slash separates.
    others: Vec<String>,
}

impl<'a> RequestPath<'a> {
    /// Normalises a path as it was sent, or that of a URL. More than [`MAX_ENCODED_SLASHES`] encoded slashes are an
    /// error, and so is what is neither a path nor a URL.
    pub fn parse(target: &'a str) -> Result<Self, PathError> {
        let path = path_of_target(target).ok_or(PathError::NotAPath)?;
        Self::with_readings(path, is_hostless(target, path), rewrite, |count| {
            let is_bounded = count <= MAX_ENCODED_SLASHES;
            // All bits set is the endpoint itself.
            is_bounded.then(|| (1 << count) - 1).ok_or(PathError::TooManyEncodedSlashes)
        })
    }

    /// As [`RequestPath::parse`], for callers that cannot refuse a path: Envoy forwards a request that it gets an error
    /// for. Where there are more encoded slashes than are resolved in every combination, they separate all or none; a path
    /// that does not start with a slash is taken as if it did; bytes that no path may hold are escaped; a path that is too
    /// long is shortened so that the patterns of rules match as before.
    pub fn parse_any(target: &'a [u8]) -> Self {
        if let Ok(text) = std::str::from_utf8(target)
            && let Ok(parsed) = Self::parse_text(text)
        {
            return parsed;
        }
        let text = repaired(target);
        let parsed = RequestPath::parse_text(&text).or_else(|_| {
            let path = path_of_target(&text).unwrap_or(&text);
            let all_or_none = |count| Ok(u32::from(count > 0));
            RequestPath::with_readings(path, is_hostless(&text, path), shorten, all_or_none)
        });
        match parsed {
            Ok(parsed) => parsed.into_owned(),
            // Cannot happen: what cannot be normalised was escaped.
            Err(_) => RequestPath::from_endpoint(Cow::Owned(shortened(&text))),
        }
    }

    fn parse_text(target: &'a str) -> Result<Self, PathError> {
        let sent = path_of_target(target);
        let path = sent.unwrap_or(target);
        let mut parsed = Self::with_readings(path, is_hostless(target, path), rewrite, |count| {
            Ok(if count <= MAX_ENCODED_SLASHES { (1 << count) - 1 } else { 1 })
        })?;
        // `http:\\host\login` is a URL to servers that take backslashes for slashes.
        if sent.is_none()
            && let Ok(url) = RequestPath::parse(&target.replace('\\', "/"))
        {
            let reading = url.into_endpoint().into_owned();
            if parsed.endpoint != reading && !parsed.others.contains(&reading) {
                parsed.others.push(reading);
            }
        }
        Ok(parsed)
    }

    /// With as many readings in which some encoded slashes do not separate as `count_readings` answers to how many
    /// encoded slashes there are.
    fn with_readings(
        path: &'a str,
        may_start_with_host: bool,
        normalize: impl for<'p> Fn(&'p str, Form) -> Result<Cow<'p, str>, PathError>,
        count_readings: impl Fn(usize) -> Result<u32, PathError>,
    ) -> Result<Self, PathError> {
        let endpoint = normalize(path, Form::Split)?;
        let mut others = Vec::new();
        // What is borrowed was normal as it came: it holds no escapes, no backslashes and no empty segments.
        if matches!(endpoint, Cow::Owned(_)) {
            let mut add = |reading: Cow<'_, str>| {
                if reading != endpoint && others.iter().all(|other| *other != reading) {
                    others.push(reading.into_owned());
                }
            };
            let mut add_readings = |path: &str, slashes: usize| -> Result<(), PathError> {
                let partly_split = count_readings(slashes)?;
                let after_host = path.strip_prefix("//").and_then(after_host);
                let after_host = after_host.filter(|_| may_start_with_host);
                for path in [path].into_iter().chain(after_host) {
                    for splits in 0..partly_split {
                        add(normalize(path, Form::PartlySplit(splits))?);
                    }
                    add(normalize(path, Form::Split)?);
                }
                Ok(())
            };
            add_readings(path, count_encoded_slashes(path))?;
            for path in slashed_paths(path).into_iter().flatten() {
                // All or none of them, which bounds the number of readings.
                add_readings(&path, count_encoded_slashes(&path).min(1))?;
            }
        }
        Ok(Self { endpoint, others })
    }

    /// The same, which borrows nothing.
    fn into_owned(self) -> RequestPath<'static> {
        let endpoint = Cow::Owned(self.endpoint.into_owned());
        RequestPath { endpoint, others: self.others }
    }

    /// A path that is normal already ([`crate::normalize_path`]) and has one reading.
    pub const fn from_endpoint(endpoint: Cow<'a, str>) -> Self {
        Self { endpoint, others: Vec::new() }
    }

    /// The path with encoded slashes as separators, as [`crate::normalize_path`] returns it.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The other readings of the path: encoded slashes inside their segments, all of them first, then some.
    pub fn others(&self) -> &[String] {
        &self.others
    }

    /// [`RequestPath::endpoint`], owned by the caller.
    pub fn into_endpoint(self) -> Cow<'a, str> {
        self.endpoint
    }
}

/// The path in this form, shortened where it is too long.
fn shorten(path: &str, form: Form) -> Result<Cow<'_, str>, PathError> {
    build(without_query(path), form).map(|path| Cow::Owned(shortened(&path)))
}

/// Whether the path was sent alone, so that a host may be at its beginning.
const fn is_hostless(target: &str, path: &str) -> bool {
    target.len() == path.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A spelling that a rule does not expect must not pass it.
    #[test]
    fn the_path_of_a_url_is_matched_and_what_is_no_path_is_refused() {
        for (target, endpoint, others) in [
            ("http://x/login", "/login", &[][..]),
            ("HTTPS://u:p@[::1]:8443/%6Cogin;a?b", "/login", &[]),
            ("ws://x/a%2Flogin", "/a/login", &["/a%2Flogin"]),
            ("http://x", "/", &[]),
            ("http://x?a=/login", "/", &[]),
            ("http://x//y/login", "/y/login", &[]),
            ("", "/", &[]),
            ("//x/login", "/x/login", &["/login"]),
            ("//login", "/login", &["/"]),
            ("///login", "/login", &[]),
            ("//x/a%2Fb", "/x/a/b", &["/x/a%2Fb", "/a%2Fb", "/a/b"]),
            ("/http://x/login", "/http:/x/login", &[]),
        ] {
            let read = RequestPath::parse(target).unwrap();
            assert_eq!((read.endpoint(), read.others()), (endpoint, &*strings(others)), "{target}");
            assert_eq!(RequestPath::parse_any(target.as_bytes()), read);
        }
        for target in [
            "login",
            "*",
            "\\login",
            " /login",
            "%2Flogin",
            "?/login",
            "http:/login",
            "http:login",
            "http:///login",
            "http://x\\login",
            "http://x y/login",
            "://x/login",
            "1a://x/login",
        ] {
            assert_eq!(RequestPath::parse(target), Err(PathError::NotAPath), "{target}");
        }
    }

    #[test]
    fn encoded_slashes_and_backslashes_make_further_readings() {
        for (path, endpoint, others) in [
            ("/files/a", "/files/a", &[][..]),
            ("/files/%61;x?y=%2F", "/files/a", &[]),
            ("/files/a%2fb", "/files/a/b", &["/files/a%2Fb"]),
            ("/a%2F..%2Flogin", "/login", &["/a%2F..%2Flogin", "/a/..%2Flogin", "/a%2F../login"]),
            ("/a%2Fb/../login", "/a/login", &["/login"]),
            ("/a?b\\c", "/a", &[]),
            ("/a%5cb", "/a%5Cb", &["/a/b"]),
            ("/x\\..\\login", "/x%5C..%5Clogin", &["/login"]),
            ("/\\x/login", "/%5Cx/login", &["/x/login", "/login"]),
            ("/a\\b%5Cc", "/a%5Cb%5Cc", &["/a/b%5Cc", "/a/b/c"]),
            ("/a%2Fb\\c", "/a/b%5Cc", &["/a%2Fb%5Cc", "/a%2Fb/c", "/a/b/c"]),
            (
                "/%2Flogin/a%2Fb",
                "/login/a/b",
                &["/%2Flogin/a%2Fb", "/login/a%2Fb", "/%2Flogin/a/b"],
            ),
        ] {
            let read = RequestPath::parse(path).unwrap();
            assert_eq!((read.endpoint(), read.others()), (endpoint, &*strings(others)), "{path}");
            assert_eq!(RequestPath::parse_any(path.as_bytes()), read);
        }
        assert_eq!(RequestPath::parse("/a%2F%00"), Err(PathError::Control));
        let path = RequestPath::parse("/v1/chat").unwrap();
        assert!(matches!(path.into_endpoint(), Cow::Borrowed("/v1/chat")));
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn readings_are_bounded() {
        let most = format!("/a{}", "%2Fa".repeat(MAX_ENCODED_SLASHES));
        let read = RequestPath::parse(&most).unwrap();
        assert_eq!(read.others().len(), (1 << MAX_ENCODED_SLASHES) - 1);
        let more = format!("{most}%2Fa");
        assert_eq!(RequestPath::parse(&more), Err(PathError::TooManyEncodedSlashes));
        assert_eq!(RequestPath::parse_any(more.as_bytes()).others(), [more.as_str()]);
    }
}
