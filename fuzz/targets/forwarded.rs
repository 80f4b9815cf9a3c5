//! `Forwarded` behind a proxy that appends its element to what the client sent and copies the client's `Host` into
//! a quoted string: no claim and no host changes the address that the proxy names.
#![no_main]

use std::net::IpAddr;
use std::sync::LazyLock;

use http::header::{FORWARDED, HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::choice;
use tollgate_tower::identity::{
    AddressSource, Identifier, IdentityOptions, is_well_formed_forwarded,
};

const CLIENT: &str = "198.51.100.7";

static IDENTIFIER: LazyLock<Identifier> = LazyLock::new(|| {
    Identifier::new(IdentityOptions {
        trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
        address_source: AddressSource::Forwarded,
        ..IdentityOptions::default()
    })
    .unwrap()
});

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = choice(input) else { return };
    // The claim, a line feed, the host.
    let split = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    let (claim, host) = rest.split_at(split);
    let mut element = b"for=198.51.100.7;host=\"".to_vec();
    for byte in host.get(1..).unwrap_or_default() {
        if matches!(byte, b'"' | b'\\') {
            element.push(b'\\');
        }
        element.push(*byte);
    }
    element.push(b'"');
    if kind & 1 == 1 {
        element.extend_from_slice(b";proto=https");
    }
    let Ok(alone) = HeaderValue::from_bytes(&element) else { return };
    assert!(is_well_formed_forwarded(alone.as_bytes()));
    let joined = [claim, b",", element.as_slice()].concat();
    let Ok(joined) = HeaderValue::from_bytes(&joined) else { return };
    let mut headers = HeaderMap::new();
    if kind & 2 == 2 {
        // A line of its own for the claim.
        let Ok(claim) = HeaderValue::from_bytes(claim) else { return };
        headers.append(FORWARDED, claim);
        headers.append(FORWARDED, alone);
    } else {
        headers.append(FORWARDED, joined);
    }
    let proxy: IpAddr = "10.1.2.3".parse().unwrap();
    let client = IDENTIFIER.client_ip(&headers, Some(proxy)).unwrap();
    assert_eq!(client.map(|client| client.to_string()).as_deref(), Some(CLIENT));
});
