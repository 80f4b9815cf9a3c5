//! Signed history: the log of changes as a hash chain whose head is signed.
//!
//! Each change carries a number and the SHA-256 of its content and of the change before it. The newest one, the head, is
//! signed with Ed25519 in the transaction of the change. Changes that are removed to keep a bound leave a signed statement
//! in their place, so that the chain can be followed across them. Records from before the chain are covered by its genesis.
//!
//! | file | |
//! |---|---|
//! | `sign.rs` | keys and signatures |
//! | `verify.rs` | following a chain, link by link |

mod sign;
mod verify;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::Millis;
use crate::token::hex;
pub use sign::{KEY_BYTES, PublicKey, Signed, Signer, SigningKeyError};
pub use verify::{Broken, NotedHead, Verified, Verifier};

/// The version of the format of exports.
pub const EXPORT_FORMAT: u32 = 1;

/// A change as the chain has it. Texts are exactly those that are stored, since they are hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainedChange {
    /// Its number in the chain, from 1, without gaps. 0 for a record from before the chain.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub number: i64,
    /// Its number in the log.
    pub id: i64,
    /// When, in milliseconds since 1970.
    pub at: Millis,
    /// The name of the token that made it.
    pub actor: String,
    /// The id of the token.
    pub token_id: String,
    /// Such as `rule.create`.
    pub action: String,
    /// The kind of the entry.
    pub kind: String,
    /// The id of the entry.
    pub entry_id: String,
    /// The tenant that the entry belongs to.
    pub tenant_id: Option<String>,
    /// The version it got.
    pub version: i64,
    /// The revision that the set got.
    pub revision: i64,
    /// What the entry was, as JSON in a text.
    pub before: Option<String>,
    /// What it is, as JSON in a text.
    pub after: Option<String>,
    /// The id that the admin request had.
    pub request_id: Option<String>,
    /// Where it came from.
    pub address: Option<String>,
    /// The tenant of the token; empty for the installation's own.
    pub owner: String,
    /// The hash of this change and of the one before it, in hex.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl ChainedChange {
    /// The hash of this change after one with that hash.
    pub fn hash_after(&self, previous: &str) -> String {
        let mut hash = FieldHash::new("tollgate change 1");
        hash.text(previous).int(self.number);
        self.add_content(&mut hash);
        hash.finish()
    }

    /// The digest of records from before the chain up to this one.
    pub(crate) fn digest_after(&self, previous: &str) -> String {
        let mut hash = FieldHash::new("tollgate earlier change 1");
        hash.text(previous).int(self.id);
        self.add_content(&mut hash);
        hash.finish()
    }

    fn add_content(&self, hash: &mut FieldHash) {
        hash.int(self.at);
        for text in [&self.actor, &self.token_id, &self.action, &self.kind, &self.entry_id] {
            hash.text(text);
        }
        hash.optional(self.tenant_id.as_deref()).int(self.version).int(self.revision);
        for text in [&self.before, &self.after, &self.request_id, &self.address] {
            hash.optional(text.as_deref());
        }
        hash.text(&self.owner);
    }
}

/// What was there before the chain began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Genesis {
    /// How many records.
    pub earlier: i64,
    /// The number of the last one in the log; 0 if there were none.
    pub last_id: i64,
    /// A digest of all of them in order.
    pub digest: String,
    /// The hash that the first change follows.
    pub hash: String,
}

impl Genesis {
    pub(crate) fn new(installation: &str, earlier: i64, last_id: i64, digest: String) -> Self {
        let mut hash = FieldHash::new("tollgate genesis 1");
        hash.text(installation).int(earlier).int(last_id).text(&digest);
        let hash = hash.finish();
        Self { earlier, last_id, digest, hash }
    }
}

/// Changes that were removed to keep a bound: they stand for a part of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedLinks {
    /// The number of the first of them.
    pub first: i64,
    /// The number of the last of them.
    pub last: i64,
    /// The hash of the change before them.
    pub previous_hash: String,
    /// The hash of the last of them.
    pub hash: String,
    /// Signed by the node that removed them.
    #[serde(flatten)]
    pub signed: Signed,
}

impl RemovedLinks {
    pub(crate) fn statement(&self, installation: &str) -> Vec<u8> {
        let mut hash = FieldHash::new("tollgate removed 1");
        hash.text(installation).int(self.first).int(self.last);
        hash.text(&self.previous_hash).text(&self.hash);
        hash.finish().into_bytes()
    }
}

/// The end of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainHead {
    /// The number of the newest change; 0 if there is none.
    pub number: i64,
    /// Its hash.
    pub hash: String,
    /// How many records from before the chain are left.
    pub earlier_left: i64,
    /// Signed by the node that made the newest change.
    #[serde(flatten)]
    pub signed: Signed,
}

impl ChainHead {
    pub(crate) fn statement(&self, installation: &str) -> Vec<u8> {
        let mut hash = FieldHash::new("tollgate head 1");
        hash.text(installation).int(self.number).text(&self.hash).int(self.earlier_left);
        hash.finish().into_bytes()
    }
}

/// One line of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Link {
    /// The beginning.
    Start {
        /// [`EXPORT_FORMAT`].
        format: u32,
        /// Which database this is.
        installation: String,
        /// What was there before the chain.
        genesis: Genesis,
    },
    /// A record from before the chain.
    Earlier(ChainedChange),
    /// A change.
    Change(ChainedChange),
    /// Changes that were removed.
    Removed(RemovedLinks),
    /// The end.
    Head(ChainHead),
}

/// A place in the chain, for pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainPlace {
    /// The start.
    Start,
    /// After the record with this number in the log, among those from before the chain.
    Earlier(i64),
    /// After the change with this number in the chain.
    Change(i64),
}

impl ChainPlace {
    /// The place as a cursor.
    pub fn cursor(self) -> String {
        match self {
            Self::Start => String::new(),
            Self::Earlier(id) => format!("e{id}"),
            Self::Change(number) => number.to_string(),
        }
    }

    /// The place of a cursor.
    pub fn parse(cursor: &str) -> Option<Self> {
        let number = |text: &str| text.parse::<i64>().ok().filter(|number| *number >= 0);
        match cursor.strip_prefix('e') {
            Some(id) => number(id).map(Self::Earlier),
            None => number(cursor).map(Self::Change),
        }
    }
}

/// A part of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainPage {
    /// Its links in order. The first page begins with [`Link::Start`], the last one ends with [`Link::Head`].
    pub links: Vec<Link>,
    /// Where the next page begins.
    pub next: Option<ChainPlace>,
}

/// SHA-256 over fields, each with its length, so that none can pass for a part of another.
struct FieldHash(Sha256);

impl FieldHash {
    fn new(purpose: &str) -> Self {
        let mut hash = Self(Sha256::new());
        hash.text(purpose);
        hash
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.0.update((text.len() as u64).to_be_bytes());
        self.0.update(text.as_bytes());
        self
    }

    fn int(&mut self, number: i64) -> &mut Self {
        self.0.update(number.to_be_bytes());
        self
    }

    /// One byte says whether there is a text.
    fn optional(&mut self, text: Option<&str>) -> &mut Self {
        self.0.update([u8::from(text.is_some())]);
        if let Some(text) = text {
            self.text(text);
        }
        self
    }

    fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}
