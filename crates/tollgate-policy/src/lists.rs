//! Allow and deny lists.

use std::net::{IpAddr, Ipv6Addr};

use hashbrown::HashMap;
use ipnet::IpNet;
use smallvec::SmallVec;
use tollgate_core::Nanos;

use crate::{Attributes, Known};

/// What a list entry names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListKind {
    /// An API key.
    ApiKey,
    /// A user.
    UserId,
    /// A tenant.
    TenantId,
    /// An address or a network.
    Ip,
}

impl ListKind {
    /// Every kind.
    pub const ALL: &'static [Self] = &[Self::ApiKey, Self::UserId, Self::TenantId, Self::Ip];

    /// The attribute it is compared with.
    pub const fn attribute(self) -> Known {
        match self {
            Self::ApiKey => Known::ApiKey,
            Self::UserId => Known::UserId,
            Self::TenantId => Known::TenantId,
            Self::Ip => Known::Ip,
        }
    }

    /// The name in rule files.
    pub const fn name(self) -> &'static str {
        self.attribute().name()
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

/// One entry of an allow or deny list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListEntry {
    /// What it names.
    pub kind: ListKind,
    /// The value; for [`ListKind::Ip`] an address or a network.
    pub value: String,
    /// Why it is listed.
    pub reason: Option<String>,
    /// From this instant on it is as if absent.
    pub expires_at: Option<Nanos>,
}

/// Where a request is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListMatch<'s> {
    /// On the deny list.
    Denied(&'s ListEntry),
    /// On the allow list, and not on the deny list.
    Allowed(&'s ListEntry),
}

/// Bits of an IPv4 address as the tail of an IPv6 one.
const V4_OFFSET: u8 = 96;

type Places = SmallVec<[u32; 1]>;

/// One list, indexed.
#[derive(Debug, Clone, Default)]
pub(crate) struct List {
    entries: Vec<ListEntry>,
    exact: HashMap<(Known, Box<str>), Places>,
    /// Which of the exact kinds occur at all, so that others cost nothing.
    kinds: SmallVec<[Known; 3]>,
    /// Networks by prefix length in IPv6 bits, longest first; IPv4 lives in `::ffff:0:0/96`.
    networks: Vec<(u8, HashMap<u128, Places>)>,
}

impl List {
    /// Adds an entry, whose network the caller has parsed where it is one.
    pub(crate) fn push(&mut self, entry: ListEntry, network: Option<IpNet>) {
        let place = self.entries.len() as u32;
        if let Some(network) = network {
            let (bits, length) = widen(network);
            let found = self.networks.iter().position(|(have, _)| *have <= length);
            let index = found.unwrap_or(self.networks.len());
            if self.networks.get(index).is_none_or(|(have, _)| *have != length) {
                self.networks.insert(index, (length, HashMap::new()));
            }
            if let Some((_, map)) = self.networks.get_mut(index) {
                map.entry(bits).or_default().push(place);
            }
        } else {
            let known = entry.kind.attribute();
            if !self.kinds.contains(&known) {
                self.kinds.push(known);
            }
            self.exact.entry((known, entry.value.as_str().into())).or_default().push(place);
        }
        self.entries.push(entry);
    }

    pub(crate) fn entries(&self) -> &[ListEntry] {
        &self.entries
    }

    pub(crate) fn has_networks(&self) -> bool {
        !self.networks.is_empty()
    }

    /// The live entry for the request; `address` is its parsed address.
    pub(crate) fn find(
        &self,
        request: &Attributes<'_>,
        address: Option<IpAddr>,
        now: Nanos,
    ) -> Option<&ListEntry> {
        let live = |places: &Places| {
            let entries = places.iter().filter_map(|place| self.entries.get(*place as usize));
            entries.into_iter().find(|entry| entry.expires_at.is_none_or(|end| now < end))
        };
        for known in &self.kinds {
            if let Some(value) = request.get(*known)
                && let Some(entry) = self.exact.get(&ExactKey(*known, value)).and_then(live)
            {
                return Some(entry);
            }
        }
        let bits = address.map(widen_address)?;
        let is_v4 = Ipv6Addr::from(bits).to_ipv4_mapped().is_some();
        self.networks
            .iter()
            // A wide IPv6 network such as ::/0 is not meant for IPv4 callers.
            .filter(|(length, _)| !is_v4 || *length >= V4_OFFSET)
            .find_map(|(length, map)| map.get(&(bits & mask(*length))).and_then(live))
    }
}

/// A borrowed key of the exact index.
#[derive(Hash)]
pub(crate) struct ExactKey<'a>(pub(crate) Known, pub(crate) &'a str);

impl hashbrown::Equivalent<(Known, Box<str>)> for ExactKey<'_> {
    fn equivalent(&self, key: &(Known, Box<str>)) -> bool {
        self.0 == key.0 && *self.1 == *key.1
    }
}

/// The address of a request. A network (`2001:db8::/64`, as callers group IPv6) stands for its
/// first address.
pub(crate) fn parse_address(text: &str) -> Option<IpAddr> {
    let end = text.find(['/', '%']).unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

/// A network, or a single address as the network of it alone.
pub(crate) fn parse_network(text: &str) -> Option<IpNet> {
    text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

fn widen_address(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn widen(network: IpNet) -> (u128, u8) {
    let length = match network {
        IpNet::V4(v4) => v4.prefix_len() + V4_OFFSET,
        IpNet::V6(v6) => v6.prefix_len(),
    };
    (widen_address(network.addr()) & mask(length), length)
}

const fn mask(length: u8) -> u128 {
    if length == 0 { 0 } else { u128::MAX << (128 - length as u32) }
}
