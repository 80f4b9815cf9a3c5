//! Bearer tokens: as they come, and with headers and claims from outside that are signed well, so that the
//! claims are read at all. What nobody signed is never an identity.
#![no_main]

use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;
use ring::hmac;
use tollgate_core::SECOND;
use tollgate_engine::{MAX_VALUE_BYTES, ManualClock};
use tollgate_fuzz::{NOW_SECONDS, choice};
use tollgate_tower::identity::{Algorithm, Identifier, IdentityOptions, JwtOptions, KeySource};

const SECRET: &[u8] = b"a secret of at least thirty-two bytes";

static KEY: LazyLock<hmac::Key> = LazyLock::new(|| hmac::Key::new(hmac::HMAC_SHA256, SECRET));

static IDENTIFIER: LazyLock<Identifier> = LazyLock::new(|| {
    let mut jwt = JwtOptions::new(vec![Algorithm::HS256], KeySource::Secret(SECRET.to_vec()));
    jwt.required = true;
    jwt.audiences = vec!["api".to_owned()];
    jwt.issuers = vec!["https://issuer.test".to_owned()];
    jwt.claims.attributes = vec![("region".to_owned(), "place.region".to_owned())];
    let options = IdentityOptions { jwt: Some(jwt), ..IdentityOptions::default() };
    let clock = Arc::new(ManualClock::new(NOW_SECONDS * SECOND));
    Identifier::with_clock(options, clock).unwrap()
});

fn sign(header: &[u8], claims: &[u8]) -> String {
    let signed = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
    let signature = BASE64.encode(hmac::sign(&KEY, signed.as_bytes()));
    format!("Bearer {signed}.{signature}")
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = choice(input) else { return };
    let is_signed = kind % 4 != 0;
    let value = match kind % 4 {
        0 => HeaderValue::from_bytes(rest),
        // Claims under a right header.
        1 => HeaderValue::try_from(sign(b"{\"alg\":\"HS256\"}", rest)),
        // A header, an empty byte, and claims.
        2 => {
            let cut = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
            let (header, claims) = rest.split_at(cut);
            HeaderValue::try_from(sign(header, claims.get(1..).unwrap_or_default()))
        }
        // More claims beside those that are demanded.
        _ => {
            let exp = NOW_SECONDS + 60;
            let Ok(more) = std::str::from_utf8(rest) else { return };
            let claims = format!(
                "{{\"exp\":{exp},\"aud\":[\"api\"],\"iss\":\"https://issuer.test\",{more}}}"
            );
            HeaderValue::try_from(sign(b"{\"alg\":\"HS256\"}", claims.as_bytes()))
        }
    };
    let Ok(value) = value else { return };
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, value);
    if let Ok(identity) = IDENTIFIER.identify(&headers, None) {
        assert!(is_signed, "a token that nobody signed was taken");
        let texts = [&identity.user_id, &identity.tenant_id, &identity.tier];
        let extra = identity.extra.iter().map(|(_, value)| value);
        for text in texts.into_iter().flatten().chain(extra) {
            assert!(!text.is_empty() && text.len() <= MAX_VALUE_BYTES, "{text:?}");
        }
    }
});
