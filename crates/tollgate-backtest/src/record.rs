//! One request of the traffic, in a buffer that is used again.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};

use tollgate_core::Nanos;
use tollgate_engine::{Amounts, MAX_ATTRIBUTES, MAX_COST, MAX_VALUE_BYTES};
use tollgate_policy::{Attributes, Known, MAX_PATH_BYTES};
use tollgate_recording::{Kind, Part, Refunds};

/// The part of an IPv6 address that one client is assumed to have to itself, as in the gateway.
const IPV6_PREFIX: u32 = 64;

/// What stands in for a field that has no value.
const ABSENT: &str = "-";

/// Why a line is not replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// It does not have the form of its format.
    Form(&'static str),
    /// No field is its time, or the time cannot be read.
    Time,
    /// The proxy could not read the request itself: there was no decision to make.
    NoRequest,
    /// A value is longer than Tollgate accepts.
    TooLong,
    /// The path is one that Tollgate rejects with 400.
    Path,
    /// The line is longer than lines may be.
    LineTooLong,
}

impl Malformed {
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Form(reason) => reason,
            Self::Time => "no time, or one that cannot be read",
            Self::NoRequest => "no HTTP request: the proxy could not read it",
            Self::TooLong => "a value is longer than Tollgate accepts",
            Self::Path => "a path that Tollgate rejects with 400",
            Self::LineTooLong => "the line is too long",
        }
    }
}

/// A part of a record's text. Empty: absent.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    start: u32,
    end: u32,
}

/// What a node has recorded beyond a request.
#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    /// Names what the request holds; 0 where it holds nothing.
    pub(crate) hold: u64,
    pub(crate) part: Part,
    pub(crate) ttl: Option<Nanos>,
    pub(crate) refunds: Refunds,
    /// What was used of limits before: rule, limit, how much.
    pub(crate) used: Vec<(String, String, u64)>,
    pub(crate) names: Vec<String>,
}

/// One request of the traffic.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) at: Nanos,
    /// The number of its file, and of its line in it.
    pub(crate) place: (u32, u64),
    pub(crate) amounts: Amounts,
    /// How long it took, where the log says so.
    pub(crate) duration: Option<Nanos>,
    pub(crate) status: Option<u16>,
    /// Whether it was refused, where a node has recorded that.
    pub(crate) was_refused: Option<bool>,
    /// What a node has recorded beyond a request.
    pub(crate) event: Event,
    time_rank: u8,
    text: String,
    known: [Span; Known::COUNT],
    ranks: [u8; Known::COUNT],
    extras: Vec<(Span, Span)>,
    is_too_long: bool,
}

impl Record {
    /// Forgets everything and keeps the room.
    pub(crate) fn clear(&mut self) {
        let (mut text, mut extras) =
            (std::mem::take(&mut self.text), std::mem::take(&mut self.extras));
        let (mut used, mut names) =
            (std::mem::take(&mut self.event.used), std::mem::take(&mut self.event.names));
        text.clear();
        extras.clear();
        used.clear();
        names.clear();
        let event = Event { used, names, ..Event::default() };
        *self = Self { event, text, extras, ..Self::default() };
    }

    fn push(&mut self, value: &str) -> Span {
        let start = self.text.len() as u32;
        self.text.push_str(value);
        Span { start, end: self.text.len() as u32 }
    }

    fn slice(&self, span: Span) -> &str {
        self.text.get(span.start as usize..span.end as usize).unwrap_or_default()
    }

    /// The value of a known attribute; empty if it has none.
    pub(crate) fn get(&self, known: Known) -> &str {
        self.known.get(known as usize).map_or("", |span| self.slice(*span))
    }

    /// Sets a known attribute, unless a field of higher rank has set it.
    pub(crate) fn set(&mut self, known: Known, value: &str, rank: u8) {
        let bound = if known == Known::Endpoint { MAX_PATH_BYTES } else { MAX_VALUE_BYTES };
        if value.is_empty() || value == ABSENT || !self.outranks(known, rank) {
            return;
        }
        self.is_too_long |= value.len() > bound;
        let span = self.push(value);
        self.place(known, span, rank);
    }

    fn outranks(&self, known: Known, rank: u8) -> bool {
        self.ranks.get(known as usize).is_some_and(|present| rank >= *present)
    }

    fn place(&mut self, known: Known, span: Span, rank: u8) {
        if let Some(place) = self.known.get_mut(known as usize) {
            *place = span;
        }
        if let Some(present) = self.ranks.get_mut(known as usize) {
            *present = rank;
        }
    }

    /// Sets a further attribute; of several with one name the first counts.
    pub(crate) fn set_extra(&mut self, name: &str, value: &str) {
        if !value.is_empty() && value != ABSENT {
            self.push_extra(name, value);
        }
    }

    fn push_extra(&mut self, name: &str, value: &str) {
        self.is_too_long |= value.len() > MAX_VALUE_BYTES
            || name.len() > MAX_VALUE_BYTES
            || self.extras.len() >= MAX_ATTRIBUTES;
        let pair = (self.push(name), self.push(value));
        self.extras.push(pair);
    }

    /// Sets the attribute of this name, known or further.
    pub(crate) fn set_named(&mut self, name: &str, value: &str, rank: u8) {
        match Known::from_name(name) {
            Some(Known::Endpoint) => self.set_uri(value, rank),
            Some(Known::Ip) => self.set_address(value, rank, false),
            Some(known) => self.set(known, value, rank),
            None => self.set_extra(name, value),
        }
    }

    /// Sets an attribute as a node has recorded it: in normal form already.
    pub(crate) fn set_recorded(&mut self, name: &str, value: &str) {
        if let Some(known) = Known::from_name(name) {
            let bound = if known == Known::Endpoint { MAX_PATH_BYTES } else { MAX_VALUE_BYTES };
            self.is_too_long |= value.len() > bound;
            let span = self.push(value);
            self.place(known, span, 1);
        } else {
            self.push_extra(name, value);
        }
    }

    /// Sets the time, unless a field of higher rank has.
    pub(crate) fn set_time(&mut self, at: Option<Nanos>, rank: u8) {
        if let Some(at) = at
            && rank >= self.time_rank
        {
            (self.at, self.time_rank) = (at, rank);
        }
    }

    /// Sets the address in its one canonical form. One that a proxy logged may have a port, and of IPv6
    /// only the network counts, since a client can take any address in it.
    pub(crate) fn set_address(&mut self, value: &str, rank: u8, is_logged: bool) {
        if value.is_empty() || value == ABSENT || !self.outranks(Known::Ip, rank) {
            return;
        }
        let parsed = if is_logged { logged_address(value) } else { value.parse().ok() };
        let Some(parsed) = parsed else { return self.set(Known::Ip, value, rank) };
        let start = self.text.len() as u32;
        let _ = match parsed.to_canonical() {
            IpAddr::V6(address) if is_logged => {
                let network = Ipv6Addr::from_bits(address.to_bits() >> IPV6_PREFIX << IPV6_PREFIX);
                write!(self.text, "{network}/{IPV6_PREFIX}")
            }
            address => write!(self.text, "{address}"),
        };
        self.place(Known::Ip, Span { start, end: self.text.len() as u32 }, rank);
    }

    /// Sets endpoint, and the domain of an absolute URI, from what a client asked for.
    pub(crate) fn set_uri(&mut self, uri: &str, rank: u8) {
        let mut path = uri;
        if let Some((scheme, rest)) = uri.split_once("://")
            && matches!(scheme, "http" | "https" | "ws" | "wss")
        {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let (authority, rest) = rest.split_at_checked(end).unwrap_or((rest, ""));
            self.set_host(authority, rank);
            path = if rest.starts_with('/') { rest } else { "/" };
        }
        if path.starts_with('/') {
            let end = path.find(['?', '#']).unwrap_or(path.len());
            self.set(Known::Endpoint, path.get(..end).unwrap_or(path), rank);
        }
    }

    /// Sets the domain from a host, which may have a port.
    pub(crate) fn set_host(&mut self, host: &str, rank: u8) {
        let is_port =
            |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let name = match host.rsplit_once(':') {
            Some((name, port)) if is_port(port) && (!name.contains(':') || name.ends_with(']')) => {
                name
            }
            _ => host,
        };
        self.set(Known::Domain, name, rank);
    }

    /// Sets method and URI from `GET /path HTTP/1.1`.
    pub(crate) fn set_request_line(&mut self, line: &str, rank: u8) -> Result<(), Malformed> {
        let mut words = line.splitn(2, ' ');
        let (method, rest) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        // A request of HTTP/0.9 has no version; a URI may hold spaces, which nginx logs as they came.
        let uri = match rest.rsplit_once(' ') {
            Some((uri, version)) if version.starts_with("HTTP/") || version == ABSENT => uri,
            _ => rest,
        };
        let is_method = !method.is_empty()
            && method.len() <= 32
            && method.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if !is_method || method == ABSENT || uri.trim().is_empty() {
            return Err(Malformed::NoRequest);
        }
        self.set(Known::Method, method, rank);
        self.set_uri(uri, rank);
        Ok(())
    }

    pub(crate) fn set_cost(&mut self, value: &str) {
        self.amounts.cost = crate::time::number(value.as_bytes()).filter(|cost| *cost <= MAX_COST);
    }

    pub(crate) fn set_tokens(&mut self, value: &str) {
        self.amounts.tokens =
            crate::time::number(value.as_bytes()).filter(|tokens| *tokens <= MAX_COST);
    }

    /// Whether all that a request needs is there.
    pub(crate) const fn check(&self) -> Result<(), Malformed> {
        if self.time_rank == 0 {
            return Err(Malformed::Time);
        }
        if self.is_too_long {
            return Err(Malformed::TooLong);
        }
        Ok(())
    }

    /// The attributes, but for the endpoint.
    pub(crate) fn attributes(&self) -> Attributes<'_> {
        let mut attributes = Attributes::default();
        for known in Known::ALL {
            let value = self.get(known);
            if !value.is_empty() && known != Known::Endpoint {
                attributes.set(known, value);
            }
        }
        for (name, value) in &self.extras {
            attributes.push_extra(self.slice(*name), self.slice(*value));
        }
        attributes
    }
}

/// An address with or without a port, in brackets or not.
fn logged_address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    if let Some(inner) = text.strip_prefix('[') {
        return inner.split_once(']').and_then(|(address, _)| address.parse().ok());
    }
    text.rsplit_once(':').and_then(|(address, _)| address.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lose_their_port_and_ipv6_its_host() {
        for (logged, name) in [
            ("203.0.113.9", "203.0.113.9"),
            ("203.0.113.9:4711", "203.0.113.9"),
            ("2001:db8::17", "2001:db8::/64"),
            ("[2001:db8::17]:443", "2001:db8::/64"),
            ("::ffff:203.0.113.9", "203.0.113.9"),
            ("unix:", "unix:"),
            ("client.example", "client.example"),
        ] {
            let mut record = Record::default();
            record.set_address(logged, 1, true);
            assert_eq!(record.get(Known::Ip), name, "{logged}");
        }
        let mut record = Record::default();
        record.set_address("2001:DB8::17", 1, false);
        assert_eq!(record.get(Known::Ip), "2001:db8::17");
    }

    #[test]
    fn request_lines_give_method_path_and_domain() {
        for (line, method, path, domain) in [
            ("GET /a?b=c HTTP/1.1", "GET", "/a", ""),
            ("GET https://shop.example:443/a HTTP/2.0", "GET", "/a", "shop.example"),
            ("GET http://shop.example HTTP/1.1", "GET", "/", "shop.example"),
            ("GET http://[2001:db8::1]:80/x HTTP/1.1", "GET", "/x", "[2001:db8::1]"),
            ("GET /with space HTTP/1.1", "GET", "/with space", ""),
            ("GET /old", "GET", "/old", ""),
            ("OPTIONS * HTTP/1.1", "OPTIONS", "", ""),
        ] {
            let mut record = Record::default();
            record.set_request_line(line, 1).unwrap();
            let found = (record.get(Known::Method), record.get(Known::Endpoint));
            assert_eq!((found, record.get(Known::Domain)), ((method, path), domain), "{line}");
        }
        for line in ["", "-", "\u{16}\u{3}\u{1}", "- http://host:80- -", "GET", "GET  "] {
            assert_eq!(
                Record::default().set_request_line(line, 1),
                Err(Malformed::NoRequest),
                "{line}"
            );
        }
    }
}
