//! Which tier a client belongs to.

use hashbrown::HashMap;

use crate::{Attributes, Known};

/// Tiers of clients, and the tier of all others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tiers {
    pub(crate) default: Option<String>,
    pub(crate) by_key: HashMap<Box<str>, Box<str>>,
    pub(crate) by_user: HashMap<Box<str>, Box<str>>,
    pub(crate) by_tenant: HashMap<Box<str>, Box<str>>,
}

impl Tiers {
    /// By key, then user, then tenant, then the default.
    pub(crate) fn of(&self, request: &Attributes<'_>) -> Option<&str> {
        let maps = [
            (Known::ApiKey, &self.by_key),
            (Known::UserId, &self.by_user),
            (Known::TenantId, &self.by_tenant),
        ];
        maps.into_iter()
            .filter(|(_, map)| !map.is_empty())
            .find_map(|(known, map)| request.get(known).and_then(|value| map.get(value)))
            .map(|tier| &**tier)
            .or(self.default.as_deref())
    }
}
