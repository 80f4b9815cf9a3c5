//! What the places in a counter's key mean to a store that spreads and hides them.

use crate::{KeyPart, Known};

/// The meaning of the values of a rule's key, by their places. A client takes two places, its kind
/// and its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyPlaces {
    /// The value that counters are spread by: the tenant, else who is calling; `None`: counters of
    /// the rule stay together.
    pub partition: Option<u8>,
    /// A bit for every value that is an API key.
    pub secrets: u32,
    /// The kind of the client, whose name comes right after it.
    pub client_kind: Option<u8>,
}

impl KeyPlaces {
    pub(crate) fn of(key: &[KeyPart]) -> Self {
        let (mut places, mut tenant, mut caller) = (Self::default(), None, None);
        let mut place = 0_u8;
        for part in key {
            if *part == KeyPart::Client {
                places.client_kind = Some(place);
                place = place.saturating_add(1);
            }
            if *part == KeyPart::Known(Known::ApiKey) {
                places.secrets |= 1_u32.checked_shl(place.into()).unwrap_or(0);
            }
            if *part == KeyPart::Known(Known::TenantId) {
                tenant = tenant.or(Some(place));
            } else if part.is_identity() {
                caller = caller.or(Some(place));
            }
            place = place.saturating_add(1);
        }
        places.partition = tenant.or(caller);
        places
    }

    /// The bits of the secrets among these values of the key.
    #[inline]
    pub fn secrets_of(&self, values: &[&str]) -> u32 {
        let Some(kind) = self.client_kind else { return self.secrets };
        match values.get(usize::from(kind)) {
            Some(name) if *name == Known::ApiKey.name() => {
                self.secrets | 2_u32.checked_shl(kind.into()).unwrap_or(0)
            }
            _ => self.secrets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenant_spreads_before_the_caller() {
        let known = KeyPart::Known;
        let places = |key: &[KeyPart]| KeyPlaces::of(key);
        assert_eq!(places(&[]).partition, None);
        assert_eq!(places(&[known(Known::ModelId)]).partition, None);
        assert_eq!(places(&[known(Known::ModelId), known(Known::UserId)]).partition, Some(1));
        let tenant_last = [known(Known::UserId), known(Known::ModelId), known(Known::TenantId)];
        assert_eq!(places(&tenant_last).partition, Some(2));
        assert_eq!(places(&[KeyPart::Client, known(Known::ModelId)]).partition, Some(1));
    }

    #[test]
    fn api_keys_are_secrets_also_as_clients() {
        let key = [KeyPart::Known(Known::ModelId), KeyPart::Client, KeyPart::Known(Known::ApiKey)];
        let places = KeyPlaces::of(&key);
        assert_eq!(places.secrets_of(&["m", "user_id", "ann", "k"]), 0b1000);
        assert_eq!(places.secrets_of(&["m", "api_key", "k", "k"]), 0b1100);
    }
}
