//! How many connections one address has: nobody takes them all.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

/// Connections by address, of one listener. There are no more entries than connections.
#[derive(Debug)]
pub(crate) struct AddressLimit {
    max_connections: usize,
    /// Proxies, whose connections are those of many clients.
    exempt: Vec<IpNet>,
    held: Mutex<HashMap<IpAddr, usize>>,
}

impl AddressLimit {
    pub(crate) fn new(max_connections: usize, exempt: Vec<IpNet>) -> Arc<Self> {
        Arc::new(Self { max_connections, exempt, held: Mutex::default() })
    }

    /// A place for one more connection of this address, if it has not too many.
    pub(crate) fn acquire(self: &Arc<Self>, peer: IpAddr) -> Option<AddressPermit> {
        let peer = peer.to_canonical();
        if self.exempt.iter().any(|network| network.contains(&peer)) {
            return Some(AddressPermit(None));
        }
        let address = group(peer);
        let mut held = self.held.lock();
        let count = held.entry(address).or_default();
        if *count >= self.max_connections {
            return None;
        }
        *count += 1;
        drop(held);
        Some(AddressPermit(Some((Arc::clone(self), address))))
    }
}

/// The place of a connection among those of its address. Given back when dropped.
#[derive(Debug)]
pub(crate) struct AddressPermit(Option<(Arc<AddressLimit>, IpAddr)>);

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let Some((limit, address)) = self.0.take() else { return };
        let mut held = limit.held.lock();
        if let Some(count) = held.get_mut(&address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                held.remove(&address);
            }
        }
    }
}

/// The place of a connection: among all of its listener, and among those of its address.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    _of_all: OwnedSemaphorePermit,
    _of_address: AddressPermit,
}

impl ConnectionPermit {
    pub(crate) const fn new(of_all: OwnedSemaphorePermit, of_address: AddressPermit) -> Self {
        Self { _of_all: of_all, _of_address: of_address }
    }
}

/// An IPv6 client has a /64 to itself.
pub(crate) fn group(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_share_and_proxies_are_exempt() {
        let limit = AddressLimit::new(2, vec!["10.0.0.0/8".parse().unwrap()]);
        let acquire = |address: &str| limit.acquire(address.parse().unwrap());
        let first = acquire("192.0.2.1").unwrap();
        let _second = acquire("::ffff:192.0.2.1").unwrap();
        assert!(acquire("192.0.2.1").is_none());
        assert!(acquire("192.0.2.2").is_some(), "another has its own");
        drop(first);
        let _third = acquire("192.0.2.1").unwrap();
        // One network of IPv6 is one client.
        let _four = acquire("2001:db8::1").unwrap();
        let _five = acquire("2001:db8::ffff:1").unwrap();
        assert!(acquire("2001:db8::2").is_none());
        assert!(acquire("2001:db8:0:1::2").is_some());
        let proxies: Vec<_> = (0..10).map(|_| acquire("10.1.2.3").unwrap()).collect();
        drop(proxies);
        assert_eq!(limit.held.lock().len(), 2, "those who left are forgotten");
    }
}
