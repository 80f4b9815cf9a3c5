//! `X-Forwarded-For` and `Forwarded`: whom a proxy speaks for.
//!
//! An untrusted peer is always the client itself. What a trusted proxy names is an address that stands in its
//! headers, or the proxy's own; what cannot be read is rejected.
#![no_main]

use std::net::IpAddr;
use std::sync::LazyLock;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::choice;
use tollgate_tower::identity::{AddressSource, Identifier, IdentityOptions};

const HEADERS: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-for"), HeaderName::from_static("forwarded")];

static IDENTIFIERS: LazyLock<[Identifier; 2]> = LazyLock::new(|| {
    [AddressSource::XForwardedFor, AddressSource::Forwarded].map(|address_source| {
        let networks = ["10.0.0.0/8", "fd00::/8", "127.0.0.1/32"];
        Identifier::new(IdentityOptions {
            trusted_proxies: networks.iter().map(|text| text.parse().unwrap()).collect(),
            address_source,
            ..IdentityOptions::default()
        })
        .unwrap()
    })
});

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = choice(input) else { return };
    let which = usize::from(kind & 1);
    let mut headers = HeaderMap::new();
    for line in rest.split(|byte| *byte == b'\n') {
        let Ok(value) = HeaderValue::from_bytes(line) else { return };
        headers.append(&HEADERS[which], value);
    }
    let identifier = &IDENTIFIERS[which];
    for (peer, is_trusted) in [
        ("10.1.2.3", true),
        ("::ffff:10.1.2.3", true),
        ("203.0.113.9", false),
        ("2001:db8::9", false),
    ] {
        let peer: IpAddr = peer.parse().unwrap();
        assert_eq!(identifier.peer_is_trusted(peer), is_trusted);
        let identity = identifier.identify(&headers, Some(peer));
        match identifier.client_ip(&headers, Some(peer)) {
            Ok(client) => {
                assert!(is_trusted || client == Some(peer.to_canonical()), "{client:?} for {peer}");
                assert!(identity.unwrap().ip.is_some_and(|ip| !ip.is_empty()));
            }
            Err(_) => assert!(is_trusted && identity.unwrap_err().status() == 400),
        }
    }
});
