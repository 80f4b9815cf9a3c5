//! What is looked at before anything else: a request that could mean different things to different
//! servers goes no further.

use std::borrow::Cow;

use http::header::{CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::{Method, Version};
use tollgate_policy::canonical_path;

use crate::headers::{is_clear, size_bytes};
use crate::host::Host;
use crate::respond::Fault;

/// Looks at a request's head. Afterwards its `Host` is the one that it calls, whatever the protocol.
/// Gives the host as rules compare it.
pub(crate) fn check(parts: &mut Parts, max_header_bytes: usize) -> Result<Option<String>, Fault> {
    if parts.method == Method::CONNECT {
        let is_extended = parts.extensions.get::<hyper::ext::Protocol>().is_some();
        return Err(if is_extended { Fault::ExtendedConnect } else { Fault::Connect });
    }
    if size_bytes(&parts.headers) > max_header_bytes {
        return Err(Fault::HeadersTooLarge);
    }
    // Most requests have no body and expect nothing: one look at all costs less than a search for each.
    let is_looked_into = [TRANSFER_ENCODING, CONTENT_LENGTH, EXPECT];
    if !parts.headers.keys().any(|name| is_looked_into.contains(name)) {
        return check_host(parts);
    }
    check_framing(&parts.headers)?;
    if let Some(expected) = parts.headers.get(EXPECT)
        && !expected.as_bytes().eq_ignore_ascii_case(b"100-continue")
    {
        return Err(Fault::UnknownExpectation);
    }
    check_host(parts)
}

/// The one value of a header, which is text. Of two, nobody could say which one the upstream reads.
pub(crate) fn only_text<'a>(
    headers: &'a HeaderMap,
    name: &http::HeaderName,
) -> Result<Option<&'a str>, Fault> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match (value.to_str(), values.next()) {
        (Ok(text), None) => Ok(Some(text)),
        _ => Err(Fault::BadModel),
    }
}

/// The path as it is routed and forwarded.
pub(crate) fn path(parts: &Parts) -> Result<Cow<'_, str>, Fault> {
    let path = parts.uri.path();
    // `OPTIONS *` asks about a server as a whole, and no upstream is that.
    if !path.starts_with('/') {
        return Err(Fault::BadTarget);
    }
    canonical_path(path).map_err(Fault::BadPath)
}

/// The HTTP library has refused the worst already; see [`crate::framing`] for what it hides.
fn check_framing(headers: &HeaderMap) -> Result<(), Fault> {
    if !is_clear(headers) {
        return Err(Fault::AmbiguousFraming);
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next();
    let is_number =
        length.is_none_or(|it| !it.is_empty() && it.as_bytes().iter().all(u8::is_ascii_digit));
    if !is_number || lengths.next().is_some() {
        return Err(Fault::AmbiguousFraming);
    }
    Ok(())
}

fn check_host(parts: &mut Parts) -> Result<Option<String>, Fault> {
    let mut lines = parts.headers.get_all(HOST).iter();
    let (stated, second) = (lines.next(), lines.next());
    if second.is_some() {
        return Err(Fault::BadHost);
    }
    let Some(authority) = parts.uri.authority() else {
        let Some(stated) = stated else {
            // Only HTTP/1.0 knows requests without a host.
            let may = parts.version == Version::HTTP_10;
            return if may { Ok(None) } else { Err(Fault::BadHost) };
        };
        let host = stated.to_str().ok().and_then(Host::parse).ok_or(Fault::BadHost)?;
        return Ok(Some(host.domain()));
    };
    // An authority in the request's target is the truth; in HTTP/2 the header may only repeat it.
    let host = Host::parse(authority.as_str()).ok_or(Fault::BadHost)?;
    let repeats = stated.is_none_or(|it| it.as_bytes() == authority.as_str().as_bytes());
    if !repeats && parts.version == Version::HTTP_2 {
        return Err(Fault::BadHost);
    }
    let domain = host.domain();
    let value = HeaderValue::from_str(authority.as_str()).map_err(|_| Fault::BadHost)?;
    parts.headers.insert(HOST, value);
    Ok(Some(domain))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn verdict(
        version: Version,
        uri: &str,
        lines: &[(&str, &str)],
    ) -> Result<Option<String>, Fault> {
        let mut request = Request::builder().version(version).uri(uri).method("POST");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        check(&mut request.body(()).unwrap().into_parts().0, 4096)
    }

    #[test]
    fn framing_is_read_in_one_way_only() {
        let ambiguous: [&[(&str, &str)]; 9] = [
            &[("content-length", "3"), ("transfer-encoding", "chunked")],
            &[("content-length", "3"), ("content-length", "3")],
            &[("content-length", "3"), ("content-length", "4")],
            &[("content-length", "3, 3")],
            &[("content-length", "+3")],
            &[("content-length", "")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
            &[("transfer-encoding", "identity")],
        ];
        for lines in ambiguous {
            let lines = [&[("host", "a")], lines].concat();
            let verdict = verdict(Version::HTTP_11, "/", &lines);
            assert_eq!(verdict, Err(Fault::AmbiguousFraming), "{lines:?}");
        }
        let fine: [&[(&str, &str)]; 3] =
            [&[], &[("content-length", "3")], &[("transfer-encoding", "Chunked")]];
        for lines in fine {
            let lines = [&[("host", "a")], lines].concat();
            assert!(verdict(Version::HTTP_11, "/", &lines).is_ok(), "{lines:?}");
        }
    }

    #[test]
    fn there_is_one_host() {
        use Version as V;
        let ok = |domain: &str| Ok(Some(domain.to_owned()));
        let bad = || Err(Fault::BadHost);
        assert_eq!(verdict(V::HTTP_11, "/", &[("host", "A.example:80")]), ok("a.example"));
        assert_eq!(verdict(V::HTTP_11, "/", &[]), bad());
        assert_eq!(verdict(V::HTTP_10, "/", &[]), Ok(None));
        assert_eq!(verdict(V::HTTP_11, "/", &[("host", "a"), ("host", "a")]), bad());
        assert_eq!(verdict(V::HTTP_11, "/", &[("host", "a@b")]), bad());
        assert_eq!(verdict(V::HTTP_11, "/", &[("host", "")]), bad());
        assert_eq!(verdict(V::HTTP_11, "http://b/", &[("host", "a")]), ok("b"));
        assert_eq!(verdict(V::HTTP_2, "http://b/", &[("host", "a")]), bad());
        assert_eq!(verdict(V::HTTP_2, "http://b/", &[("host", "b")]), ok("b"));
        assert_eq!(verdict(V::HTTP_2, "http://u@b/", &[]), bad());
    }

    #[test]
    fn size_expectations_and_connect() {
        let long = "x".repeat(5_000);
        let lines = [("host", "a"), ("x-long", long.as_str())];
        assert_eq!(verdict(Version::HTTP_11, "/", &lines), Err(Fault::HeadersTooLarge));
        let lines = [("host", "a"), ("expect", "200-maybe")];
        assert_eq!(verdict(Version::HTTP_11, "/", &lines), Err(Fault::UnknownExpectation));
        let request = Request::builder().method("CONNECT").uri("a:80").body(()).unwrap();
        assert_eq!(check(&mut request.into_parts().0, 4096), Err(Fault::Connect));
    }
}
