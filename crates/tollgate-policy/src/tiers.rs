//! Which tier a client belongs to.

use hashbrown::HashMap;

use crate::{Attributes, ListKind};

/// The tiers that the rule file gives to clients, and the tier of all others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tiers {
    pub(crate) default: Option<String>,
    pub(crate) by_key: HashMap<Box<str>, Box<str>>,
    pub(crate) by_user: HashMap<Box<str>, Box<str>>,
    pub(crate) by_tenant: HashMap<Box<str>, Box<str>>,
}

impl Tiers {
    /// By key, then user, then tenant, and by which of them.
    pub(crate) fn of(&self, request: &Attributes<'_>) -> Option<(ListKind, &str)> {
        let maps = [
            (ListKind::ApiKey, &self.by_key),
            (ListKind::UserId, &self.by_user),
            (ListKind::TenantId, &self.by_tenant),
        ];
        maps.into_iter().filter(|(_, map)| !map.is_empty()).find_map(|(kind, map)| {
            let value = request.get(kind.attribute())?;
            map.get(value).map(|tier| (kind, &**tier))
        })
    }
}
