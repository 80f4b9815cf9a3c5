//! From a descriptor to the attributes that rules look at.
//!
//! Imported rules look at the shape: `descriptor` is the descriptor's keys, `entry.1`, `entry.2`, …
//! its values. Rules that were written for Tollgate look at names, so every entry is there under its
//! own key, too.

use std::borrow::Cow;
use std::net::IpAddr;

use sha2::{Digest as _, Sha256};
use tollgate_engine::{Hits, LimitOverride, MAX_COST, MAX_VALUE_BYTES, Part, Request};
use tollgate_policy::{Known, RequestPath, descriptor_name};
use tollgate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_proto::envoy::r#type::v3::RateLimitUnit;
use tonic::Status;

use crate::callers::CallerId;

/// The most descriptors of one request.
pub const MAX_DESCRIPTORS: usize = 64;
/// The most entries of one descriptor.
pub const MAX_ENTRIES: usize = 16;
/// The longest that the keys of one descriptor may be together, as they are compared with rules.
pub const MAX_KEYS_BYTES: usize = 1_024;

/// The attribute that holds the keys.
const DESCRIPTOR: &str = "descriptor";

/// What the names of the attributes begin with that hold values by their place.
const ENTRY_PREFIX: &str = "entry.";

/// Those names.
const ENTRY_NAMES: [&str; MAX_ENTRIES] = [
    "entry.1", "entry.2", "entry.3", "entry.4", "entry.5", "entry.6", "entry.7", "entry.8",
    "entry.9", "entry.10", "entry.11", "entry.12", "entry.13", "entry.14", "entry.15", "entry.16",
];

/// The longest value that is compared with rules as a whole. Envoy takes 60 KiB of headers by default.
const MAX_COMPARED_BYTES: usize = 64 * 1024;

/// What the hash of a long value takes, with the sign before it.
const HASH_BYTES: usize = 33;

/// Stands for an empty value: an attribute that is empty counts as absent, and a client must not get
/// past a limit by sending an empty header.
const EMPTY: &str = "\0";

/// A descriptor, checked, with what its attributes live in.
#[derive(Debug)]
pub(crate) struct Described<'a> {
    entries: Vec<(&'a str, Cow<'a, str>)>,
    /// The whole texts of values that are shortened, by the names of their attributes.
    whole_values: Vec<(String, String)>,
    keys: String,
    path: Option<RequestPath<'a>>,
    ip: Option<String>,
    hits: Hits,
    has_own_hits: bool,
    limit_override: Option<LimitOverride>,
}

impl<'a> Described<'a> {
    /// Checks the descriptor with this index. `request_hits` are those of the whole request.
    pub(crate) fn new(
        descriptor: &'a RateLimitDescriptor,
        index: usize,
        request_hits: u32,
    ) -> Result<Self, Status> {
        let wrong = |what: &str| Status::invalid_argument(format!("descriptors[{index}]{what}"));
        if descriptor.entries.len() > MAX_ENTRIES {
            return Err(wrong(&format!(".entries: at most {MAX_ENTRIES} are taken")));
        }
        let mut entries = Vec::with_capacity(descriptor.entries.len());
        let mut whole_values = Vec::new();
        for (place, entry) in descriptor.entries.iter().enumerate() {
            if entry.key.is_empty() {
                return Err(wrong(&format!(".entries[{place}].key: must not be empty")));
            }
            if entry.key.len() > MAX_VALUE_BYTES {
                let message = format!("must not be longer than {MAX_VALUE_BYTES} bytes");
                return Err(wrong(&format!(".entries[{place}].key: {message}")));
            }
            let value = shortened(&entry.value);
            if matches!(value, Cow::Owned(_)) {
                let own_name = has_own_name(&entries, &entry.key).then_some(entry.key.as_str());
                let names = ENTRY_NAMES.get(place).copied().into_iter().chain(own_name);
                let whole = compared(&entry.value);
                whole_values.extend(names.map(|it| (it.to_owned(), whole.clone())));
            }
            entries.push((entry.key.as_str(), value));
        }
        let keys = descriptor_name(entries.iter().map(|(key, _)| *key));
        if keys.len() > MAX_KEYS_BYTES {
            let message = format!("keys must not be longer than {MAX_KEYS_BYTES} bytes together");
            return Err(wrong(&format!(".entries: {message}")));
        }
        let first = |wanted: &str| {
            let entry = descriptor.entries.iter().find(|entry| entry.key == wanted);
            entry.map(|entry| &entry.value[..])
        };
        // Whatever it is, servers behind Envoy may read a path in it.
        let path = first(Known::Endpoint.name()).map(RequestPath::parse_any);
        // What is no address (a client on a Unix socket, say) is not known, and no reason to leave the rest of the
        // request uncounted.
        let ip = first(Known::Ip.name()).or_else(|| first("remote_address"));
        let ip = ip.and_then(|ip| std::str::from_utf8(ip).ok()?.parse::<IpAddr>().ok());
        Ok(Self {
            keys,
            path,
            ip: ip.map(|ip| ip.to_canonical().to_string()),
            hits: hits(descriptor, request_hits),
            has_own_hits: descriptor.hits_addend.is_some(),
            limit_override: limit_override(descriptor)
                .map_err(|()| wrong(".limit.unit: is not known"))?,
            entries,
            whole_values,
        })
    }

    /// What it asks of its limits.
    pub(crate) const fn hits(&self) -> Hits {
        self.hits
    }

    /// Key and value of the entry at this place, from 1, as statistics name it.
    pub(crate) fn stats_part(&self, place: usize) -> Option<String> {
        let (key, value) = self.entries.get(place.checked_sub(1)?)?;
        Some(if value.is_empty() { (*key).to_owned() } else { format!("{key}_{value}") })
    }

    /// What the engine is asked.
    pub(crate) fn part(&'a self, domain: &'a str, caller: impl Into<CallerId<'a>>) -> Part<'a> {
        let caller = caller.into();
        let mut request =
            Request { caller: caller.name, caller_address: caller.peer, ..Request::default() };
        let attributes = &mut request.attributes;
        attributes.push_extra(DESCRIPTOR, &self.keys);
        for ((_, value), name) in self.entries.iter().zip(ENTRY_NAMES) {
            attributes.push_extra(name, if value.is_empty() { EMPTY } else { value });
        }
        for (place, (key, value)) in self.entries.iter().enumerate() {
            if !has_own_name(self.entries.get(..place).unwrap_or_default(), key) {
                continue;
            }
            match Known::from_name(key) {
                Some(Known::Domain | Known::Endpoint | Known::Ip) => {}
                _ => attributes.push_extra(key, value),
            }
        }
        attributes.set_whole_values(&self.whole_values);
        attributes.set(Known::Domain, domain);
        if let Some(path) = &self.path {
            attributes.set_path(path);
        }
        if let Some(ip) = &self.ip {
            attributes.set(Known::Ip, ip);
        }
        Part {
            request,
            hits: self.hits,
            has_own_hits: self.has_own_hits,
            limit_override: self.limit_override.as_ref(),
        }
    }
}

/// Whether an entry with this key behind these is an attribute under its own name, too: the first of several is, and none
/// that has the name of one of ours.
fn has_own_name(before: &[(&str, Cow<'_, str>)], key: &str) -> bool {
    let is_repeated = before.iter().any(|(other, _)| *other == key);
    !is_repeated && key != DESCRIPTOR && !key.starts_with(ENTRY_PREFIX)
}

/// A value as rules are compared with it: whole, as a wildcard may stand before the end. Of what is longer than any value
/// that Envoy sends, beginning and end.
fn compared(value: &[u8]) -> String {
    if value.len() <= MAX_COMPARED_BYTES {
        return String::from_utf8_lossy(value).into_owned();
    }
    let (beginning, _) = value.split_at(MAX_COMPARED_BYTES / 2);
    let (_, end) = value.split_at(value.len() - MAX_COMPARED_BYTES / 2);
    format!("{}{}", String::from_utf8_lossy(beginning), String::from_utf8_lossy(end))
}

/// A value within its bound, as counters are named by it. What is longer comes from a client, and an error would let that
/// client past every limit, because Envoy lets pass what it cannot ask about. So its beginning stays, and a hash of all of
/// it stands for the rest, so that different values count apart. A hash also stands for what is not UTF-8.
fn shortened(value: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(value);
    if let Cow::Borrowed(text) = text
        && text.len() <= MAX_VALUE_BYTES
    {
        return Cow::Borrowed(text);
    }
    let digest = Sha256::digest(value);
    let hash = digest.first_chunk().copied().map_or(0, u128::from_be_bytes);
    let most = MAX_VALUE_BYTES - HASH_BYTES;
    let kept = text
        .char_indices()
        .map_while(|(at, character)| (at + character.len_utf8() <= most).then_some(character));
    Cow::Owned(format!("{}~{hash:032x}", kept.collect::<String>()))
}

/// The descriptor's own hits, else the request's, which are 1 at least. What is above the largest cost is that: an error
/// would let the request past all its other descriptors, too, because Envoy lets pass what it cannot ask about.
fn hits(descriptor: &RateLimitDescriptor, request_hits: u32) -> Hits {
    let hits = descriptor.hits_addend.unwrap_or_else(|| u64::from(request_hits.max(1)));
    match hits.min(MAX_COST) {
        0 => Hits::Check,
        hits if descriptor.is_negative_hits => Hits::GiveBack(hits),
        hits => Hits::Charge(hits),
    }
}

fn limit_override(descriptor: &RateLimitDescriptor) -> Result<Option<LimitOverride>, ()> {
    let Some(given) = &descriptor.limit else { return Ok(None) };
    let window_seconds = match given.unit() {
        RateLimitUnit::Unknown => return Err(()),
        RateLimitUnit::Second => 1,
        RateLimitUnit::Minute => 60,
        RateLimitUnit::Hour => 3_600,
        RateLimitUnit::Day => 86_400,
        RateLimitUnit::Month => 30 * 86_400,
        RateLimitUnit::Year => 365 * 86_400,
    };
    LimitOverride::new(u64::from(given.requests_per_unit), window_seconds).map(Some).ok_or(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tollgate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
        Entry, RateLimitOverride,
    };

    use super::*;

    fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
        let entry = |(key, value): &(&str, &str)| Entry {
            key: (*key).to_owned(),
            value: (*value).to_owned().into(),
        };
        let entries = entries.iter().map(entry).collect();
        RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
    }

    fn known(entries: &[(&str, &str)], name: &str) -> Option<String> {
        let descriptor = descriptor(entries);
        let described = Described::new(&descriptor, 0, 0).unwrap();
        described.part("d", "").request.attributes.by_name(name).map(str::to_owned)
    }

    #[test]
    fn entries_are_there_by_place_and_by_name() {
        let entries = [("path", "/a/b"), ("a b/c", "x"), ("user_id", "ann"), ("path", "/c")];
        let value = |name: &str| known(&entries, name);
        assert_eq!(value("descriptor").as_deref(), Some("path/a%20b%2Fc/user_id/path"));
        assert_eq!(value("entry.1").as_deref(), Some("/a/b"));
        assert_eq!(value("entry.4").as_deref(), Some("/c"));
        assert_eq!(value("entry.5"), None);
        assert_eq!(value("path").as_deref(), Some("/a/b"), "of one key the first counts");
        assert_eq!(value("user_id").as_deref(), Some("ann"));
        assert_eq!(value("domain").as_deref(), Some("d"));
        assert_eq!(value("endpoint"), None);
    }

    #[test]
    fn known_names_are_normalised_and_ours_are_not_overwritten() {
        assert_eq!(known(&[("endpoint", "//a/./b?c=d")], "endpoint").as_deref(), Some("/a/b"));
        assert_eq!(
            known(&[("remote_address", "::ffff:10.0.0.1")], "ip").as_deref(),
            Some("10.0.0.1")
        );
        assert_eq!(known(&[("remote_address", "/run/sock")], "ip"), None);
        assert_eq!(
            known(&[("remote_address", "/run/sock")], "entry.1").as_deref(),
            Some("/run/sock")
        );
        assert_eq!(known(&[("domain", "other")], "domain").as_deref(), Some("d"));
        assert_eq!(known(&[("descriptor", "x")], "descriptor").as_deref(), Some("descriptor"));
        assert_eq!(known(&[("entry.2", "x"), ("b", "y")], "entry.2").as_deref(), Some("y"));
        assert_eq!(known(&[("a", "")], "entry.1").as_deref(), Some(EMPTY));
        assert_eq!(known(&[("a", "")], "a"), None);
    }

    #[test]
    fn an_encoded_slash_in_an_endpoint_has_both_readings() {
        let descriptor = descriptor(&[("endpoint", "/files/a%2Fb?c")]);
        let described = Described::new(&descriptor, 0, 0).unwrap();
        let part = described.part("d", "");
        let attributes = &part.request.attributes;
        assert_eq!(attributes.get(Known::Endpoint), Some("/files/a/b"));
        assert_eq!(attributes.other_endpoints(), ["/files/a%2Fb"]);
    }

    #[test]
    fn hits_are_the_descriptors_own_or_the_requests() {
        let hits = |own: Option<u64>, is_negative_hits: bool, request: u32| {
            let descriptor = RateLimitDescriptor {
                hits_addend: own,
                is_negative_hits,
                ..RateLimitDescriptor::default()
            };
            Described::new(&descriptor, 0, request).map(|described| described.hits)
        };
        assert_eq!(hits(None, false, 0).unwrap(), Hits::Charge(1));
        assert_eq!(hits(None, false, 7).unwrap(), Hits::Charge(7));
        assert_eq!(hits(Some(3), false, 7).unwrap(), Hits::Charge(3));
        assert_eq!(hits(Some(0), false, 7).unwrap(), Hits::Check);
        assert_eq!(hits(Some(0), true, 7).unwrap(), Hits::Check);
        assert_eq!(hits(Some(5), true, 0).unwrap(), Hits::GiveBack(5));
        assert_eq!(hits(None, true, 4).unwrap(), Hits::GiveBack(4));
        for most in [MAX_COST, MAX_COST + 1, u64::MAX] {
            assert_eq!(hits(Some(most), false, 0).unwrap(), Hits::Charge(MAX_COST));
            assert_eq!(hits(Some(most), true, 0).unwrap(), Hits::GiveBack(MAX_COST));
        }
    }

    #[test]
    fn bounds_are_said_with_their_place() {
        let long = "x".repeat(MAX_VALUE_BYTES + 1);
        let many = vec![("a", "b"); MAX_ENTRIES + 1];
        let key = "k".repeat(MAX_VALUE_BYTES);
        let wide = vec![(key.as_str(), "b"); 5];
        let cases: [&[(&str, &str)]; 4] = [&[(&long, "a")], &[("", "a")], &many, &wide];
        for case in cases {
            let descriptor = descriptor(case);
            let error = Described::new(&descriptor, 3, 1).unwrap_err();
            assert_eq!(error.code(), tonic::Code::InvalidArgument);
            assert!(error.message().starts_with("descriptors[3].entries"), "{error}");
        }
        // A long value is no error, which would let it past every limit; it counts as what it is.
        let (one, other) = (format!("{long}1"), format!("{long}2"));
        let values = [&long, &one, &other].map(|value| shortened(value.as_bytes()).into_owned());
        assert!(
            values.iter().all(|value| value.len() <= MAX_VALUE_BYTES && value.starts_with("xxx"))
        );
        assert!(values[0] != values[1] && values[1] != values[2]);
        assert!(Described::new(&descriptor(&[("a", &long)]), 0, 1).is_ok());
        assert_ne!(shortened(b"\xff"), shortened(b"\xfe"), "nor is what is no text");
        let limit = Some(RateLimitOverride { requests_per_unit: 1, unit: 99 });
        let odd = RateLimitDescriptor { limit, ..descriptor(&[("a", "b")]) };
        assert!(Described::new(&odd, 0, 1).is_err());
    }

    proptest! {
        #[test]
        fn no_descriptor_panics_and_bounds_hold(
            entries in proptest::collection::vec((".{0,40}", ".{0,300}"), 0..20),
            hits: Option<u64>,
            is_negative_hits: bool,
            unit: i32,
            limited: bool,
        ) {
            let pairs: Vec<_> = entries.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            let limit = limited.then_some(RateLimitOverride { requests_per_unit: 3, unit });
            let descriptor =
                RateLimitDescriptor { limit, hits_addend: hits, is_negative_hits, ..descriptor(&pairs) };
            if let Ok(described) = Described::new(&descriptor, 0, 1) {
                let part = described.part("d", "caller");
                prop_assert!(part.request.attributes.extras().len() <= 2 * MAX_ENTRIES + 1);
                for (name, value) in part.request.attributes.extras() {
                    let most = if *name == DESCRIPTOR { MAX_KEYS_BYTES } else { MAX_VALUE_BYTES };
                    prop_assert!(value.len() <= most);
                }
                prop_assert_eq!(part.request.attributes.by_name("domain"), Some("d"));
            }
        }
    }
}
