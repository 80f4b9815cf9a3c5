//! Virtual keys: shown as a header or as a bearer, and never by their id.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

mod tokens;

use std::fmt::Write as _;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use jsonwebtoken::Algorithm;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokens::{Issuer, NOW, SECRET, ask, bearer, claims, options};
use tollgate_core::SECOND;
use tollgate_engine::ManualClock;
use tollgate_policy::VirtualKeys;
use tollgate_tower::identity::{Identifier, IdentityOptions, KeySource, UnknownApiKey};

const ID: &str = "key_0000000000000001";
const LIVE: &str = "tg_live_the-secret";
const IMPORTED: &str = "sk-imported";

fn hex_digest(secret: &str) -> String {
    let digest = Sha256::digest(secret.as_bytes());
    digest.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn key(id: &str, secret: &str, more: &Value) -> Value {
    let digest = hex_digest(secret);
    let mut body = json!({"id": id, "digest": digest});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn identifier(change: impl FnOnce(&mut IdentityOptions)) -> Identifier {
    let mut options = IdentityOptions::default();
    change(&mut options);
    let clock = Arc::new(ManualClock::new(NOW * SECOND));
    let identifier = Identifier::with_clock(options, clock).unwrap();
    let bodies = [
        key(ID, LIVE, &json!({"owner": "ann", "tenant_id": "acme", "tags": {"team": "search"}})),
        key("key_0000000000000002", "tg_live_off", &json!({"disabled_at": "2026-01-01T00:00:00Z"})),
        key("key_0000000000000003", IMPORTED, &json!({})),
        key("key_0000000000000004", "tg_live_old", &json!({"expires_at": "1970-01-01T00:00:01Z"})),
    ];
    let keys = Arc::new(VirtualKeys::default().with_buckets([(0, &bodies[..])]).unwrap());
    identifier.set_virtual_keys(Arc::new(move || (Arc::clone(&keys), 1_000_000_000)));
    identifier
}

fn header(key: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("x-api-key", HeaderValue::from_str(key).unwrap());
    headers
}

fn code(identifier: &Identifier, headers: &HeaderMap) -> String {
    ask(identifier, headers).map_or_else(|(_, code, _)| code, |_| "ok".to_owned())
}

#[test]
fn a_virtual_key_says_who_it_is() {
    let identifier = identifier(|_| {});
    for headers in [header(LIVE), bearer(LIVE)] {
        let identity = ask(&identifier, &headers).unwrap();
        assert_eq!(identity.api_key.as_deref(), Some(ID), "by its id");
        assert_eq!(identity.user_id.as_deref(), Some("ann"));
        assert_eq!(identity.tenant_id.as_deref(), Some("acme"));
        assert_eq!(identity.extra, [("team".to_owned(), "search".to_owned())]);
        assert!(!format!("{identity:?}").contains(LIVE));
        let stored = serde_json::to_string(&identity).unwrap();
        assert!(!stored.contains(LIVE), "the queue stores identities");
    }
    assert!(identifier.knows_clients());
}

#[test]
fn what_is_no_valid_secret_is_refused() {
    for unknown in [None, Some(UnknownApiKey::Ignore), Some(UnknownApiKey::Refuse)] {
        for is_trusted in [false, true] {
            let identifier = identifier(|options| {
                options.unknown_api_key = unknown;
                options.trust_api_key_header = is_trusted;
            });
            for wrong in ["tg_live_off", "tg_live_old", "tg_live_unknown", ID] {
                let said = code(&identifier, &header(wrong));
                assert_eq!(said, "INVALID_API_KEY", "{wrong} {unknown:?} {is_trusted}");
            }
            assert_eq!(code(&identifier, &bearer("tg_live_off")), "INVALID_API_KEY");
            assert_eq!(code(&identifier, &header(IMPORTED)), "ok");
        }
    }
    assert_eq!(code(&identifier(|_| {}), &header("other")), "UNKNOWN_API_KEY");
}

#[test]
fn a_bearer_may_be_a_token_or_a_key() {
    let issuer = Issuer::secret(SECRET, Algorithm::HS256);
    let keys = || KeySource::Secret(SECRET.to_vec());
    let with_tokens = identifier(|options| {
        options.jwt = Some(self::options(&[Algorithm::HS256], keys()));
    });
    assert_eq!(code(&with_tokens, &bearer(LIVE)), "ok");
    assert_eq!(code(&with_tokens, &bearer("tg_live_unknown")), "INVALID_API_KEY");
    // A verified user is the user; the key stays the key.
    let mut both = bearer(&issuer.token("", &claims(json!({"sub": "bob", "tenant_id": "other"}))));
    both.extend(header(LIVE));
    let identity = ask(&with_tokens, &both).unwrap();
    assert_eq!(identity.user_id.as_deref(), Some("bob"));
    let named = (identity.api_key.as_deref(), identity.tenant_id.as_deref());
    assert_eq!(named, (Some(ID), Some("acme")));
    // A plan counts only if it is one of the key's tenant: it changes the limits of that tenant.
    for (tenant, plan) in
        [(json!("other"), None), (json!(null), None), (json!("acme"), Some("gold"))]
    {
        let stated = claims(json!({"sub": "bob", "tenant_id": tenant, "plan": "gold"}));
        let mut both = bearer(&issuer.token("", &stated));
        both.extend(header(LIVE));
        assert_eq!(ask(&with_tokens, &both).unwrap().tier.as_deref(), plan, "{tenant}");
    }
    // Imported keys are read as bearers where the configuration says so.
    let as_bearer = identifier(|options| options.api_key_as_bearer = true);
    let identity = ask(&as_bearer, &bearer(IMPORTED)).unwrap();
    assert_eq!(identity.api_key.as_deref(), Some("key_0000000000000003"));
    let ignored = ask(&identifier(|_| {}), &bearer(IMPORTED)).unwrap();
    assert_eq!(ignored.api_key, None);
}
