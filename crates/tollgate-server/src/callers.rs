//! Who calls the decision API, and what one caller may take of what all share. A request names its tenant and its user,
//! and a caller can invent both; who calls is known from a token, a certificate or an address.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv4Addr};

/// A caller has at most so many times what it leaves free: its invented names leave room for other callers.
const CALLER_FACTOR: usize = 15;

/// Callers that are only addresses have together at most so many times what they leave free.
const ADDRESSES_FACTOR: usize = 3;

/// One of them has at most what all of them may still take, divided by this.
const ADDRESS_DIVISOR: usize = 2;

/// Fewer places than this are not divided among callers.
const MIN_DIVIDED_PLACES: usize = 8;

/// Who calls: the holder of a token or of a certificate, by its digest, else an address.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallerId<'a> {
    /// Empty where calls need neither a token nor a certificate.
    pub(crate) name: &'a str,
    pub(crate) peer: Option<IpAddr>,
}

impl<'a> From<&'a str> for CallerId<'a> {
    fn from(name: &'a str) -> Self {
        Self { name, peer: None }
    }
}

impl<'a> CallerId<'a> {
    /// The caller that [`Self::label`] describes.
    pub(crate) fn from_label(label: &'a str) -> Self {
        match label.parse() {
            Ok(peer) => Self { name: "", peer: Some(peer) },
            Err(_) => Self { name: label, peer: None },
        }
    }

    /// The digest of the token or certificate, else the address, IPv6 by its /64.
    pub(crate) fn label(self) -> String {
        self.address().map_or_else(|| self.name.to_owned(), |address| address.to_string())
    }

    /// What is known of a caller without a token or certificate.
    fn address(self) -> Option<IpAddr> {
        let peer = self.peer.filter(|_| self.name.is_empty());
        peer.map(|peer| match peer.to_canonical() {
            // Programs on this machine can have any of these.
            peer if peer.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            peer => crate::addresses::group(peer),
        })
    }
}

/// A caller as shares count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CallerKey {
    hash: u64,
    /// It is an address on the network, of which anybody can have several. Programs on this machine are one caller, which
    /// the operator started.
    is_address: bool,
}

/// How many places each caller has.
#[derive(Debug)]
pub(crate) struct CallerShares {
    max: usize,
    taken: usize,
    taken_by_addresses: usize,
    by_caller: HashMap<CallerKey, usize>,
    hasher: RandomState,
}

impl CallerShares {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            taken: 0,
            taken_by_addresses: 0,
            by_caller: HashMap::new(),
            hasher: RandomState::new(),
        }
    }

    pub(crate) fn key(&self, caller: CallerId<'_>) -> CallerKey {
        let address = caller.address();
        CallerKey {
            hash: self.hasher.hash_one((caller.name, address)),
            is_address: address.is_some_and(|address| !address.is_loopback()),
        }
    }

    /// Whether this caller may take one more.
    pub(crate) fn has_room(&self, caller: CallerKey) -> bool {
        let free = self.max.saturating_sub(self.taken);
        if self.max < MIN_DIVIDED_PLACES {
            return free > 0;
        }
        let own = self.by_caller.get(&caller).copied().unwrap_or(0);
        if !caller.is_address {
            return own < free.saturating_mul(CALLER_FACTOR);
        }
        // How many more all of them can take until they have their factor of what is free then.
        let left = (free * ADDRESSES_FACTOR)
            .saturating_sub(self.taken_by_addresses)
            .div_ceil(ADDRESSES_FACTOR + 1);
        left > 0 && (own == 0 || own * ADDRESS_DIVISOR < left)
    }

    /// Counts one more place of this caller.
    pub(crate) fn take(&mut self, caller: CallerKey) {
        self.taken += 1;
        self.taken_by_addresses += usize::from(caller.is_address);
        *self.by_caller.entry(caller).or_default() += 1;
    }

    /// Counts one place less of this caller.
    pub(crate) fn give_back(&mut self, caller: CallerKey) {
        let Some(own) = self.by_caller.get_mut(&caller) else { return };
        *own = own.saturating_sub(1);
        if *own == 0 {
            self.by_caller.remove(&caller);
        }
        self.taken = self.taken.saturating_sub(1);
        let by_addresses = usize::from(caller.is_address);
        self.taken_by_addresses = self.taken_by_addresses.saturating_sub(by_addresses);
    }

    /// How many callers have a place.
    #[cfg(test)]
    pub(crate) fn callers(&self) -> usize {
        self.by_caller.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(shares: &mut CallerShares, caller: &str) -> usize {
        let caller = shares.key(CallerId::from_label(caller));
        let mut count = 0;
        while shares.has_room(caller) {
            shares.take(caller);
            count += 1;
        }
        count
    }

    #[test]
    fn a_caller_leaves_room_for_the_next() {
        let mut shares = CallerShares::new(800);
        assert_eq!(fill(&mut shares, "loud"), 750);
        assert_eq!(fill(&mut shares, "quiet"), 47);
        assert!(fill(&mut shares, "third") > 0);
        let loud = shares.key("loud".into());
        (0..751).for_each(|_| shares.give_back(loud));
        assert_eq!(shares.callers(), 2);
        assert!(fill(&mut shares, "loud") > 600);
    }

    #[test]
    fn addresses_without_a_token_leave_a_quarter_to_callers_with_one() {
        for count in [1, 4, 200] {
            let mut shares = CallerShares::new(800);
            let taken: usize =
                (0..count).map(|number| fill(&mut shares, &format!("192.0.2.{number}"))).sum();
            assert!(taken <= 600, "{count} addresses took {taken}");
            assert!(fill(&mut shares, "token-1") > 150, "{count}");
            assert!(fill(&mut shares, "token-2") > 0, "{count}");
        }
        let mut shares = CallerShares::new(800);
        assert_eq!(fill(&mut shares, "192.0.2.1"), 200, "one alone has a quarter");
        assert!(fill(&mut shares, "192.0.2.2") > 100);
    }

    #[test]
    fn few_places_are_not_divided() {
        assert_eq!(fill(&mut CallerShares::new(7), "192.0.2.1"), 7);
        assert_eq!(fill(&mut CallerShares::new(7), "token"), 7);
    }

    #[test]
    fn a_caller_without_a_token_is_its_address() {
        let shares = CallerShares::new(64);
        let caller = |name, peer: &str| {
            let id = CallerId { name, peer: Some(peer.parse().unwrap()) };
            let key = shares.key(id);
            assert_eq!(key, shares.key(CallerId::from_label(&id.label())));
            key
        };
        assert_eq!(caller("", "192.0.2.1"), caller("", "::ffff:192.0.2.1"));
        assert_eq!(caller("", "2001:db8::1"), caller("", "2001:db8::ffff"), "one /64");
        assert_ne!(caller("", "2001:db8::1"), caller("", "2001:db8:0:1::1"));
        assert_eq!(caller("token", "192.0.2.1"), caller("token", "192.0.2.2"));
        assert_ne!(caller("token", "192.0.2.1"), caller("other", "192.0.2.1"));
        assert_eq!(caller("", "127.0.0.1"), caller("", "::1"), "programs on this machine");
        assert!(!caller("", "127.0.0.2").is_address);
    }
}
