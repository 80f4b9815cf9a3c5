//! What upstreams learn about the client: `X-Forwarded-*` and `Forwarded` (RFC 7239).

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use http::header::{FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, VIA};

use tollgate_tower::identity::{AddressSource, Identifier, is_well_formed_forwarded, push_address};

use crate::gateway::ConnectionInfo;
use crate::headers::remove;
use crate::options::ForwardedOptions;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const HTTP: HeaderValue = HeaderValue::from_static("http");
const HTTPS: HeaderValue = HeaderValue::from_static("https");

/// Headers that hold the client's address alone.
const CLIENT_ADDRESS_HEADERS: [HeaderName; 4] = [
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("true-client-ip"),
    HeaderName::from_static("x-client-ip"),
    HeaderName::from_static("x-cluster-client-ip"),
];

/// Whether a header is what a client may say about itself only through a proxy that is trusted. Programs that read
/// headers as variables cannot tell `_` from `-`.
pub(crate) fn is_claim(name: &str) -> bool {
    let is_claim = |name: &str| {
        name.starts_with("x-forwarded-")
            || name == "forwarded"
            || CLIENT_ADDRESS_HEADERS.iter().any(|header| header.as_str() == name)
    };
    is_claim(name) || (name.contains('_') && is_claim(&name.replace('_', "-")))
}

/// Where a request came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Came {
    pub(crate) peer: SocketAddr,
    /// Who sent it, by what trusted proxies say.
    pub(crate) client: IpAddr,
    pub(crate) is_tls: bool,
    /// Whether what came with it about earlier hops is kept.
    pub(crate) is_trusted: bool,
    /// The header in which trusted proxies say it. Another one may have come through them as the client wrote it.
    pub(crate) source: AddressSource,
}

impl Came {
    pub(crate) fn new(
        connection: &ConnectionInfo,
        identifier: &Identifier,
        headers: &HeaderMap,
    ) -> Self {
        let &ConnectionInfo { peer, is_tls, is_trusted, .. } = connection;
        let client = if is_trusted {
            // A request whose client cannot be read was rejected before.
            identifier.client_ip(headers, Some(peer.ip())).ok().flatten()
        } else {
            None
        };
        let client = client.unwrap_or_else(|| peer.ip().to_canonical());
        Self { peer, client, is_tls, is_trusted, source: identifier.address_source() }
    }

    /// Whether a header about earlier hops must not reach the upstream.
    fn drops(&self, name: &HeaderName) -> bool {
        is_claim(name.as_str())
            && (!self.is_trusted
                || name.as_str().contains('_')
                || (name == X_FORWARDED_FOR && self.source != AddressSource::XForwardedFor)
                || (name == FORWARDED && self.source != AddressSource::Forwarded))
    }

    /// The client, where a list of hops that starts with the peer would not name it.
    fn client_before_peer(&self, source: AddressSource) -> Option<IpAddr> {
        let is_known = self.source == source || self.client == self.peer.ip().to_canonical();
        (self.is_trusted && !is_known).then_some(self.client)
    }
}

/// Writes down where a request came from. The host is the request's own, already checked.
pub(crate) fn describe(headers: &mut HeaderMap, came: Came, options: ForwardedOptions) {
    remove(headers, |name| came.drops(name));
    for name in CLIENT_ADDRESS_HEADERS {
        if headers.contains_key(&name)
            && let Ok(client) = HeaderValue::from_str(&came.client.to_string())
        {
            headers.insert(name, client);
        }
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
        let mut hops = element((peer, &address), host, proto);
        if let Some(client) = came.client_before_peer(AddressSource::Forwarded) {
            let client = element((client, &client.to_string()), None, "");
            hops = [&client, ", ", &hops].concat();
        }
        put(headers, FORWARDED, hops);
    }
    if options.x_forwarded_for {
        if let Some(client) = came.client_before_peer(AddressSource::XForwardedFor) {
            address = format!("{client}, {address}");
        }
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

/// One hop: `for=192.0.2.1;host=example.com;proto=https`, without what is not known.
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
    if !proto.is_empty() {
        element.push_str(";proto=");
        element.push_str(proto);
    }
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
        let peer = SocketAddr::new(peer.parse().unwrap(), 4711);
        let (client, source) = if is_trusted {
            (IpAddr::from([203, 0, 113, 3]), AddressSource::XForwardedFor)
        } else {
            (peer.ip(), AddressSource::None)
        };
        describe_came(Came { peer, client, is_tls, is_trusted, source }, lines)
    }

    fn describe_came(came: Came, lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
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
        assert_eq!(headers["forwarded"], "for=203.0.113.3, for=192.0.2.7;host=inner;proto=http");
        assert_eq!(headers["x-real-ip"], "203.0.113.3");
    }

    /// A proxy that writes one header passes the others as its client wrote them.
    #[test]
    fn only_the_header_that_trusted_proxies_write_is_continued() {
        let lines = CHAIN.into_iter().chain([("x_forwarded_for", "1.1.1.1")]).collect::<Vec<_>>();
        let peer = SocketAddr::from(([192, 0, 2, 7], 4711));
        let client = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7]);
        let (is_tls, is_trusted) = (false, true);
        let came = Came { peer, client, is_tls, is_trusted, source: AddressSource::Forwarded };
        let headers = describe_came(came, &lines);
        assert_eq!(headers["x-forwarded-for"], "2001:db8::7, 192.0.2.7");
        assert_eq!(headers["forwarded"], "for=203.0.113.1, for=192.0.2.7;host=inner;proto=http");
        assert_eq!(headers["x-real-ip"], "2001:db8::7");
        assert!(!headers.contains_key("x_forwarded_for"));

        let headers = describe_came(Came { source: AddressSource::XForwardedFor, ..came }, &lines);
        let hops = "for=\"[2001:db8::7]\", for=192.0.2.7;host=inner;proto=http";
        assert_eq!(headers["forwarded"], hops);

        let alone = Came { source: AddressSource::None, client: peer.ip(), ..came };
        let headers = describe_came(alone, &lines);
        assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
        assert_eq!(headers["forwarded"], "for=192.0.2.7;host=inner;proto=http");
        assert_eq!(headers["x-real-ip"], "192.0.2.7");

        // What is not written is not passed on either.
        let mut headers = HeaderMap::new();
        headers.insert(X_FORWARDED_FOR, HeaderValue::from_static("1.1.1.1"));
        let options = ForwardedOptions { x_forwarded_for: false, ..ForwardedOptions::default() };
        describe(&mut headers, came, options);
        assert!(!headers.contains_key(X_FORWARDED_FOR));
    }

    /// A quote that is left open must not swallow what the gateway appends.
    #[test]
    fn a_malformed_chain_is_not_continued() {
        let lines = [("host", "inner"), ("forwarded", "for=203.0.113.1;host=\"a")];
        let peer = SocketAddr::from(([192, 0, 2, 7], 4711));
        let (client, source) = (peer.ip(), AddressSource::Forwarded);
        let came = Came { peer, client, is_tls: false, is_trusted: true, source };
        let headers = describe_came(came, &lines);
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
