//! Virtual keys in decision calls: the id of a key takes the place of the secret that the caller sends.

use sha2::{Digest, Sha256};
use tollgate_engine::{Clock, Request};
use tollgate_policy::{Known, RuleSet, SECRET_PREFIX};

/// The request as its virtual key identifies it. A secret that no key has stays, and the engine refuses it.
#[inline]
pub(crate) fn resolve_key<'a>(
    mut request: Request<'a>,
    rules: &'a RuleSet,
    clock: &dyn Clock,
) -> Request<'a> {
    let keys = rules.virtual_keys();
    let Some(given) = request.attributes.get(Known::ApiKey).filter(|_| !keys.is_empty()) else {
        return request;
    };
    if let Some(key) = keys.find(&Sha256::digest(given.as_bytes()).into(), clock.now()) {
        key.identify(&mut request.attributes);
    } else if keys.get(given).is_some() {
        // An id is no secret: only the key's holder may spend its limits.
        request.attributes.set(Known::ApiKey, SECRET_PREFIX);
    }
    request
}
