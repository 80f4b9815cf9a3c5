//! What the database holds.

use serde_json::Value;

/// Milliseconds since 1970.
pub type Millis = i64;

/// Counts the changes of the rule set; the same number names the same content.
pub type Revision = i64;

/// What an entry is. The order is the order in which they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A tier (`user_tiers`); its id is its name. Body: `{"name", "description"?, "is_default"?}`.
    Tier,
    /// A rule (`rate_limit_rules`); its id is its `rule_id`. Body: the rule as rule files have it.
    Rule,
    /// A line of the allow list (`rate_limit_whitelist`); its id is `<identifier_type>:<identifier>`.
    /// Body: `{"identifier_type", "identifier", "reason"?, "expires_at"?}`.
    Allow,
    /// A line of the deny list (`rate_limit_blacklist`), as [`Kind::Allow`].
    Deny,
    /// The tier of a client (`client_tiers`); its id is `<identifier_type>:<identifier>`. Body:
    /// `{"identifier_type", "identifier", "tier"}`. There may be millions.
    ClientTier,
    /// Extra quota of a client (`rate_limit_grants`). Body:
    /// `{"grant_id", "rule_id", "identifier_type", "identifier", "extra", "expires_at", "reason"?}`.
    Grant,
    /// A setting of the whole installation (`settings`): `default`, `no_match`, `enforcement`. The body is
    /// its value.
    Setting,
    /// A virtual key (`api_keys`). Body: `{"id", "name", "owner"?, "tenant_id"?, "tags"?, "models"?, "limits"?, "budget"?,
    /// "expires_at"?, "disabled_at"?, "digest" (SHA-256 in hex), "previous"? {"digest", "until"}, "managed_by",
    /// "labels_only"?}`. There may be hundreds of thousands.
    Key,
    /// An admin token (`admin_tokens`); not part of the rule set. Body: `{"token_id", "name", "role",
    /// "tenant_id"?, "digest" (SHA-256 in hex), "expires_at"?, "revoked_at"?}`.
    Token,
    /// What a client has used: not kept here, but a reset of it is recorded.
    Usage,
}

impl Kind {
    /// Every kind that has a table.
    pub const ALL: [Self; 9] = [
        Self::Tier,
        Self::Rule,
        Self::Allow,
        Self::Deny,
        Self::ClientTier,
        Self::Grant,
        Self::Setting,
        Self::Key,
        Self::Token,
    ];

    /// The name in the audit log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tier => "tier",
            Self::Rule => "rule",
            Self::Allow => "whitelist",
            Self::Deny => "blacklist",
            Self::ClientTier => "client_tier",
            Self::Grant => "grant",
            Self::Setting => "setting",
            Self::Key => "key",
            Self::Token => "token",
            Self::Usage => "usage",
        }
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::Usage]).find(|kind| kind.name() == name)
    }

    /// Whether a change of it is a change of the rule set, and makes a new revision.
    pub const fn is_in_set(self) -> bool {
        !matches!(self, Self::Token | Self::Usage)
    }

    /// Whether there may be so many that they are loaded and carried to nodes in buckets.
    pub const fn is_in_buckets(self) -> bool {
        matches!(self, Self::ClientTier | Self::Key)
    }
}

/// When, and by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// When, by the database's clock.
    pub at: Millis,
    /// Who: the name of the token.
    pub by: String,
}

/// Something in the database.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Unique among its kind.
    pub id: String,
    /// Its content, see [`Kind`].
    pub body: Value,
    /// Counts its changes, from 1. A rule that was deleted and made again goes on counting.
    pub version: i64,
    /// The tenant whose admins it belongs to; `None`: the installation's.
    pub tenant: Option<String>,
    /// Made when, and by whom.
    pub created: Stamp,
    /// Last changed when, and by whom.
    pub updated: Stamp,
}

/// Which version a change expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Whatever there is, or nothing.
    Any,
    /// Nothing.
    Absent,
    /// Something, of any version.
    Present,
    /// This one.
    Version(i64),
}

/// What the audit log keeps of a write. API keys are hashed before they get here.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangeNote {
    /// Such as `rule.create`, `rule.rollback`, `whitelist.delete`, `token.revoke`.
    pub action: &'static str,
    /// What the entry was; `None`: nothing.
    pub before: Option<Value>,
    /// What it is; `None`: nothing.
    pub after: Option<Value>,
}

/// One write of a change.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// What is written.
    pub kind: Kind,
    /// Which one.
    pub id: String,
    /// Its new content; `None` deletes it.
    pub body: Option<Value>,
    /// The tenant whose admins it belongs to.
    pub tenant: Option<String>,
    /// The version that must be there.
    pub expected: Expected,
    /// What the audit log says.
    pub note: ChangeNote,
}

/// Who changes something.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Actor {
    /// The name of the token.
    pub name: String,
    /// The id of the token.
    pub token_id: String,
    /// The id that the admin request had.
    pub request_id: Option<String>,
    /// Where it came from.
    pub address: Option<String>,
    /// The tenant whose admin it is; `None`: one of the installation's.
    pub tenant: Option<String>,
}

/// A change that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The revision of the set with it.
    pub revision: Revision,
    /// When, by the database's clock.
    pub at: Millis,
    /// The version of every written entry, in order; that of a deleted one is its last.
    pub versions: Vec<i64>,
}

/// The tier of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTier {
    /// `api_key`, `user_id` or `tenant_id`.
    pub identifier_type: String,
    /// The client.
    pub identifier: String,
    /// Its tier.
    pub tier: String,
}

/// Clients' tiers come in so many buckets, each of which is carried to nodes as one.
pub const TIER_BUCKETS: u16 = 256;

/// The bucket of a client. It is written to databases: it must not change (FNV-1a, 64 bits).
pub fn tier_bucket(identifier_type: &str, identifier: &str) -> u16 {
    let bytes = identifier_type.bytes().chain([0]).chain(identifier.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The high bits are the better ones.
    (hash >> 56) as u16 % TIER_BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes look clients up by the policy's function.
    #[test]
    fn buckets_are_those_of_the_policy() {
        use tollgate_policy::{ListKind, client_bucket};
        for number in 0..1_000 {
            let name = format!("client-{number}");
            for kind in [ListKind::ApiKey, ListKind::UserId, ListKind::TenantId] {
                assert_eq!(tier_bucket(kind.name(), &name), client_bucket(kind, &name));
            }
        }
    }
}

/// The rule set as the database has it, in one consistent view.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Loaded {
    /// Which database this is: made once, at its first migration.
    pub installation: String,
    /// The revision.
    pub revision: Revision,
    /// Every entry of the set but clients' tiers and virtual keys, by kind and id.
    pub entries: Vec<Entry>,
    /// The buckets that changed after the revision that was asked for, each complete and ordered;
    /// all that are not empty if none was given.
    pub client_tiers: Vec<(u16, Vec<ClientTier>)>,
    /// The bodies of virtual keys, by bucket, in the same way.
    pub keys: Vec<(u16, Vec<Value>)>,
}
