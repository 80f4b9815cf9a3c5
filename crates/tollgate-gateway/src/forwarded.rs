//! What upstreams learn about the client: `X-Forwarded-*` and `Forwarded` (RFC 7239).

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use http::header::{FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, VIA};

use tollgate_tower::identity::{is_well_formed_forwarded, push_address};

use crate::headers::remove;
use crate::options::ForwardedOptions;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const HTTP: HeaderValue = HeaderValue::from_static("http");
const HTTPS: HeaderValue = HeaderValue::from_static("https");

/// Whether a header is what a client may say about itself only through a proxy that is trusted. Programs that read
/// headers as variables cannot tell `_` from `-`.
pub(crate) fn is_claim(name: &str) -> bool {
    let is_claim = |name: &str| {
        name.starts_with("x-forwarded-")
            || matches!(
                name,
                "forwarded"
                    | "x-real-ip"
                    | "true-client-ip"
                    | "x-client-ip"
                    | "x-cluster-client-ip"
            )
    };
    is_claim(name) || (name.contains('_') && is_claim(&name.replace('_', "-")))
}

/// Where a request came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Came {
    pub(crate) peer: SocketAddr,
    pub(crate) is_tls: bool,
    /// Whether what came with it about earlier hops is kept.
    pub(crate) is_trusted: bool,
}

/// Writes down where a request came from. The host is the request's own, already checked.
pub(crate) fn describe(headers: &mut HeaderMap, came: Came, options: ForwardedOptions) {
    if !came.is_trusted {
        remove(headers, |name| is_claim(name.as_str()));
    }
    // Of a stranger nothing is left that could be continued or must not be overwritten.
    let is_known = |headers: &HeaderMap, name| came.is_trusted && headers.contains_key(name);
    let put = |headers: &mut HeaderMap, name, text: String| {
        if came.is_trusted {
            append(headers, name, text);
        } else if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(text)) {
            headers.insert(name, value);
        }
    };
    let peer = came.peer.ip().to_canonical();
    let mut address = String::with_capacity(40);
    push_address(&mut address, peer);
    let host = headers.get(HOST).cloned();
    headers.reserve(4);
    if options.forwarded {
        let host = host.as_ref().and_then(|host| host.to_str().ok());
        let proto = if came.is_tls { "https" } else { "http" };
        // A quote that somebody left open would swallow our element in the eyes of the upstream.
        let is_broken = |line: &HeaderValue| !is_well_formed_forwarded(line.as_bytes());
        if headers.get_all(FORWARDED).iter().any(is_broken) {
            headers.remove(FORWARDED);
        }
        put(headers, FORWARDED, element((peer, &address), host, proto));
    }
    if options.x_forwarded_for {
        put(headers, X_FORWARDED_FOR, address);
    }
    if options.x_forwarded_host
        && !is_known(headers, X_FORWARDED_HOST)
        && let Some(host) = host
    {
        headers.insert(X_FORWARDED_HOST, host);
    }
    if options.x_forwarded_proto && !is_known(headers, X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, if came.is_tls { HTTPS } else { HTTP });
    }
}

/// Adds ourselves to `Via`.
pub(crate) fn describe_via(headers: &mut HeaderMap, name: &str, version: http::Version) {
    let version = match version {
        http::Version::HTTP_2 => "2.0",
        http::Version::HTTP_10 => "1.0",
        _ => "1.1",
    };
    append(headers, VIA, [version, " ", name].concat());
}

/// Whether a request has come through the gateway of this name.
pub(crate) fn came_from(headers: &HeaderMap, name: &str) -> bool {
    let hops = headers.get_all(VIA).iter().filter_map(|value| value.to_str().ok());
    hops.flat_map(|value| value.split(',')).any(|hop| hop.trim().ends_with(name))
}

/// One hop: `for=192.0.2.1;host=example.com;proto=https`.
fn element((peer, address): (IpAddr, &str), host: Option<&str>, proto: &str) -> String {
    let mut element = String::with_capacity(96);
    element.push_str(if peer.is_ipv4() { "for=" } else { "for=\"[" });
    element.push_str(address);
    if peer.is_ipv6() {
        element.push_str("]\"");
    }
    if let Some(host) = host {
        element.push_str(";host=");
        push_value(&mut element, host);
    }
    element.push_str(";proto=");
    element.push_str(proto);
    element
}

/// A token as it is, anything else quoted.
fn push_value(out: &mut String, value: &str) {
    if !value.is_empty() && value.bytes().all(is_token_byte) {
        out.push_str(value);
        return;
    }
    out.push('"');
    for character in value.chars() {
        if matches!(character, '"' | '\\') {
            out.push('\\');
        }
        // Never a control character: a line must not end here.
        out.push(if matches!(character, ' '..='~') { character } else { '?' });
    }
    out.push('"');
}

const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// Adds to the end of a list, which becomes one line.
fn append(headers: &mut HeaderMap, name: HeaderName, text: String) {
    let mut lines = headers.get_all(&name).iter();
    let value = match lines.next() {
        None => HeaderValue::from_maybe_shared(Bytes::from(text)),
        Some(first) => {
            let mut all = first.as_bytes().to_vec();
            for line in lines {
                all.extend_from_slice(b", ");
                all.extend_from_slice(line.as_bytes());
            }
            all.extend_from_slice(b", ");
            all.extend_from_slice(text.as_bytes());
            HeaderValue::from_bytes(&all)
        }
    };
    if let Ok(value) = value {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn describe_from(
        peer: &str,
        is_tls: bool,
        is_trusted: bool,
        lines: &[(&str, &str)],
    ) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        let came = Came { peer: SocketAddr::new(peer.parse().unwrap(), 4711), is_tls, is_trusted };
        describe(&mut headers, came, ForwardedOptions::default());
        headers
    }

    #[test]
    fn a_client_is_described() {
        let headers = describe_from("192.0.2.7", true, false, &[("host", "example.com:8443")]);
        assert_eq!(headers["forwarded"], "for=192.0.2.7;host=\"example.com:8443\";proto=https");
        assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
        assert_eq!(headers["x-forwarded-host"], "example.com:8443");
        assert_eq!(headers["x-forwarded-proto"], "https");
        let headers = describe_from("2001:db8::7", false, false, &[("host", "example.com")]);
        assert_eq!(headers["forwarded"], "for=\"[2001:db8::7]\";host=example.com;proto=http");
        assert_eq!(headers["x-forwarded-for"], "2001:db8::7");
        let headers = describe_from("::ffff:192.0.2.7", false, false, &[]);
        assert_eq!(headers["forwarded"], "for=192.0.2.7;proto=http");
        assert!(!headers.contains_key("x-forwarded-host"));
    }

    const CHAIN: [(&str, &str); 7] = [
        ("host", "inner"),
        ("x-forwarded-for", "203.0.113.1"),
        ("x-forwarded-for", "203.0.113.2, 203.0.113.3"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "outer"),
        ("forwarded", "for=203.0.113.1"),
        ("x-real-ip", "203.0.113.1"),
    ];

    #[test]
    fn claims_of_strangers_are_replaced() {
        let headers = describe_from("192.0.2.7", false, false, &CHAIN);
        assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["x-forwarded-host"], "inner");
        assert_eq!(headers["forwarded"], "for=192.0.2.7;host=inner;proto=http");
        assert!(!headers.contains_key("x-real-ip"));
    }

    #[test]
    fn chains_of_trusted_proxies_are_continued() {
        let headers = describe_from("192.0.2.7", false, true, &CHAIN);
        assert_eq!(headers["x-forwarded-for"], "203.0.113.1, 203.0.113.2, 203.0.113.3, 192.0.2.7");
        assert_eq!(headers.get_all("x-forwarded-for").iter().count(), 1);
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(headers["x-forwarded-host"], "outer");
        assert_eq!(headers["forwarded"], "for=203.0.113.1, for=192.0.2.7;host=inner;proto=http");
        assert_eq!(headers["x-real-ip"], "203.0.113.1");
    }

    /// A quote that is left open must not swallow what the gateway appends.
    #[test]
    fn a_malformed_chain_is_not_continued() {
        let lines = [("host", "inner"), ("forwarded", "for=203.0.113.1;host=\"a")];
        let headers = describe_from("192.0.2.7", false, true, &lines);
        assert_eq!(headers["forwarded"], "for=192.0.2.7;host=inner;proto=http");
    }

    #[test]
    fn via_names_the_version() {
        let mut headers = HeaderMap::new();
        describe_via(&mut headers, "tollgate", http::Version::HTTP_2);
        describe_via(&mut headers, "tollgate", http::Version::HTTP_11);
        assert_eq!(headers[VIA], "2.0 tollgate, 1.1 tollgate");
    }

    /// Undoes the quoting, and says what is left of the text after the value.
    fn unquote(text: &str) -> (String, &str) {
        let Some(quoted) = text.strip_prefix('"') else {
            let end = text.find(';').unwrap_or(text.len());
            return (text[..end].to_owned(), &text[end..]);
        };
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        while let Some((index, character)) = characters.next() {
            match character {
                '"' => return (value, &quoted[index + 1..]),
                '\\' => value.push(characters.next().unwrap().1),
                _ => value.push(character),
            }
        }
        panic!("not closed: {text}");
    }

    proptest! {
        #[test]
        fn no_host_can_inject_anything(host in "\\PC{0,40}|[\\x00-\\x7f]{0,40}") {
            let peer = (IpAddr::from([192, 0, 2, 1]), "192.0.2.1");
            let element = element(peer, Some(&host), "http");
            prop_assert!(element.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            let rest = element.strip_prefix("for=192.0.2.1;host=").unwrap();
            let (value, rest) = unquote(rest);
            let printable: String =
                host.chars().map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect();
            prop_assert_eq!(value, printable);
            prop_assert_eq!(rest, ";proto=http");
        }
    }
}
