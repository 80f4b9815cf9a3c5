//! Places that tenants' admins share, so that they leave room for the installation's own admins and for each other.

use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_control::Identity;
use tollgate_gateway::{Party, Places};

/// Places of tenants' admins.
#[derive(Debug)]
pub(super) struct TenantPlaces(Mutex<Places>);

/// A place, until it is dropped. The installation's own admins need none.
#[derive(Debug)]
pub(super) struct TenantPlace(Option<(Arc<TenantPlaces>, Party)>);

impl TenantPlaces {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Places::new(max))))
    }

    /// A place for one more of this identity, if its tenant has not too many.
    pub(super) fn enter(self: &Arc<Self>, identity: &Identity) -> Option<TenantPlace> {
        let Some(tenant) = identity.tenant.as_deref() else { return Some(TenantPlace(None)) };
        let party = Party::new(Some(tenant), None, None, None);
        let mut places = self.0.lock();
        if !places.has_room(&party) {
            return None;
        }
        places.take(party.clone());
        Some(TenantPlace(Some((Arc::clone(self), party))))
    }
}

impl Drop for TenantPlace {
    fn drop(&mut self) {
        if let Some((places, party)) = self.0.take() {
            places.0.lock().give_back(&party);
        }
    }
}

/// The most searches of all tenants' admins at once. A repository serves more, so that the installation's own are served.
const MAX_TENANT_SEARCHES: usize = 2;

/// Searches of tenants' admins that run: one for each tenant.
#[derive(Debug, Default)]
pub(super) struct TenantSearches(Mutex<Vec<String>>);

/// A search, until it is dropped. The installation's own admins need none.
#[derive(Debug)]
pub(super) struct TenantSearch<'a>(Option<(&'a TenantSearches, String)>);

impl TenantSearches {
    /// A search of this tenant, if it has none and there are not too many.
    pub(super) fn enter(&self, tenant: Option<&str>) -> Option<TenantSearch<'_>> {
        let Some(tenant) = tenant else { return Some(TenantSearch(None)) };
        let mut running = self.0.lock();
        if running.len() >= MAX_TENANT_SEARCHES || running.iter().any(|one| one == tenant) {
            return None;
        }
        running.push(tenant.to_owned());
        Some(TenantSearch(Some((self, tenant.to_owned()))))
    }
}

impl Drop for TenantSearch<'_> {
    fn drop(&mut self) {
        if let Some((searches, tenant)) = self.0.take() {
            searches.0.lock().retain(|one| *one != tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_searches_once_at_a_time_and_all_tenants_twice() {
        let searches = TenantSearches::default();
        let first = searches.enter(Some("a")).unwrap();
        assert!(searches.enter(Some("a")).is_none());
        let _second = searches.enter(Some("b")).unwrap();
        assert!(searches.enter(Some("c")).is_none());
        let _own = [searches.enter(None).unwrap(), searches.enter(None).unwrap()];
        drop(first);
        assert!(searches.enter(Some("b")).is_none());
        assert!(searches.enter(Some("c")).is_some());
    }
}
