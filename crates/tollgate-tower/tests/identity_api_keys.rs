//! API keys: which ones are identities.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

mod tokens;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use jsonwebtoken::Algorithm;
use proptest::prelude::*;
use serde_json::json;
use tokens::{Issuer, SECRET, ask, bearer, claims, options};
use tollgate_tower::identity::{
    ApiKeys, Identifier, IdentityOptions, JwtOptions, KeyOwner, KeySource, MAX_API_KEYS,
    UnknownApiKey,
};

const HEADER: &str = "x-api-key";

fn registered() -> ApiKeys {
    let mut keys = ApiKeys::new();
    let owner = KeyOwner {
        user_id: Some("ann".to_owned()),
        tenant_id: Some("acme".to_owned()),
        tier: Some("pro".to_owned()),
        client_type: Some("PARTNER".to_owned()),
    };
    keys.register("key-one", owner);
    keys.register("key-two", KeyOwner::default());
    keys
}

fn shown(keys: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for key in keys {
        headers.append(HEADER, HeaderValue::from_bytes(key.as_bytes()).unwrap());
    }
    headers
}

fn identifier(change: impl FnOnce(&mut IdentityOptions)) -> Identifier {
    let mut options = IdentityOptions { api_keys: registered(), ..IdentityOptions::default() };
    change(&mut options);
    Identifier::new(options).unwrap()
}

#[test]
fn a_registered_key_says_who_it_is() {
    let identifier = identifier(|_| {});
    let identity = ask(&identifier, &shown(&["key-one"])).unwrap();
    assert_eq!(identity.api_key.as_deref(), Some("key-one"));
    assert_eq!(identity.user_id.as_deref(), Some("ann"));
    assert_eq!(identity.tenant_id.as_deref(), Some("acme"));
    assert_eq!(identity.tier.as_deref(), Some("pro"));
    assert_eq!(identity.client_type.as_deref(), Some("PARTNER"));
    assert!(!format!("{identity:?}").contains("key-one"), "a key is a secret");
    assert!(!format!("{identifier:?}").contains("ann"));
    let identity = ask(&identifier, &shown(&["key-two"])).unwrap();
    assert_eq!((identity.api_key.as_deref(), identity.user_id), (Some("key-two"), None));
    assert_eq!(ask(&identifier, &HeaderMap::new()).unwrap().api_key, None);
}

#[test]
fn a_key_that_is_not_registered_is_no_identity() {
    let stranger = shown(&["key-three"]);
    let refused = |identifier: &Identifier| ask(identifier, &stranger).unwrap_err();
    let (status, code, message) = refused(&identifier(|_| {}));
    assert_eq!((status, code.as_str()), (401, "UNKNOWN_API_KEY"));
    assert!(!message.contains("key-three"));
    let ignoring = identifier(|options| options.unknown_api_key = Some(UnknownApiKey::Ignore));
    assert_eq!(ask(&ignoring, &stranger).unwrap().api_key, None);
    // Where nothing is registered, keys say nothing; also two of them, also long ones.
    let none = Identifier::new(IdentityOptions::default()).unwrap();
    let long = "k".repeat(300);
    for headers in [&stranger, &shown(&["a", "b"]), &shown(&[&long]), &shown(&[""])] {
        assert_eq!(ask(&none, headers).unwrap().api_key, None);
        assert_eq!(ask(&Identifier::default(), headers).unwrap().api_key, None);
    }
    let strict = IdentityOptions {
        unknown_api_key: Some(UnknownApiKey::Refuse),
        ..IdentityOptions::default()
    };
    assert_eq!(refused(&Identifier::new(strict).unwrap()).0, 401);
}

#[test]
fn a_trusted_header_is_believed() {
    let trusting = identifier(|options| options.trust_api_key_header = true);
    let identity = ask(&trusting, &shown(&["key-three"])).unwrap();
    assert_eq!((identity.api_key.as_deref(), identity.user_id), (Some("key-three"), None));
    assert_eq!(ask(&trusting, &shown(&["key-one"])).unwrap().user_id.as_deref(), Some("ann"));
}

#[test]
fn keys_that_contradict_or_cannot_be_read_are_refused() {
    let plain = identifier(|_| {});
    let long = "k".repeat(257);
    assert_eq!(ask(&plain, &shown(&["key-one", "key-two"])).unwrap_err().0, 400);
    assert_eq!(ask(&plain, &shown(&["key-one", "key-one"])).unwrap_err().0, 400);
    assert_eq!(ask(&plain, &shown(&[""])).unwrap_err().0, 400);
    assert_eq!(ask(&plain, &shown(&[&long])).unwrap_err().0, 431);
    assert_eq!(ask(&plain, &shown(&[&"k".repeat(1 << 20)])).unwrap_err().0, 431);
    let mut bytes = HeaderMap::new();
    bytes.insert(HEADER, HeaderValue::from_bytes(b"\xff\xfe").unwrap());
    assert_eq!(ask(&plain, &bytes).unwrap_err().0, 400);
}

#[test]
fn where_the_key_stands_can_be_chosen() {
    let named = identifier(|options| {
        options.api_key_header = Some(HeaderName::from_static("x-token"));
        options.api_key_in_authorization = true;
    });
    let mut headers = shown(&["key-two"]);
    assert_eq!(ask(&named, &headers).unwrap().api_key, None);
    headers.insert("x-token", HeaderValue::from_static("key-one"));
    assert_eq!(ask(&named, &headers).unwrap().api_key.as_deref(), Some("key-one"));
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, HeaderValue::from_static("ApiKey key-one"));
    assert_eq!(ask(&named, &headers).unwrap().api_key.as_deref(), Some("key-one"));
    assert_eq!(ask(&identifier(|_| {}), &headers).unwrap().api_key, None);
    headers.insert("x-token", HeaderValue::from_static("key-one"));
    assert_eq!(ask(&named, &headers).unwrap_err().0, 400, "two places");
    let nowhere = identifier(|options| options.api_key_header = None);
    assert_eq!(ask(&nowhere, &shown(&["key-one"])).unwrap().api_key, None);
}

#[test]
fn keys_can_be_replaced() {
    let identifier = identifier(|_| {});
    let mut other = ApiKeys::new();
    other.register("key-three", KeyOwner::default());
    identifier.set_api_keys(other);
    assert_eq!(ask(&identifier, &shown(&["key-one"])).unwrap_err().0, 401);
    assert!(ask(&identifier, &shown(&["key-three"])).is_ok());
    identifier.set_api_keys(ApiKeys::new());
    assert_eq!(ask(&identifier, &shown(&["key-three"])).unwrap().api_key, None);
}

#[test]
fn with_a_token_both_are_verified_and_the_key_wins() {
    let jwt = options(&[Algorithm::HS256], KeySource::Secret(SECRET.to_vec()));
    let clock =
        std::sync::Arc::new(tollgate_engine::ManualClock::new(tokens::NOW * tollgate_core::SECOND));
    let new = |jwt: JwtOptions| {
        let options =
            IdentityOptions { api_keys: registered(), jwt: Some(jwt), ..Default::default() };
        Identifier::with_clock(options, clock.clone()).unwrap()
    };
    let both = new(jwt.clone());
    let issuer = Issuer::secret(SECRET, Algorithm::HS256);
    let token = issuer.token("", &claims(json!({"sub": "bob", "tenant_id": "other"})));
    let with_key = |token: &str, key: &'static str| {
        let mut headers = bearer(token);
        headers.insert(HEADER, HeaderValue::from_static(key));
        headers
    };
    let identity = ask(&both, &with_key(&token, "key-one")).unwrap();
    assert_eq!(identity.user_id.as_deref(), Some("ann"));
    assert_eq!(identity.tenant_id.as_deref(), Some("acme"));
    let identity = ask(&both, &with_key(&token, "key-two")).unwrap();
    assert_eq!(identity.api_key.as_deref(), Some("key-two"));
    assert_eq!(identity.user_id.as_deref(), Some("bob"));
    assert_eq!(ask(&both, &with_key("a.b.c", "key-one")).unwrap_err().1, "INVALID_TOKEN");
    assert_eq!(ask(&both, &with_key(&token, "key-three")).unwrap_err().1, "UNKNOWN_API_KEY");
    let required = new(JwtOptions { required: true, ..jwt });
    assert_eq!(ask(&required, &shown(&["key-one"])).unwrap_err().1, "TOKEN_REQUIRED");
}

proptest! {
    #[test]
    fn any_file_of_keys_is_read_without_a_panic(text in "(sha256:|#|[0-9a-f]{0,64}|[ =\n]|\\PC){0,40}") {
        if let Err(error) = ApiKeys::parse(&text) {
            prop_assert!(error.line >= 1 && error.line <= text.lines().count());
        }
    }

    #[test]
    fn what_is_written_is_read(digests in proptest::collection::btree_set("[0-9a-f]{64}", 0..20)) {
        let lines: Vec<String> = digests.iter().map(|hex| format!("sha256:{hex} tier=x")).collect();
        let text = lines.join("\r\n");
        prop_assert_eq!(ApiKeys::parse(&text).unwrap().len(), digests.len());
        prop_assert!(digests.len() <= MAX_API_KEYS);
    }
}

#[test]
fn a_bearer_may_be_a_key_where_that_is_wanted() {
    let as_bearer = |options: &mut IdentityOptions| options.api_key_as_bearer = true;
    let keys_alone = identifier(as_bearer);
    let identity = ask(&keys_alone, &bearer("key-one")).unwrap();
    assert_eq!(
        (identity.api_key.as_deref(), identity.user_id.as_deref()),
        (Some("key-one"), Some("ann"))
    );
    assert!(
        ask(&keys_alone, &bearer("guess")).is_err(),
        "unknown, and there is nothing else it could be"
    );
    let both = {
        let mut headers = bearer("key-one");
        headers.extend(shown(&["key-two"]));
        headers
    };
    assert!(ask(&keys_alone, &both).is_err(), "of two keys nobody could say which is meant");
    assert_eq!(
        ask(&identifier(|_| {}), &bearer("key-one")).unwrap().api_key,
        None,
        "not unless wanted"
    );
    // Beside tokens: what is registered is a key, the rest is a token.
    let issuer = Issuer::secret(SECRET, Algorithm::HS256);
    let with_tokens = IdentityOptions {
        api_keys: registered(),
        api_key_as_bearer: true,
        jwt: Some(options(&[Algorithm::HS256], KeySource::Secret(SECRET.to_vec()))),
        ..IdentityOptions::default()
    };
    let clock =
        std::sync::Arc::new(tollgate_engine::ManualClock::new(tokens::NOW * tollgate_core::SECOND));
    let with_tokens = Identifier::with_clock(with_tokens, clock).unwrap();
    assert_eq!(ask(&with_tokens, &bearer("key-two")).unwrap().api_key.as_deref(), Some("key-two"));
    let token = issuer.token("any", &claims(json!({"sub": "bob"})));
    let identity = ask(&with_tokens, &bearer(&token)).unwrap();
    assert_eq!((identity.api_key, identity.user_id.as_deref()), (None, Some("bob")));
    assert!(ask(&with_tokens, &bearer("guess")).is_err(), "no key, and no token");
}
