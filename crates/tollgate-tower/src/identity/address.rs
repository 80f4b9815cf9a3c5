//! Where a request comes from: the peer, or whom trusted proxies name.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use http::header::{FORWARDED, HeaderMap, HeaderName};
use ipnet::IpNet;

use super::IdentityError;
use super::forwarded::{ElementsFromRight, element_for};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The longest address of four numbers, as text.
const MAX_IPV4_BYTES: usize = "255.255.255.255".len();

/// The most hops that are looked at, from the right.
pub const MAX_HOPS: usize = 32;

/// The most bytes of one hop of `X-Forwarded-For`.
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

/// What one entry of the list of hops says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hop {
    Address(IpAddr),
    /// The proxy does not name its client: `unknown`, or a name that begins with `_`.
    Unnamed,
    /// Not what a proxy writes.
    Malformed,
}

/// A trusted proxy named its client in a way that cannot be read. The request may have any address, so that no rule
/// or list can be applied to it: it is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what a trusted proxy says about the client's address cannot be read")]
pub struct MalformedHop;

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

    pub(super) const fn source(&self) -> AddressSource {
        self.source
    }

    pub(super) fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.trusted.iter().any(|network| network.contains(&address))
    }

    /// The first address, from the right, that no trusted proxy has; the last trusted one where its client is not
    /// named. Whatever stands further left is the client's own claim.
    pub(super) fn client(&self, headers: &HeaderMap, peer: IpAddr) -> Result<IpAddr, MalformedHop> {
        let verified = peer.to_canonical();
        if !self.trusts(verified) {
            return Ok(verified);
        }
        match self.source {
            AddressSource::None => Ok(verified),
            AddressSource::XForwardedFor => {
                let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
                let hops = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
                self.walk(verified, hops.map(<[u8]>::trim_ascii), plain_node)
            }
            AddressSource::Forwarded => {
                let lines = headers.get_all(FORWARDED).iter().rev();
                let hops = lines.flat_map(|line| ElementsFromRight::new(line.as_bytes()));
                self.walk(verified, hops, element_for)
            }
        }
    }

    /// Follows the hops, the last first, as long as trusted proxies named them. Lines of the same name are one list,
    /// in order.
    fn walk<'a>(
        &self,
        mut verified: IpAddr,
        hops: impl Iterator<Item = &'a [u8]>,
        read: fn(&[u8]) -> Hop,
    ) -> Result<IpAddr, MalformedHop> {
        for hop in hops.take(MAX_HOPS).filter(|hop| !hop.is_empty()) {
            match read(hop) {
                Hop::Address(address) => verified = address.to_canonical(),
                Hop::Unnamed => break,
                Hop::Malformed => return Err(MalformedHop),
            }
            if !self.trusts(verified) {
                break;
            }
        }
        Ok(verified)
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
pub(super) fn node(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some(socket.ip());
    }
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    inner.parse::<std::net::Ipv6Addr>().ok().map(IpAddr::V6)
}

/// Whether a proxy writes this instead of an address: `unknown`, or an obfuscated identifier (RFC 7239, section 6).
pub(super) fn is_unnamed(text: &str) -> bool {
    text.eq_ignore_ascii_case("unknown") || text.starts_with('_')
}

/// A hop of `X-Forwarded-For`.
fn plain_node(hop: &[u8]) -> Hop {
    match std::str::from_utf8(hop) {
        Ok(text) if text.len() > MAX_HOP_BYTES => Hop::Malformed,
        Ok(text) if is_unnamed(text) => Hop::Unnamed,
        Ok(text) => node(text).map_or(Hop::Malformed, Hop::Address),
        Err(_) => Hop::Malformed,
    }
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
