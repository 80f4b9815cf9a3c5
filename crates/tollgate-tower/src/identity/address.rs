//! Where a request comes from: the peer, or whom trusted proxies name.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use http::header::{FORWARDED, HeaderMap, HeaderName};
use ipnet::IpNet;

use super::IdentityError;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The longest address of four numbers, as text.
const MAX_IPV4_BYTES: usize = "255.255.255.255".len();

/// The most hops that are looked at, from the right.
pub const MAX_HOPS: usize = 32;

/// The most bytes of one hop. `Forwarded` also names protocol and host.
const MAX_HOP_BYTES: usize = 512;

/// The longest IPv6 prefix.
const MAX_PREFIX: u8 = 128;

/// The prefix that one IPv6 client is assumed to have to itself.
pub const DEFAULT_IPV6_PREFIX: u8 = 64;

/// Where trusted proxies say whom they speak for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AddressSource {
    /// Nowhere: the peer is the client.
    None,
    /// In `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// In `Forwarded` (RFC 7239).
    Forwarded,
}

/// Finds a request's address.
#[derive(Debug)]
pub(super) struct Addresses {
    trusted: Vec<IpNet>,
    source: AddressSource,
    ipv6_prefix: u8,
}

impl Default for Addresses {
    fn default() -> Self {
        let (trusted, source) = (Vec::new(), AddressSource::default());
        Self { trusted, source, ipv6_prefix: DEFAULT_IPV6_PREFIX }
    }
}

impl Addresses {
    pub(super) fn new(
        trusted: &[IpNet],
        source: AddressSource,
        ipv6_prefix: u8,
    ) -> Result<Self, IdentityError> {
        if ipv6_prefix > MAX_PREFIX {
            return Err(IdentityError::Ipv6Prefix(ipv6_prefix));
        }
        let trusted = trusted.iter().copied().map(canonical_network).collect();
        Ok(Self { trusted, source, ipv6_prefix })
    }

    pub(super) fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted.iter().any(|network| network.contains(&address))
    }

    /// The first address, from the right, that no trusted proxy has; the last trusted one where what
    /// is left of it cannot be read. Whatever stands further left is the client's own claim.
    pub(super) fn client(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        let mut verified = peer.to_canonical();
        let (name, read): (_, fn(&str) -> Option<IpAddr>) = match self.source {
            AddressSource::None => return verified,
            AddressSource::XForwardedFor => (X_FORWARDED_FOR, node),
            AddressSource::Forwarded => (FORWARDED, forwarded_for),
        };
        if !self.trusts(verified) {
            return verified;
        }
        // Lines of the same name are one list, in order.
        let lines = headers.get_all(name);
        let hops = lines.iter().rev().flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
        for hop in hops.take(MAX_HOPS) {
            let hop = hop.trim_ascii();
            if hop.is_empty() {
                continue;
            }
            let text = std::str::from_utf8(hop).ok().filter(|text| text.len() <= MAX_HOP_BYTES);
            let Some(address) = text.and_then(read) else { return verified };
            verified = address.to_canonical();
            if !self.trusts(verified) {
                return verified;
            }
        }
        verified
    }

    /// The address as counters and lists know it: an IPv6 client is its network, because it can take
    /// any address in it.
    pub(super) fn name(&self, address: IpAddr) -> String {
        match address.to_canonical() {
            IpAddr::V6(v6) if self.ipv6_prefix < MAX_PREFIX => {
                match ipnet::Ipv6Net::new(v6, self.ipv6_prefix) {
                    Ok(network) => network.trunc().to_string(),
                    Err(_) => v6.to_string(),
                }
            }
            address => {
                let mut text = String::with_capacity(MAX_IPV4_BYTES);
                push_address(&mut text, address);
                text
            }
        }
    }
}

/// IPv4 written as IPv6 is IPv4, in networks as in addresses.
fn canonical_network(network: IpNet) -> IpNet {
    const MAPPED_BITS: u8 = 96;
    if let IpNet::V6(v6) = network
        && let Some(length) = v6.prefix_len().checked_sub(MAPPED_BITS)
        && let IpAddr::V4(v4) = IpAddr::V6(v6.addr()).to_canonical()
        && let Ok(v4) = ipnet::Ipv4Net::new(v4, length)
    {
        return IpNet::V4(v4);
    }
    network
}

/// An address as proxies write it: bare, in brackets, or with a port.
fn node(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some(socket.ip());
    }
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    inner.parse::<std::net::Ipv6Addr>().ok().map(IpAddr::V6)
}

/// The address after `for=`. An element that names two is no element.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut found = None;
    for pair in element.split(';') {
        let Some((name, value)) = pair.split_once('=') else { continue };
        if !name.trim().eq_ignore_ascii_case("for") {
            continue;
        }
        if found.is_some() {
            return None;
        }
        let value = value.trim();
        let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
        found = Some(node(value)?);
    }
    found
}

/// Appends an address as text. Formatting it costs several times as much, and every request has its address written
/// more than once.
pub fn push_address(text: &mut String, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            for (index, octet) in address.octets().into_iter().enumerate() {
                if index > 0 {
                    text.push('.');
                }
                text.push_str(itoa::Buffer::new().format(octet));
            }
        }
        IpAddr::V6(address) => {
            let _ = write!(text, "{address}");
        }
    }
}
