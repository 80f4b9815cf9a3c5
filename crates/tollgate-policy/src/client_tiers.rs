//! The tiers of single clients, for millions of them: kept beside the rule file, in buckets that are
//! replaced one by one.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

use crate::{Attributes, ListKind, MAX_VALUE_BYTES};

/// How many buckets clients are spread over.
pub const CLIENT_BUCKETS: u16 = 256;

/// The kinds of clients that have tiers, in the order in which they are asked.
const KINDS: [ListKind; 3] = [ListKind::ApiKey, ListKind::UserId, ListKind::TenantId];

/// The bucket of a client. Databases and messages between nodes have it: it must not change
/// (FNV-1a of kind, a zero byte and value, in 64 bits, of which the eight highest).
#[inline]
pub fn client_bucket(kind: ListKind, value: &str) -> u16 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    let named = kind.name().as_bytes().iter().fold(OFFSET, add);
    let hash = value.as_bytes().iter().fold(add(named, &0), add);
    (hash >> 56) as u16
}

/// Tiers of clients: immutable, and cheap to make another one of that differs in one bucket.
#[derive(Debug, Clone, Default)]
pub struct ClientTiers {
    buckets: Vec<Option<Arc<Bucket>>>,
    /// How many clients of each of [`KINDS`] there are: kinds without any cost nothing.
    counts: [usize; KINDS.len()],
}

impl ClientTiers {
    /// The same with this bucket replaced: (kind, value, tier) of every client whose
    /// [`client_bucket`] it is. Of several entries for one client the last counts. Addresses have no
    /// tiers, and values beyond [`MAX_VALUE_BYTES`] no client: they are left out.
    #[must_use]
    pub fn with_bucket<'e>(
        &self,
        bucket: u16,
        entries: impl IntoIterator<Item = (ListKind, &'e str, &'e str)>,
    ) -> Self {
        let place = usize::from(bucket % CLIENT_BUCKETS);
        let mut buckets = self.buckets.clone();
        if buckets.len() <= place {
            buckets.resize(place + 1, None);
        }
        let made = Bucket::new(entries);
        if let Some(slot) = buckets.get_mut(place) {
            *slot = (!made.table.is_empty()).then(|| Arc::new(made));
        }
        let mut counts = [0; KINDS.len()];
        for bucket in buckets.iter().flatten() {
            for (sum, count) in counts.iter_mut().zip(bucket.counts) {
                *sum += count;
            }
        }
        Self { buckets, counts }
    }

    /// How many clients have a tier.
    pub fn len(&self) -> usize {
        self.counts.iter().sum()
    }

    /// Whether no client has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tier of this client.
    pub fn get(&self, kind: ListKind, value: &str) -> Option<&str> {
        let bucket = self.buckets.get(usize::from(client_bucket(kind, value)))?.as_ref()?;
        bucket.get(kind, value)
    }

    /// The tier of the request's key, else of its user, else of its tenant, and whose it is.
    pub(crate) fn of(&self, request: &Attributes<'_>) -> Option<(ListKind, &str)> {
        for (kind, count) in KINDS.into_iter().zip(self.counts) {
            if count > 0
                && let Some(value) = request.get(kind.attribute())
                && let Some(tier) = self.get(kind, value)
            {
                return Some((kind, tier));
            }
        }
        None
    }
}

/// One bucket: values in one text, entries of a few bytes that point into it.
#[derive(Debug)]
struct Bucket {
    text: Box<str>,
    table: HashTable<Client>,
    hasher: DefaultHashBuilder,
    /// The tiers that occur here, each once.
    tiers: Vec<Box<str>>,
    counts: [usize; KINDS.len()],
}

#[derive(Debug, Clone, Copy)]
struct Client {
    start: u32,
    length: u16,
    kind: ListKind,
    tier: u32,
}

impl Client {
    fn is(self, kind: ListKind, value: &str, text: &str) -> bool {
        let start = self.start as usize;
        self.kind == kind
            && usize::from(self.length) == value.len()
            && text.as_bytes().get(start..start + value.len()) == Some(value.as_bytes())
    }
}

impl Bucket {
    fn new<'e>(entries: impl IntoIterator<Item = (ListKind, &'e str, &'e str)>) -> Self {
        let hasher = DefaultHashBuilder::default();
        let hash = |kind: ListKind, value: &str| hasher.hash_one((kind, value));
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        let mut tiers: Vec<Box<str>> = Vec::new();
        let mut last: HashMap<(ListKind, &str), u32> = HashMap::new();
        let mut bytes = 0;
        for (kind, value, tier) in entries {
            let fits = value.len() <= MAX_VALUE_BYTES && KINDS.contains(&kind);
            // A bucket that its places could not tell apart any more takes no further clients.
            if !fits || u32::try_from(bytes + value.len()).is_err() {
                continue;
            }
            let number = *numbers.entry(tier).or_insert_with(|| {
                tiers.push(tier.into());
                tiers.len() as u32 - 1
            });
            if last.insert((kind, value), number).is_none() {
                bytes += value.len();
            }
        }
        let mut text = String::with_capacity(bytes);
        let mut table = HashTable::with_capacity(last.len());
        let mut counts = [0; KINDS.len()];
        for ((kind, value), tier) in last {
            let (start, length) = (text.len() as u32, value.len() as u16);
            text.push_str(value);
            let client = Client { start, length, kind, tier };
            // There is room for all of them, so none is ever hashed again.
            table.insert_unique(hash(kind, value), client, |_| 0);
            for (count, known) in counts.iter_mut().zip(KINDS) {
                *count += usize::from(known == kind);
            }
        }
        Self { text: text.into(), table, hasher, tiers, counts }
    }

    fn get(&self, kind: ListKind, value: &str) -> Option<&str> {
        let hash = self.hasher.hash_one((kind, value));
        let client = self.table.find(hash, |client| client.is(kind, value, &self.text))?;
        self.tiers.get(client.tier as usize).map(|tier| &**tier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Known, RuleSet};

    #[test]
    fn buckets_do_not_change() {
        for (kind, value, bucket) in [
            (ListKind::ApiKey, "key-1", 137),
            (ListKind::UserId, "ann", 45),
            (ListKind::UserId, "", 232),
            (ListKind::TenantId, "acme", 156),
            (ListKind::TenantId, "caf\u{e9}", 119),
            (ListKind::Ip, "10.0.0.1", 51),
        ] {
            assert_eq!(client_bucket(kind, value), bucket, "{kind:?} {value}");
        }
    }

    /// Every entry into its own bucket.
    fn tiers(entries: &[(ListKind, &str, &str)]) -> ClientTiers {
        (0..CLIENT_BUCKETS).fold(ClientTiers::default(), |tiers, bucket| {
            let own = entries.iter().filter(|one| client_bucket(one.0, one.1) == bucket);
            tiers.with_bucket(bucket, own.copied())
        })
    }

    #[test]
    fn kinds_are_apart_and_the_last_entry_counts() {
        let tiers = tiers(&[
            (ListKind::UserId, "x", "free"),
            (ListKind::ApiKey, "x", "pro"),
            (ListKind::UserId, "x", "gold"),
            (ListKind::Ip, "10.0.0.1", "pro"),
            (ListKind::TenantId, &"t".repeat(300), "pro"),
        ]);
        assert_eq!(tiers.len(), 2);
        assert_eq!(tiers.get(ListKind::UserId, "x"), Some("gold"));
        assert_eq!(tiers.get(ListKind::ApiKey, "x"), Some("pro"));
        assert_eq!(tiers.get(ListKind::TenantId, "x"), None);
        let bucket = client_bucket(ListKind::UserId, "x");
        let without = tiers.with_bucket(bucket, []);
        assert_eq!(without.get(ListKind::UserId, "x"), None);
        assert_eq!(tiers.get(ListKind::UserId, "x"), Some("gold"), "the old one stays as it was");
    }

    #[test]
    fn replacing_a_bucket_shares_the_others() {
        let names: Vec<String> = (0..2_000).map(|n| format!("user-{n}")).collect();
        let entries: Vec<_> =
            names.iter().map(|name| (ListKind::UserId, name.as_str(), "pro")).collect();
        let tiers = tiers(&entries);
        let emptied = client_bucket(ListKind::UserId, "user-7");
        let changed = tiers.with_bucket(emptied, []);
        for (place, (one, other)) in tiers.buckets.iter().zip(&changed.buckets).enumerate() {
            match (one, other) {
                (Some(one), Some(other)) => assert!(Arc::ptr_eq(one, other)),
                (None, None) => {}
                _ => assert_eq!(place, usize::from(emptied)),
            }
        }
        assert!(changed.len() < tiers.len());
    }

    #[test]
    fn the_file_comes_first_then_these_then_the_default() {
        let text = "tiers: [{name: free, is_default: true}, pro, gold]\n\
            client_tiers: [{type: tenant_id, value: acme, tier: gold}]";
        let mut set = RuleSet::from_yaml(text, "t").unwrap();
        set.set_client_tiers(Arc::new(tiers(&[
            (ListKind::UserId, "ann", "pro"),
            (ListKind::TenantId, "acme", "free"),
        ])));
        assert_eq!(set.client_tiers().len(), 2);
        let tier = |pairs: &[(Known, &'static str)]| {
            let mut request = Attributes::default();
            for (known, value) in pairs {
                request.set(*known, value);
            }
            set.tier_of(&request).map(str::to_owned)
        };
        assert_eq!(tier(&[(Known::UserId, "ann")]).as_deref(), Some("pro"));
        assert_eq!(
            tier(&[(Known::UserId, "ann"), (Known::TenantId, "acme")]).as_deref(),
            Some("gold")
        );
        assert_eq!(tier(&[(Known::UserId, "ann"), (Known::Tier, "x")]).as_deref(), Some("x"));
        assert_eq!(tier(&[(Known::UserId, "bob")]).as_deref(), Some("free"));
    }

    /// What a million clients cost, by what their parts are made of.
    #[test]
    fn a_million_clients_are_small() {
        const CLIENTS: usize = 1_000_000;
        let names: Vec<String> = (0..CLIENTS).map(|n| format!("client-id-{n:010}")).collect();
        let mut buckets = vec![Vec::new(); usize::from(CLIENT_BUCKETS)];
        for name in &names {
            let bucket = client_bucket(ListKind::UserId, name);
            buckets[usize::from(bucket)].push((ListKind::UserId, name.as_str(), "pro"));
        }
        let mut tiers = ClientTiers::default();
        for (bucket, entries) in buckets.iter().enumerate() {
            tiers = tiers.with_bucket(bucket as u16, entries.iter().copied());
        }
        assert_eq!(tiers.len(), CLIENTS);
        let bytes = |bucket: &Arc<Bucket>| bucket.text.len() + bucket.table.allocation_size();
        let bytes: usize = tiers.buckets.iter().flatten().map(bytes).sum();
        assert!(bytes <= 80 * CLIENTS, "{bytes}");
        assert_eq!(tiers.get(ListKind::UserId, "client-id-0000123456"), Some("pro"));
    }
}
