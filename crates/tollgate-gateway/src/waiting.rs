//! The waiting room of throttled requests. Its places are shared: nobody's requests take all of them.

use parking_lot::Mutex;

use crate::places::{Party, Places};

/// How many requests wait, and of whom.
#[derive(Debug)]
pub(crate) struct WaitingRoom {
    places: Mutex<Places>,
}

impl WaitingRoom {
    pub(crate) fn new(max: usize) -> Self {
        Self { places: Mutex::new(Places::new(max)) }
    }

    /// A place for a request of this party, if there is one for it.
    pub(crate) fn enter(&self, party: Party) -> Option<Place<'_>> {
        let mut places = self.places.lock();
        if !places.has_room(&party) {
            return None;
        }
        places.take(party.clone());
        drop(places);
        Some(Place { room: self, party })
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.places.lock().taken()
    }

    /// How many more may wait.
    pub(crate) fn free(&self) -> usize {
        self.places.lock().free()
    }
}

/// A place in the waiting room. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Place<'r> {
    room: &'r WaitingRoom,
    party: Party,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.room.places.lock().give_back(&self.party);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses without a tenant, one tenant, and then another.
    #[test]
    fn a_flood_leaves_room_for_the_others() {
        let room = WaitingRoom::new(20);
        let address = |ip: &str| Party::new(None, None, None, Some(ip));
        let tenant = |name: &str| Party::new(Some(name), None, None, None);
        let enter_all = |party: &Party| -> Vec<_> {
            std::iter::from_fn(|| room.enter(party.clone())).collect()
        };
        let flood = enter_all(&address("192.0.2.1"));
        assert!(flood.len() < 10, "{}", flood.len());
        let other = room.enter(address("192.0.2.2"));
        assert!(other.is_some());
        let loud = enter_all(&tenant("loud"));
        assert!(!loud.is_empty());
        let good = room.enter(tenant("good"));
        assert!(good.is_some());
        assert_eq!(room.waiting(), flood.len() + loud.len() + 2);
        drop((flood, other, loud, good));
        assert_eq!((room.waiting(), room.free()), (0, 20));
        assert_eq!(room.places.lock().parties(), 0, "those who left are forgotten");
    }
}
