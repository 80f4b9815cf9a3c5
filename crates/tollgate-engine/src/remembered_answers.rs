//! Remembered answers within a bound of bytes, of which no caller takes what others need: where there is no room, the
//! caller that takes the most loses its oldest.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tollgate_core::Nanos;
use xxhash_rust::xxh3::xxh3_64;

use crate::idempotency::Remembered;
use crate::request::Request;

/// Callers that are only addresses, of which anybody can have several, have together at most so many parts of
/// [`ALL_PARTS`].
const ADDRESS_PARTS: usize = 3;

const ALL_PARTS: usize = 4;

/// Who calls: the holder of a token or a certificate, else an address, IPv6 by its /64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Caller {
    /// It is an address on the network. Programs on this machine are one caller, which the operator started.
    is_address: bool,
    hash: u64,
}

impl Caller {
    pub(crate) fn of(request: &Request<'_>) -> Self {
        let address = request.caller_address.filter(|_| request.caller.is_empty());
        let Some(address) = address.map(|address| address.to_canonical()) else {
            return Self { is_address: false, hash: xxh3_64(request.caller.as_bytes()) };
        };
        let bits = match address {
            address if address.is_loopback() => Ipv4Addr::LOCALHOST.to_ipv6_mapped().to_bits(),
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => Ipv6Addr::to_bits(v6) & !u128::from(u64::MAX),
        };
        Self { is_address: !address.is_loopback(), hash: xxh3_64(&bits.to_le_bytes()) }
    }
}

struct Kept {
    caller: Caller,
    until: Nanos,
    answer: Arc<Remembered>,
}

/// Answers by id.
#[derive(Default)]
pub(crate) struct RememberedAnswers {
    answers: HashMap<u128, Kept>,
    by_expiry: BTreeSet<(Nanos, u128)>,
    by_caller: BTreeSet<(Caller, Nanos, u128)>,
    bytes_of: HashMap<Caller, usize>,
    /// Those of addresses come last, and each kind in the order of its bytes.
    by_bytes: BTreeSet<(bool, usize, Caller)>,
    bytes: usize,
    bytes_of_addresses: usize,
}

impl RememberedAnswers {
    pub(crate) fn get(&self, id: u128) -> Option<&Arc<Remembered>> {
        self.answers.get(&id).map(|kept| &kept.answer)
    }

    /// Remembers an answer. There must be room for it.
    pub(crate) fn insert(
        &mut self,
        id: u128,
        caller: Caller,
        until: Nanos,
        answer: Arc<Remembered>,
    ) {
        self.remove(id);
        self.count(caller, answer.bytes(), usize::saturating_add);
        self.by_expiry.insert((until, id));
        self.by_caller.insert((caller, until, id));
        self.answers.insert(id, Kept { caller, until, answer });
    }

    pub(crate) fn forget_expired(&mut self, now: Nanos) {
        while let Some(&(until, id)) = self.by_expiry.first()
            && until <= now
        {
            self.remove(id);
        }
    }

    /// Forgets answers until so many bytes more fit. Returns whether there were any to forget.
    pub(crate) fn make_room(&mut self, bytes: usize, max_bytes: usize) -> bool {
        let mut has_forgotten = false;
        while self.bytes.saturating_add(bytes) > max_bytes
            && let Some(caller) = self.loudest(max_bytes)
            && let Some(&(_, _, id)) = self.by_caller.range((caller, 0, 0)..).next()
        {
            self.remove(id);
            has_forgotten = true;
        }
        has_forgotten
    }

    /// The caller that takes the most: of the addresses, where these take more than their part.
    fn loudest(&self, max_bytes: usize) -> Option<Caller> {
        let address = self.by_bytes.last().filter(|(is_address, ..)| *is_address);
        if let Some((_, _, caller)) = address
            && self.bytes_of_addresses.saturating_mul(ALL_PARTS)
                > max_bytes.saturating_mul(ADDRESS_PARTS)
        {
            return Some(*caller);
        }
        let first_address = (true, 0, Caller { is_address: false, hash: 0 });
        let known = self.by_bytes.range(..first_address).next_back();
        let first = [address, known].into_iter().flatten().max_by_key(|(_, bytes, _)| *bytes);
        first.map(|(_, _, caller)| *caller)
    }

    fn remove(&mut self, id: u128) {
        let Some(Kept { caller, until, answer }) = self.answers.remove(&id) else { return };
        self.by_expiry.remove(&(until, id));
        self.by_caller.remove(&(caller, until, id));
        self.count(caller, answer.bytes(), usize::saturating_sub);
    }

    fn count(&mut self, caller: Caller, bytes: usize, change: fn(usize, usize) -> usize) {
        self.bytes = change(self.bytes, bytes);
        if caller.is_address {
            self.bytes_of_addresses = change(self.bytes_of_addresses, bytes);
        }
        let before = self.bytes_of.remove(&caller).unwrap_or(0);
        self.by_bytes.remove(&(caller.is_address, before, caller));
        let after = change(before, bytes);
        if after > 0 {
            self.bytes_of.insert(caller, after);
            self.by_bytes.insert((caller.is_address, after, caller));
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        assert_eq!(self.answers.len(), self.by_expiry.len());
        assert_eq!(self.answers.len(), self.by_caller.len());
        self.answers.len()
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        let bytes = self.answers.values().map(|kept| kept.answer.bytes()).sum::<usize>();
        assert_eq!((bytes, self.bytes_of.values().sum::<usize>()), (self.bytes, bytes));
        assert_eq!(self.by_bytes.len(), self.bytes_of.len());
        bytes
    }
}
