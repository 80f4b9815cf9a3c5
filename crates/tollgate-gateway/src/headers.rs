//! Hop-by-hop hygiene: what belongs to one connection does not go on to the next.

use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH,
    CONTENT_RANGE, CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    IF_MATCH, IF_NONE_MATCH, ORIGIN, RANGE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};

use crate::forwarded::is_claim;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const TE_TOKEN: HeaderValue = HeaderValue::from_static("te");

/// Headers that only Tollgate sets.
const OWN_PREFIX: &str = "x-tollgate-";

/// Headers between a client and its own proxy; and `Proxy`, which programs mistake for a variable.
const PROXY_PREFIX: &str = "proxy-";
const PROXY: &str = "proxy";

/// Takes out of a request what is not for the upstream.
pub(crate) fn clean_request(headers: &mut HeaderMap) {
    let is_unwanted = |name: &HeaderName| {
        // The gateway meets the expectation itself, as soon as the upstream takes the body.
        let is_met = *name == EXPECT || *name == HTTP2_SETTINGS;
        let text = name.as_str();
        is_met || text.starts_with(PROXY_PREFIX) || text == PROXY || is_own(text)
    };
    if !headers.keys().any(|name| is_hop_by_hop(name) || is_unwanted(name)) {
        return;
    }
    let takes_trailers = wants_trailers(headers);
    clean(headers, is_unwanted);
    if takes_trailers {
        headers.insert(TE, TRAILERS);
    }
}

/// Removes from a request's trailers what its headers must not say, and what a trailer must not say (RFC 9110,
/// section 6.5.1): where the message ends and goes, who sends it, and how its content is read. An upstream that merges
/// trailers into headers would otherwise take them from a client unchecked.
pub(crate) fn clean_request_trailers(trailers: &mut HeaderMap) {
    clean_request(trailers);
    remove(trailers, |name| NOT_IN_TRAILERS.contains(name) || is_claim(name.as_str()));
}

/// Fields that mean something only in a head.
const NOT_IN_TRAILERS: [HeaderName; 17] = [
    ACCEPT_ENCODING,
    AUTHORIZATION,
    CACHE_CONTROL,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    COOKIE,
    HOST,
    IF_MATCH,
    IF_NONE_MATCH,
    ORIGIN,
    RANGE,
    TE,
    TRAILER,
    VIA,
    HeaderName::from_static("x-api-key"),
];

/// Whether a name is one of ours, also to programs that cannot tell `_` from `-`.
fn is_own(name: &str) -> bool {
    name.starts_with(OWN_PREFIX)
        || (name.contains('_') && name.replace('_', "-").starts_with(OWN_PREFIX))
}

/// Takes out of an answer what is not for the client.
pub(crate) fn clean_response(headers: &mut HeaderMap) {
    clean(headers, |name| name.as_str().starts_with(PROXY_PREFIX));
}

fn clean(headers: &mut HeaderMap, is_unwanted: impl Fn(&HeaderName) -> bool) {
    for name in listed(headers) {
        headers.remove(name);
    }
    remove(headers, |name| is_hop_by_hop(name) || is_unwanted(name));
}

/// Takes out all of these. One look at every header costs less than a search for each that might be there.
pub(crate) fn remove(headers: &mut HeaderMap, is_unwanted: impl Fn(&HeaderName) -> bool) {
    let unwanted: Vec<HeaderName> =
        headers.keys().filter(|name| is_unwanted(name)).cloned().collect();
    for name in unwanted {
        headers.remove(name);
    }
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    [CONNECTION, TE, TRANSFER_ENCODING, UPGRADE, KEEP_ALIVE].contains(name)
}

/// What `Connection` lists. What says where a message ends, and where it goes, cannot be listed away.
fn listed(headers: &HeaderMap) -> Vec<HeaderName> {
    let mut names = Vec::new();
    for value in headers.get_all(CONNECTION) {
        for token in value.as_bytes().split(|byte| *byte == b',') {
            let token = token.trim_ascii();
            if is_usual(token) {
                continue;
            }
            if let Ok(name) = HeaderName::from_bytes(token)
                && ![HOST, CONTENT_LENGTH, TRAILER].contains(&name)
            {
                names.push(name);
            }
        }
    }
    names
}

/// Removed anyway: no need to note them.
fn is_usual(token: &[u8]) -> bool {
    ["keep-alive", "close", "upgrade", "te"]
        .iter()
        .any(|usual| token.eq_ignore_ascii_case(usual.as_bytes()))
}

/// Whether a header's list holds a token.
pub(crate) fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers.get_all(name).iter().any(|value| {
        value
            .as_bytes()
            .split(|byte| *byte == b',')
            .any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    })
}

fn wants_trailers(headers: &HeaderMap) -> bool {
    headers.contains_key(TE) && has_token(headers, &TE, "trailers")
}

/// Makes a clean request fit for HTTP/1.1.
pub(crate) fn for_http1(headers: &mut HeaderMap) {
    // One look at all costs less than two searches.
    let (mut has_te, mut has_cookies) = (false, false);
    for name in headers.keys() {
        has_te |= *name == TE;
        has_cookies |= *name == COOKIE;
    }
    if has_te {
        headers.insert(CONNECTION, TE_TOKEN);
    }
    if has_cookies {
        join_cookies(headers);
    }
}

/// HTTP/2 may split cookies over several fields; HTTP/1.1 must not.
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (cookies.next(), cookies.next()) else { return };
    let mut joined = first.as_bytes().to_vec();
    for cookie in std::iter::once(second).chain(cookies) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(cookie.as_bytes());
    }
    if let Ok(joined) = HeaderValue::from_bytes(&joined) {
        headers.insert(COOKIE, joined);
    }
}

/// Whether headers say unambiguously where their body ends, with no transfer coding but `chunked`.
pub(crate) fn is_clear(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(encoding) = encodings.next() else { return true };
    encoding.as_bytes().eq_ignore_ascii_case(b"chunked")
        && encodings.next().is_none()
        && !headers.contains_key(CONTENT_LENGTH)
}

/// How much room headers take, counted as HTTP/1.1 writes them.
pub(crate) fn size_bytes(headers: &HeaderMap) -> usize {
    /// A colon, a space and the end of the line.
    const OVERHEAD_BYTES: usize = 4;
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + OVERHEAD_BYTES).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn what_is_hop_by_hop_goes() {
        let mut headers = map(&[
            ("connection", "keep-alive, X-Secret"),
            ("connection", "close,x-other , host, Content-Length"),
            ("x-secret", "1"),
            ("x-other", "1"),
            ("x-kept", "1"),
            ("host", "a"),
            ("content-length", "0"),
            ("keep-alive", "5"),
            ("proxy-authorization", "basic"),
            ("proxy-connection", "close"),
            ("proxy-anything", "x"),
            ("proxy", "http://evil"),
            ("te", "gzip, trailers"),
            ("trailer", "x-sum"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("http2-settings", "x"),
            ("expect", "100-continue"),
            ("x-tollgate-ticket", "forged"),
            ("authorization", "kept"),
        ]);
        clean_request(&mut headers);
        assert_eq!(
            names(&headers),
            ["authorization", "content-length", "host", "te", "trailer", "x-kept"]
        );
        assert_eq!(headers[TE], "trailers");
    }

    #[test]
    fn trailers_say_nothing_that_headers_must_not() {
        let mut trailers = map(&[
            ("x-forwarded-for", "6.6.6.6"),
            ("forwarded", "for=6.6.6.6"),
            ("x_real_ip", "6.6.6.6"),
            ("x-tollgate-ticket", "forged"),
            ("proxy-authorization", "basic"),
            ("authorization", "Bearer forged"),
            ("content-length", "7"),
            ("transfer-encoding", "chunked"),
            ("host", "evil"),
            ("cookie", "a=b"),
            ("connection", "x-listed"),
            ("x-listed", "1"),
            ("te", "trailers"),
            ("x-checksum", "kept"),
            ("grpc-status", "0"),
        ]);
        clean_request_trailers(&mut trailers);
        assert_eq!(names(&trailers), ["grpc-status", "x-checksum"]);
    }

    #[test]
    fn answers_are_cleaned_too() {
        let mut headers = map(&[
            ("connection", "x-internal"),
            ("x-internal", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-authenticate", "basic"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("te", "trailers"),
            ("trailer", "grpc-status"),
            ("content-type", "text/plain"),
        ]);
        clean_response(&mut headers);
        assert_eq!(names(&headers), ["content-type", "trailer"]);
    }

    #[test]
    fn cookies_are_one_line_in_http1() {
        let mut headers = map(&[("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3")]);
        for_http1(&mut headers);
        assert_eq!(headers.get_all(COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2; c=3"]);
    }

    #[test]
    fn sizes_are_those_on_the_wire() {
        let headers = map(&[("a", "1"), ("a", "22")]);
        assert_eq!(size_bytes(&headers), "a: 1\r\na: 22\r\n".len());
    }
}
