//! Where requests come from: the table of proxies, honest and not.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;
use proptest::prelude::*;
use tollgate_tower::identity::{
    AddressSource, Identifier, IdentityError, IdentityOptions, MAX_HOPS, MalformedHop,
};

const TRUSTED: [&str; 4] = ["10.0.0.0/8", "192.168.1.1/32", "fd00::/8", "2001:db8:ffff::/48"];

fn identifier(source: AddressSource) -> Identifier {
    let trusted_proxies = TRUSTED.iter().map(|network| network.parse().unwrap()).collect();
    let options = IdentityOptions { trusted_proxies, address_source: source, ..Default::default() };
    Identifier::new(options).unwrap()
}

fn headers(name: &'static str, lines: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        let value = HeaderValue::from_bytes(line.as_bytes()).unwrap();
        headers.append(HeaderName::from_static(name), value);
    }
    headers
}

/// In place of an address: the request is rejected.
const REJECTED: &str = "rejected";

fn client_of(identifier: &Identifier, headers: &HeaderMap, peer: IpAddr) -> String {
    match identifier.client_ip(headers, Some(peer)) {
        Ok(found) => found.unwrap().to_string(),
        Err(MalformedHop) => REJECTED.to_owned(),
    }
}

#[test]
fn only_trusted_proxies_are_believed() {
    let identifier = identifier(AddressSource::XForwardedFor);
    let thousand = vec!["10.0.0.9"; 1000].join(", ");
    let thousand = format!("1.1.1.1, {thousand}");
    let long_garbage = "9".repeat(100_000);
    let rows: &[(&str, &str, &[&str], &str)] = &[
        ("no header", "203.0.113.9", &[], "203.0.113.9"),
        ("no header, trusted peer", "10.0.0.1", &[], "10.0.0.1"),
        ("spoofed by an untrusted peer", "203.0.113.9", &["1.2.3.4"], "203.0.113.9"),
        ("spoofed as a proxy", "203.0.113.9", &["1.2.3.4, 10.0.0.1"], "203.0.113.9"),
        ("spoofed as loopback", "203.0.113.9", &["127.0.0.1"], "203.0.113.9"),
        ("one proxy", "10.0.0.1", &["198.51.100.7"], "198.51.100.7"),
        ("client's claim on the left", "10.0.0.1", &["1.1.1.1, 198.51.100.7"], "198.51.100.7"),
        ("claim of being a proxy", "10.0.0.1", &["10.9.9.9, 198.51.100.7"], "198.51.100.7"),
        ("chain", "10.0.0.1", &["198.51.100.7, 10.0.0.3, 10.0.0.2"], "198.51.100.7"),
        ("chain and claim", "10.0.0.1", &["1.1.1.1, 198.51.100.7, 10.0.0.2"], "198.51.100.7"),
        ("only proxies", "10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("without spaces", "10.0.0.1", &["198.51.100.7,10.0.0.2"], "198.51.100.7"),
        ("with tabs", "10.0.0.1", &["\t198.51.100.7\t,\t10.0.0.2\t"], "198.51.100.7"),
        ("two lines", "10.0.0.1", &["1.1.1.1", "198.51.100.7, 10.0.0.2"], "198.51.100.7"),
        (
            "two lines, one chain",
            "10.0.0.1",
            &["1.1.1.1, 198.51.100.7", "10.0.0.2"],
            "198.51.100.7",
        ),
        ("an empty line last", "10.0.0.1", &["198.51.100.7", ""], "198.51.100.7"),
        ("empty entries", "10.0.0.1", &[", ,198.51.100.7,, ,"], "198.51.100.7"),
        ("nothing but commas", "10.0.0.1", &[",,,,"], "10.0.0.1"),
        ("with a port", "10.0.0.1", &["198.51.100.7:4711"], "198.51.100.7"),
        ("proxy with a port", "10.0.0.1", &["198.51.100.7, 10.0.0.2:80"], "198.51.100.7"),
        ("IPv6", "10.0.0.1", &["2001:db8::7"], "2001:db8::7"),
        ("IPv6 in brackets", "10.0.0.1", &["[2001:db8::7]"], "2001:db8::7"),
        ("IPv6 with a port", "10.0.0.1", &["[2001:db8::7]:443"], "2001:db8::7"),
        ("IPv6 in capitals", "10.0.0.1", &["2001:DB8:0:0::7"], "2001:db8::7"),
        ("IPv6 proxies", "fd00::1", &["198.51.100.7, fd00::2, [fd00::3]:80"], "198.51.100.7"),
        ("mixed families", "10.0.0.1", &["2001:db8::7, fd00::2, 10.0.0.2"], "2001:db8::7"),
        ("mapped peer", "::ffff:10.0.0.1", &["198.51.100.7"], "198.51.100.7"),
        ("mapped untrusted peer", "::ffff:203.0.113.9", &["1.2.3.4"], "203.0.113.9"),
        ("mapped client", "10.0.0.1", &["::ffff:198.51.100.7"], "198.51.100.7"),
        ("mapped proxy", "10.0.0.1", &["198.51.100.7, ::ffff:10.0.0.2"], "198.51.100.7"),
        ("mapped in hex", "10.0.0.1", &["::ffff:c633:6407"], "198.51.100.7"),
        ("unknown", "10.0.0.1", &["unknown"], "10.0.0.1"),
        ("hidden", "10.0.0.1", &["1.1.1.1, _hidden, 10.0.0.2"], "10.0.0.2"),
        ("garbage before proxies", "10.0.0.1", &["1.1.1.1, ;rm -rf, 10.0.0.3, 10.0.0.2"], REJECTED),
        ("a name", "10.0.0.1", &["localhost"], REJECTED),
        ("octal", "10.0.0.1", &["0177.0.0.1"], REJECTED),
        ("a number", "10.0.0.1", &["2130706433"], REJECTED),
        ("short", "10.0.0.1", &["127.1"], REJECTED),
        ("too large", "10.0.0.1", &["256.1.1.1"], REJECTED),
        ("a network", "10.0.0.1", &["198.51.100.0/24"], REJECTED),
        ("a zone", "10.0.0.1", &["fe80::1%eth0"], REJECTED),
        ("half a bracket", "10.0.0.1", &["[2001:db8::7"], REJECTED),
        ("IPv4 in brackets", "10.0.0.1", &["[198.51.100.7]"], REJECTED),
        ("a large port", "10.0.0.1", &["198.51.100.7:99999"], REJECTED),
        ("quotes", "10.0.0.1", &["\"198.51.100.7\""], REJECTED),
        ("not ASCII", "10.0.0.1", &["１９８.51.100.7"], REJECTED),
        ("a thousand hops", "10.0.0.1", &[&thousand], "10.0.0.9"),
        ("an endless hop", "10.0.0.1", &[&long_garbage], REJECTED),
        (
            "an endless hop on the left",
            "10.0.0.1",
            &[&long_garbage, "198.51.100.7"],
            "198.51.100.7",
        ),
    ];
    for (name, peer, lines, client) in rows {
        let headers = headers("x-forwarded-for", lines);
        assert_eq!(client_of(&identifier, &headers, peer.parse().unwrap()), *client, "{name}");
    }
}

#[test]
fn the_standard_header_is_read_the_same_way() {
    let identifier = identifier(AddressSource::Forwarded);
    let rows: &[(&str, &[&str], &str)] = &[
        ("plain", &["for=198.51.100.7"], "198.51.100.7"),
        ("with the rest", &["for=198.51.100.7;proto=https;host=a.test"], "198.51.100.7"),
        ("after the rest", &["by=10.0.0.1; For=198.51.100.7"], "198.51.100.7"),
        ("quoted IPv6", &["for=\"[2001:db8::7]:4711\""], "2001:db8::7"),
        ("chain", &["for=1.1.1.1, for=198.51.100.7, for=10.0.0.2"], "198.51.100.7"),
        ("lines", &["for=198.51.100.7", "for=10.0.0.2"], "198.51.100.7"),
        ("unknown", &["for=1.1.1.1, for=unknown"], "10.0.0.1"),
        ("hidden", &["for=1.1.1.1, for=\"_x\", for=10.0.0.2"], "10.0.0.2"),
        ("no for", &["for=1.1.1.1, proto=https"], "10.0.0.1"),
        ("two for", &["for=198.51.100.7;for=1.1.1.1"], REJECTED),
        ("an open quote on the left", &["for=\"1.1.1.1, for=198.51.100.7"], "198.51.100.7"),
        ("an open quote", &["for=\"198.51.100.7"], REJECTED),
        ("a port without quotes", &["for=198.51.100.7:80;host=a.test:80"], "198.51.100.7"),
        ("empty pairs and elements", &[",for=198.51.100.7;;proto=http;,"], "198.51.100.7"),
        ("spaces around the name", &["for = 198.51.100.7"], REJECTED),
        ("no value", &["for=198.51.100.7;host="], REJECTED),
        ("text after a quoted value", &["for=\"198.51.100.7\"x"], REJECTED),
        ("an escaped address", &["for=\"198\\.51.100.7\""], "198.51.100.7"),
        // What a proxy copies into quotes stays inside of them.
        ("a host", &["for=198.51.100.7;host=\"a,for=6.6.6.6;x=\""], "198.51.100.7"),
        ("a host, spaced", &["for=198.51.100.7;host=\"a, for=6.6.6.6;x=\""], "198.51.100.7"),
        ("a host first", &["host=\"a;for=6.6.6.6;x=\";for=198.51.100.7"], "198.51.100.7"),
        ("quotes", &["for=198.51.100.7;host=\"a\\\", for=6.6.6.6;x=\\\"\""], "198.51.100.7"),
        ("a backslash", &["for=198.51.100.7;host=\"a,for=6.6.6.6\\\\\""], "198.51.100.7"),
        (
            "an open quote and a host that would close it",
            &["for=6.6.6.6;x=\", for=198.51.100.7;host=\",for=7.7.7.7;y=\""],
            "198.51.100.7",
        ),
    ];
    let peer: IpAddr = "10.0.0.1".parse().unwrap();
    for (name, lines, client) in rows {
        let mut headers = headers("forwarded", lines);
        headers.insert("x-forwarded-for", HeaderValue::from_static("6.6.6.6"));
        assert_eq!(client_of(&identifier, &headers, peer), *client, "{name}");
    }
}

/// A proxy that copies `Host` without escaping it: the client must not become the proxy.
#[test]
fn what_a_trusted_proxy_says_and_cannot_be_read_is_rejected() {
    let peer: IpAddr = "10.0.0.1".parse().unwrap();
    let status = |source, name, line: &str| {
        let result = identifier(source).identify(&headers(name, &[line]), Some(peer));
        result.map(|identity| identity.ip.unwrap()).map_err(|rejection| rejection.status.as_u16())
    };
    for host in ["a\\", "a\"b", "\"", "x\",for=1.2.3.4", "x\";for=1.2.3.4"] {
        let line = format!("for=198.51.100.7;host=\"{host}\"");
        assert_eq!(status(AddressSource::Forwarded, "forwarded", &line), Err(400), "{host}");
        let line = format!("for=6.6.6.6, {line}, for=10.0.0.2");
        assert_eq!(status(AddressSource::Forwarded, "forwarded", &line), Err(400), "{host}");
    }
    for hop in ["localhost", "\"198.51.100.7\"", "198.51.100.7:99999", ";rm -rf"] {
        let found = status(AddressSource::XForwardedFor, "x-forwarded-for", hop);
        assert_eq!(found, Err(400), "{hop}");
    }
    // Left of a stranger's address is the stranger's own claim, whatever it looks like.
    let found = status(AddressSource::Forwarded, "forwarded", "x=\"\",\", for=198.51.100.7");
    assert_eq!(found, Ok("198.51.100.7".to_owned()));
    let found = status(AddressSource::XForwardedFor, "x-forwarded-for", "\"a, 198.51.100.7");
    assert_eq!(found, Ok("198.51.100.7".to_owned()));
}

#[test]
fn a_header_that_is_not_the_source_says_nothing() {
    let both = {
        let mut both = headers("forwarded", &["for=1.1.1.1"]);
        both.insert("x-forwarded-for", HeaderValue::from_static("2.2.2.2"));
        both
    };
    let peer = "10.0.0.1".parse().unwrap();
    let said = |source| client_of(&identifier(source), &both, peer);
    assert_eq!(said(AddressSource::None), "10.0.0.1");
    assert_eq!(said(AddressSource::XForwardedFor), "2.2.2.2");
    assert_eq!(said(AddressSource::Forwarded), "1.1.1.1");
    assert_eq!(identifier(AddressSource::XForwardedFor).client_ip(&both, None), Ok(None));
}

#[test]
fn an_ipv6_client_is_its_network() {
    let named = |prefix: u8, peer: &str| {
        let options = IdentityOptions { ipv6_prefix: prefix, ..Default::default() };
        let identity = Identifier::new(options)
            .unwrap()
            .identify(&HeaderMap::new(), Some(peer.parse().unwrap()));
        identity.unwrap().ip.unwrap()
    };
    assert_eq!(named(64, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
    assert_eq!(named(64, "2001:db8:1:2:ffff::"), "2001:db8:1:2::/64");
    assert_eq!(named(56, "2001:db8:1:2ff::1"), "2001:db8:1:200::/56");
    assert_eq!(named(0, "2001:db8::1"), "::/0");
    assert_eq!(named(128, "2001:db8::1"), "2001:db8::1");
    assert_eq!(named(64, "198.51.100.7"), "198.51.100.7");
    assert_eq!(named(64, "::ffff:198.51.100.7"), "198.51.100.7");
    let options = IdentityOptions { ipv6_prefix: 129, ..Default::default() };
    assert!(matches!(Identifier::new(options), Err(IdentityError::Ipv6Prefix(129))));
}

#[test]
fn trust_is_by_network() {
    let identifier = identifier(AddressSource::XForwardedFor);
    let trusts = |text: &str| identifier.peer_is_trusted(text.parse().unwrap());
    assert!(trusts("10.255.0.1") && trusts("::ffff:10.0.0.1") && trusts("fdab::1"));
    assert!(!trusts("11.0.0.1") && !trusts("::1") && !trusts("127.0.0.1"));
    // A network of IPv4 addresses that is written as one of IPv6.
    let mapped: IpNet = "::ffff:172.16.0.0/108".parse().unwrap();
    let options = IdentityOptions { trusted_proxies: vec![mapped], ..Default::default() };
    let identifier = Identifier::new(options).unwrap();
    assert!(identifier.peer_is_trusted("172.31.0.1".parse().unwrap()));
    assert!(!identifier.peer_is_trusted("172.32.0.1".parse().unwrap()));
}

/// A hop as proxies or liars write it, and the address it means.
fn hop() -> impl Strategy<Value = (String, Option<IpAddr>)> {
    let address = prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 3]>().prop_map(|[b, c, d]| IpAddr::from([10, b, c, d])),
        any::<[u16; 8]>().prop_map(IpAddr::from),
        any::<[u16; 8]>().prop_map(|mut words| {
            words[0] = 0xfd00;
            IpAddr::from(words)
        }),
    ];
    prop_oneof![
        8 => (address, 0..3_u8).prop_map(|(address, style)| {
            let text = match (style, address) {
                (1, IpAddr::V6(v6)) => format!("[{v6}]"),
                (2, IpAddr::V6(v6)) => format!("[{v6}]:1"),
                (2, IpAddr::V4(v4)) => format!("{v4}:65535"),
                _ => address.to_string(),
            };
            (text, Some(address.to_canonical()))
        }),
        1 => "[ -+--~]{1,12}".prop_map(|text| {
            // Whatever happens to be an address is one.
            let bare = text.trim().parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
            (text, bare)
        }),
    ]
}

proptest! {
    #[test]
    fn nobody_left_of_an_untrusted_hop_is_believed(
        hops in proptest::collection::vec(hop(), 0..40),
        peer in any::<bool>(),
        lines in 1..4_usize,
    ) {
        let identifier = identifier(AddressSource::XForwardedFor);
        let hops: Vec<_> = hops.into_iter().filter(|(text, _)| !text.trim().is_empty()).collect();
        let peer: IpAddr = if peer { "10.0.0.1" } else { "203.0.113.9" }.parse().unwrap();
        let per_line = hops.len().div_ceil(lines).max(1);
        let texts: Vec<&str> = hops.iter().map(|(text, _)| text.as_str()).collect();
        let joined: Vec<String> = texts.chunks(per_line).map(|part| part.join(",")).collect();
        let joined: Vec<&str> = joined.iter().map(String::as_str).collect();
        let found = identifier.client_ip(&headers("x-forwarded-for", &joined), Some(peer));

        // The plain reading: from the right, as long as all are trusted.
        let mut expected = Ok(peer);
        for (text, address) in hops.iter().rev().take(MAX_HOPS) {
            let trusted = expected.is_ok_and(|address| identifier.peer_is_trusted(address));
            if !trusted || text.trim().starts_with('_') {
                break;
            }
            expected = address.ok_or(MalformedHop);
        }
        prop_assert_eq!(found, expected.map(Some));
    }

    /// Whatever the client sends as `Forwarded` and as `Host`, the element of a proxy that quotes what it copies
    /// is the one that counts.
    #[test]
    fn a_quoted_host_names_no_address(
        claim in "[ -~]{0,40}|[,;=\"a]{0,12}|for=6\\.6\\.6\\.6;x=\"",
        host in "[ -~]{0,40}|[,;=\"a]{0,12}|,for=6\\.6\\.6\\.6;x=[\"]?",
        order in any::<bool>(),
    ) {
        let identifier = identifier(AddressSource::Forwarded);
        let host = host.replace('\\', "\\\\").replace('"', "\\\"");
        let element = if order {
            format!("for=198.51.100.7;host=\"{host}\"")
        } else {
            format!("host=\"{host}\";for=198.51.100.7;proto=http")
        };
        let headers = headers("forwarded", &[&format!("{claim},{element}")]);
        let found = client_of(&identifier, &headers, "10.0.0.1".parse().unwrap());
        prop_assert_eq!(found, "198.51.100.7");
    }

    #[test]
    fn any_bytes_are_survived(
        lines in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..4),
        standard in any::<bool>(),
    ) {
        let (source, name) = if standard {
            (AddressSource::Forwarded, "forwarded")
        } else {
            (AddressSource::XForwardedFor, "x-forwarded-for")
        };
        let mut headers = HeaderMap::new();
        for line in lines {
            if let Ok(value) = HeaderValue::from_bytes(&line) {
                headers.append(HeaderName::from_static(name), value);
            }
        }
        match identifier(source).identify(&headers, Some("10.0.0.1".parse().unwrap())) {
            Ok(identity) => prop_assert!(identity.ip.is_some()),
            Err(rejection) => prop_assert_eq!(rejection.status, 400),
        }
    }
}
