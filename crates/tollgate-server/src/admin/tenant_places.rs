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
