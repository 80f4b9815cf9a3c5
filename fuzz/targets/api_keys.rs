//! Files of API keys, and the header with a key.
#![no_main]

use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::choice;
use tollgate_tower::identity::{ApiKeys, Identifier, IdentityOptions, UnknownApiKey};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = choice(input) else { return };
    // The file, an empty byte, and what a client sends.
    let cut = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    let (file, sent) = rest.split_at(cut);
    let Ok(file) = std::str::from_utf8(file) else { return };
    let api_keys = match ApiKeys::parse(file) {
        Ok(keys) => keys,
        Err(error) => {
            assert!(error.line >= 1 && error.line <= file.lines().count());
            return;
        }
    };
    let is_registered = sent.get(1..).is_some_and(|key| api_keys.find(key).is_some());
    assert!(api_keys.len() <= file.lines().count());
    let options = IdentityOptions {
        api_keys,
        api_key_in_authorization: kind & 1 == 1,
        trust_api_key_header: kind & 2 == 2,
        unknown_api_key: (kind & 4 == 4).then_some(UnknownApiKey::Ignore),
        ..IdentityOptions::default()
    };
    let identifier = Identifier::new(options).unwrap();
    let mut headers = HeaderMap::new();
    let Ok(value) = HeaderValue::from_bytes(sent.get(1..).unwrap_or_default()) else { return };
    let name = if kind & 8 == 8 { AUTHORIZATION } else { X_API_KEY };
    headers.append(name, value);
    if let Ok(identity) = identifier.identify(&headers, None) {
        let is_believed = identity.api_key.is_some();
        assert!(!is_believed || is_registered || kind & 2 == 2 || kind & 8 == 8);
    }
});
