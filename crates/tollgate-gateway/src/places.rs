//! Places that tenants and clients share, such as those to wait in. What one party may take depends on what is free, so
//! that there is always room for the next one: a party stops at half of what it leaves free.
//!
//! Alone, a tenant gets a third of all places, a second one two ninths, and so on. Clients without a tenant leave a
//! quarter of what tenants do not use, because their names cost nothing; among themselves they share in the same way.

use std::collections::HashMap;

use tollgate_tower::Identity;

/// Fewer places than this are not divided: the first requests get them.
const MIN_DIVIDED_PLACES: usize = 8;

/// Clients without a tenant have at most so many times what they leave free.
const CLIENTS_FACTOR: usize = 3;

/// A tenant or a client has at most what it leaves free, divided by this.
const PARTY_DIVISOR: usize = 2;

/// Who takes a place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Party {
    /// A tenant, with all of its users and keys.
    Tenant(Box<str>),
    /// A client without a tenant: what it is known by, and its name.
    Client(&'static str, Box<str>),
}

impl Party {
    /// The party of a request: its tenant, else the first present of API key, user and address.
    pub fn new(
        tenant_id: Option<&str>,
        api_key: Option<&str>,
        user_id: Option<&str>,
        ip: Option<&str>,
    ) -> Self {
        if let Some(tenant) = tenant_id {
            return Self::Tenant(tenant.into());
        }
        let names = [("api_key", api_key), ("user_id", user_id), ("ip", ip)];
        let first = names.into_iter().find_map(|(kind, name)| name.map(|name| (kind, name)));
        let (kind, name) = first.unwrap_or_default();
        Self::Client(kind, name.into())
    }

    /// The party of a caller.
    pub fn of(identity: &Identity) -> Self {
        Self::new(
            identity.tenant_id.as_deref(),
            identity.api_key.as_deref(),
            identity.user_id.as_deref(),
            identity.ip.as_deref(),
        )
    }
}

/// How many places each party has.
#[derive(Debug)]
pub struct Places {
    max: usize,
    taken: usize,
    taken_by_clients: usize,
    by_party: HashMap<Party, usize>,
}

impl Places {
    /// So many places, all of them free.
    pub fn new(max: usize) -> Self {
        Self { max, taken: 0, taken_by_clients: 0, by_party: HashMap::new() }
    }

    /// Whether this party may take one more.
    pub fn has_room(&self, party: &Party) -> bool {
        let free = self.free();
        if self.max < MIN_DIVIDED_PLACES {
            return free > 0;
        }
        let left = match party {
            Party::Tenant(_) => free,
            // How many more all of them can take until they have their factor of what is free then.
            Party::Client(..) => (free * CLIENTS_FACTOR)
                .saturating_sub(self.taken_by_clients)
                .div_ceil(CLIENTS_FACTOR + 1),
        };
        let own = self.by_party.get(party).copied().unwrap_or(0);
        left > 0 && (own == 0 || own * PARTY_DIVISOR < left)
    }

    /// Counts one more place of this party, whether there is room or not.
    pub fn take(&mut self, party: Party) {
        self.taken += 1;
        self.taken_by_clients += usize::from(matches!(party, Party::Client(..)));
        *self.by_party.entry(party).or_default() += 1;
    }

    /// Counts one place less of this party.
    pub fn give_back(&mut self, party: &Party) {
        let Some(own) = self.by_party.get_mut(party) else { return };
        *own = own.saturating_sub(1);
        if *own == 0 {
            self.by_party.remove(party);
        }
        self.taken = self.taken.saturating_sub(1);
        let by_clients = usize::from(matches!(party, Party::Client(..)));
        self.taken_by_clients = self.taken_by_clients.saturating_sub(by_clients);
    }

    /// How many places are taken.
    pub const fn taken(&self) -> usize {
        self.taken
    }

    /// How many places are free.
    pub const fn free(&self) -> usize {
        self.max.saturating_sub(self.taken)
    }

    /// How many parties have a place.
    pub fn parties(&self) -> usize {
        self.by_party.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Party {
        Party::new(Some(name), Some("a key"), None, None)
    }

    fn address(number: usize) -> Party {
        Party::new(None, None, None, Some(&format!("192.0.2.{number}")))
    }

    /// Takes as many as there is room for.
    fn fill(places: &mut Places, party: &Party) -> usize {
        let mut count = 0;
        while places.has_room(party) {
            places.take(party.clone());
            count += 1;
        }
        count
    }

    #[test]
    fn there_is_room_for_the_next_party() {
        for max in [20, 2_000, 10_000] {
            let mut places = Places::new(max);
            // Each takes what it gets, one after the other.
            assert!(fill(&mut places, &address(1)) >= max / 5, "{max}");
            assert!(fill(&mut places, &address(2)) > 0, "{max}");
            assert!(fill(&mut places, &tenant("loud")) > 0, "{max}");
            assert!(fill(&mut places, &tenant("good")) > 0, "{max}");
            assert!(fill(&mut places, &address(3)) > 0, "{max}");
            assert!(places.has_room(&tenant("late")), "{max}");
        }
    }

    #[test]
    fn made_up_clients_leave_room_for_tenants() {
        let mut places = Places::new(2_000);
        let taken: usize = (0..2_000).map(|number| fill(&mut places, &address(number))).sum();
        assert_eq!(taken, 1_500);
        for number in 0..10 {
            assert!(fill(&mut places, &tenant(&number.to_string())) > 0, "{number}");
        }
        assert!(places.taken() < 2_000);
    }

    #[test]
    fn a_tenant_alone_has_a_third() {
        let mut places = Places::new(9_000);
        assert_eq!(fill(&mut places, &tenant("a")), 3_000);
        assert_eq!(fill(&mut places, &tenant("b")), 2_000);
        for _ in 0..3_000 {
            places.give_back(&tenant("a"));
        }
        places.give_back(&tenant("a"));
        assert_eq!((places.taken(), places.parties()), (2_000, 1), "given back once");
        for _ in 0..2_000 {
            places.give_back(&tenant("b"));
        }
        assert_eq!((places.free(), places.parties()), (9_000, 0));
    }

    #[test]
    fn few_places_are_not_divided() {
        assert_eq!(fill(&mut Places::new(0), &address(1)), 0);
        assert_eq!(fill(&mut Places::new(2), &address(1)), 2);
        assert_eq!(fill(&mut Places::new(7), &tenant("a")), 7);
        assert_eq!(fill(&mut Places::new(8), &tenant("a")), 3);
    }
}
