//! The rule set as it travels to nodes, and as they keep it: a document, and clients' tiers in buckets.
//!
//! Every part is named by the hash of its bytes, so that a node that has a part does not fetch it again:
//! a changed rule does not move a million clients.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{ClientTier, Revision};

/// The form of sets that this program writes and reads. A node that is given another keeps its own.
pub const FORMAT: u32 = 2;

/// The form of sets without virtual keys, which nodes of the version before read as well. One with keys they must not
/// take for one without.
const FORMAT_WITHOUT_KEYS: u32 = 1;

/// A part of a set, as bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Part {
    /// The hash of the bytes.
    pub hash: u128,
    /// The bytes.
    pub bytes: Arc<[u8]>,
}

impl Part {
    /// A part of these bytes.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        // Tenants have a say in the content: the hash must be one that nobody can aim at.
        let digest = Sha256::digest(&bytes);
        let hash = digest.first_chunk().map_or(0, |first| u128::from_be_bytes(*first));
        Self { hash, bytes }
    }

    /// The hash in hex: what it is called.
    pub fn name(&self) -> String {
        format!("{:032x}", self.hash)
    }
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Part({:032x}, {} bytes)", self.hash, self.bytes.len())
    }
}

/// What a set is made of: names its parts without having them. Fields that a reader does not know are
/// left alone; a form that it does not know it must refuse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The form of the set.
    pub format: u32,
    /// Which database it comes from.
    pub installation: String,
    /// Its revision there.
    pub revision: Revision,
    /// `on`, `shadow` or `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<String>,
    /// The hash of the document, in hex.
    pub document: String,
    /// The hashes of the buckets, in hex.
    #[serde(default)]
    pub buckets: BTreeMap<u16, String>,
    /// The hashes of the buckets of virtual keys, in hex.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub keys: BTreeMap<u16, String>,
}

/// Why a set cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// It is written in a form of another version.
    #[error("it has the form {0}, and this program knows {FORMAT}: update it")]
    Format(u32),
    /// It is cut off or damaged.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

impl Manifest {
    /// Reads a manifest.
    pub fn parse(bytes: &[u8]) -> Result<Self, ContentError> {
        #[derive(Deserialize)]
        struct Form {
            format: u32,
        }
        let damaged = |_| ContentError::Damaged("the manifest cannot be read");
        // The form comes first: another one may have other fields altogether.
        let Form { format } = serde_json::from_slice(bytes).map_err(damaged)?;
        if !(FORMAT_WITHOUT_KEYS..=FORMAT).contains(&format) {
            return Err(ContentError::Format(format));
        }
        serde_json::from_slice(bytes).map_err(damaged)
    }

    /// The manifest as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        // A struct of plain values always serialises.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The hashes of all parts.
    pub fn parts(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.document).chain(self.buckets.values()).chain(self.keys.values())
    }

    /// The set of this manifest, with the parts that `find` has by their hashes.
    pub fn assemble(
        self,
        mut find: impl FnMut(&str) -> Option<Part>,
    ) -> Result<Content, ContentError> {
        let mut part = |hash: &str| {
            let part = find(hash).ok_or(ContentError::Damaged("a part is missing"))?;
            if part.name() == hash {
                Ok(part)
            } else {
                Err(ContentError::Damaged("a part is not what it was"))
            }
        };
        let document = part(&self.document)?;
        let mut buckets = BTreeMap::new();
        for (bucket, hash) in &self.buckets {
            buckets.insert(*bucket, part(hash)?);
        }
        let mut keys = BTreeMap::new();
        for (bucket, hash) in &self.keys {
            keys.insert(*bucket, part(hash)?);
        }
        let Self { installation, revision, enforcement, .. } = self;
        Ok(Content { installation, revision, enforcement, document, buckets, keys })
    }
}

/// A rule set as it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// Which database it comes from.
    pub installation: String,
    /// Its revision there.
    pub revision: Revision,
    /// `on`, `shadow` or `off`; `None`: as each node is configured.
    pub enforcement: Option<String>,
    /// The rule file, in JSON.
    pub document: Part,
    /// Clients' tiers, by bucket; empty ones are left out.
    pub buckets: BTreeMap<u16, Part>,
    /// Virtual keys, by bucket; empty ones are left out.
    pub keys: BTreeMap<u16, Part>,
}

impl Content {
    /// What it is made of.
    pub fn manifest(&self) -> Manifest {
        let named = |(bucket, part): (&u16, &Part)| (*bucket, part.name());
        Manifest {
            format: if self.keys.is_empty() { FORMAT_WITHOUT_KEYS } else { FORMAT },
            installation: self.installation.clone(),
            revision: self.revision,
            enforcement: self.enforcement.clone(),
            document: self.document.name(),
            buckets: self.buckets.iter().map(named).collect(),
            keys: self.keys.iter().map(named).collect(),
        }
    }

    /// Every part.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.document).chain(self.buckets.values()).chain(self.keys.values())
    }

    /// The document as text.
    pub fn document_text(&self) -> Result<&str, std::str::Utf8Error> {
        std::str::from_utf8(&self.document.bytes)
    }
}

/// Fields of a key that no node needs to enforce it.
const FIELDS_FOR_PEOPLE: [&str; 2] = ["name", "managed_by"];

/// The bytes of a bucket of virtual keys: their bodies as a JSON list, without what is for people.
pub fn encode_keys(mut bodies: Vec<Value>) -> Part {
    for body in bodies.iter_mut().filter_map(Value::as_object_mut) {
        for field in FIELDS_FOR_PEOPLE {
            body.remove(field);
        }
    }
    Part::new(Value::Array(bodies).to_string().into_bytes())
}

/// The virtual keys of a bucket. `None` where the bytes are not those of a bucket.
pub fn decode_keys(bytes: &[u8]) -> Option<Vec<Value>> {
    serde_json::from_slice(bytes).ok()
}

/// The kinds of clients, by the number they have in a bucket's bytes.
const KINDS: [&str; 3] = ["api_key", "user_id", "tenant_id"];

/// The bytes of a bucket: for each client its kind, and its name and tier with their lengths before them.
/// Clients of a kind that is not known, or with names longer than any may be, are left out.
pub fn encode_bucket(clients: &[ClientTier]) -> Part {
    let mut bytes = Vec::with_capacity(clients.len() * 40);
    for client in clients {
        let kind = KINDS.iter().position(|kind| *kind == client.identifier_type);
        let lengths = (u16::try_from(client.identifier.len()), u16::try_from(client.tier.len()));
        let (Some(kind), (Ok(name), Ok(tier))) = (kind, lengths) else { continue };
        bytes.push(kind as u8);
        bytes.extend_from_slice(&name.to_le_bytes());
        bytes.extend_from_slice(client.identifier.as_bytes());
        bytes.extend_from_slice(&tier.to_le_bytes());
        bytes.extend_from_slice(client.tier.as_bytes());
    }
    Part::new(bytes)
}

/// The clients of a bucket: kind, name, tier. `None` where the bytes are not those of a bucket.
pub fn decode_bucket(mut bytes: &[u8]) -> Option<Vec<(&'static str, &str, &str)>> {
    fn text<'b>(bytes: &mut &'b [u8]) -> Option<&'b str> {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let (text, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        *bytes = rest;
        std::str::from_utf8(text).ok()
    }
    let mut clients = Vec::with_capacity(bytes.len() / 32);
    while let Some((kind, rest)) = bytes.split_first() {
        bytes = rest;
        let kind = KINDS.get(usize::from(*kind))?;
        clients.push((*kind, text(&mut bytes)?, text(&mut bytes)?));
    }
    Some(clients)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_comes_back_as_it_was() {
        let client = |kind: &str, name: &str, tier: &str| ClientTier {
            identifier_type: kind.to_owned(),
            identifier: name.to_owned(),
            tier: tier.to_owned(),
        };
        let clients = [
            client("user_id", "ann", "pro"),
            client("api_key", "", "\u{1f980}"),
            client("tenant_id", &"x".repeat(300), "free"),
            client("ip", "left out", "free"),
        ];
        let part = encode_bucket(&clients);
        let decoded = decode_bucket(&part.bytes).unwrap();
        assert_eq!(decoded.len(), 3);
        assert_eq!(decoded[0], ("user_id", "ann", "pro"));
        assert_eq!(decoded[1], ("api_key", "", "\u{1f980}"));
        assert_eq!(decoded[2].1.len(), 300);
        for cut in 1..part.bytes.len() {
            let whole = decode_bucket(&part.bytes[..cut]);
            assert!(whole.is_none_or(|clients| clients.len() < 3), "{cut}");
        }
        assert_eq!(decode_bucket(&[9]), None);
        assert_eq!(decode_bucket(&[]), Some(vec![]));
    }
}
