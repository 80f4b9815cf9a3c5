//! The host that a request calls, read strictly: servers that read it differently must not be
//! played off against each other.

use std::net::Ipv6Addr;

/// The longest name of a host.
pub(crate) const MAX_HOST_BYTES: usize = 255;

/// A host, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Host<'a> {
    /// The name or address; an IPv6 address with its brackets.
    pub(crate) name: &'a str,
}

impl<'a> Host<'a> {
    /// Reads `name`, `name:port`, `address:port` or `[address]:port`.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let (name, port) = if text.starts_with('[') {
            let end = text.find(']')?;
            text.get(1..end)?.parse::<Ipv6Addr>().ok()?;
            text.split_at_checked(end + 1)?
        } else {
            let end = text.find(':').unwrap_or(text.len());
            let (name, port) = text.split_at_checked(end)?;
            let is_named = !name.is_empty() && name != "." && name.len() <= MAX_HOST_BYTES;
            if !is_named || !name.bytes().all(is_name_byte) {
                return None;
            }
            (name, port)
        };
        if let Some(port) = port.strip_prefix(':') {
            if !port.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            port.parse::<u16>().ok()?;
        } else if !port.is_empty() {
            return None;
        }
        Some(Self { name })
    }

    /// As rules and routes compare it: in lower case, without the root's dot.
    pub(crate) fn domain(&self) -> String {
        self.name.strip_suffix('.').unwrap_or(self.name).to_ascii_lowercase()
    }
}

const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hosts_are_read_strictly() {
        for (text, name) in [
            ("example.com", "example.com"),
            ("Example.com:8080", "Example.com"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("[::1]", "[::1]"),
            ("[2001:db8::1]:443", "[2001:db8::1]"),
            ("under_score", "under_score"),
        ] {
            assert_eq!(Host::parse(text).map(|host| host.name), Some(name), "{text:?}");
        }
        for text in [
            "",
            ".",
            ":80",
            "a b",
            "user@host",
            "a/b",
            "a:b",
            "a:80:80",
            "a:",
            "a:99999",
            "a:+1",
            "[::1",
            "[::1]x",
            "[zz]",
            "[]",
            "a\tb",
            "a,b",
            "ä",
            "a%20b",
            "[::1]:x",
            "a\"b",
            "a;b",
        ] {
            assert_eq!(Host::parse(text), None, "{text:?}");
        }
        assert_eq!(Host::parse(&"a".repeat(MAX_HOST_BYTES + 1)), None);
        assert_eq!(Host::parse("API.Example.COM.").unwrap().domain(), "api.example.com");
    }

    proptest! {
        #[test]
        fn what_is_accepted_holds_nothing_that_could_end_a_header(text in ".{0,300}") {
            if let Some(host) = Host::parse(&text) {
                prop_assert!(text.bytes().all(|byte| is_name_byte(byte) || b"[]:".contains(&byte)));
                prop_assert!(!host.domain().is_empty());
            }
        }
    }
}
