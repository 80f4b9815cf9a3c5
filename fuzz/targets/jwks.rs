//! Documents of keys, as an issuer publishes them: a token that nobody signed never verifies by any of them.
#![no_main]

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;
use tollgate_core::SECOND;
use tollgate_engine::ManualClock;
use tollgate_fuzz::{NOW_SECONDS, choice};
use tollgate_tower::identity::{
    Algorithm, Identifier, IdentityOptions, Jwks, JwtOptions, KeySource,
};

const NAMES: [&str; 5] = ["ES256", "RS256", "EdDSA", "ES384", "PS256"];

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = choice(input) else { return };
    if kind & 0x80 != 0 {
        let _ = Jwks::from_pem(rest);
        return;
    }
    let _ = Jwks::parse(rest);
    let algorithms = vec![
        Algorithm::ES256,
        Algorithm::RS256,
        Algorithm::EdDSA,
        Algorithm::ES384,
        Algorithm::PS256,
    ];
    let jwt = JwtOptions::new(algorithms, KeySource::Jwks(rest.to_vec()));
    let options = IdentityOptions { jwt: Some(jwt), ..IdentityOptions::default() };
    let clock = Arc::new(ManualClock::new(NOW_SECONDS * SECOND));
    let Ok(identifier) = Identifier::with_clock(options, clock) else { return };
    let header =
        format!("{{\"alg\":\"{}\",\"kid\":\"a\"}}", NAMES[usize::from(kind) % NAMES.len()]);
    let claims = format!("{{\"sub\":\"x\",\"exp\":{}}}", NOW_SECONDS + 60);
    let signature = BASE64.encode([1; 64]);
    let token = format!("Bearer {}.{}.{signature}", BASE64.encode(header), BASE64.encode(claims));
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, HeaderValue::from_str(&token).unwrap());
    assert!(identifier.identify(&headers, None).is_err(), "an unsigned token was taken");
});
