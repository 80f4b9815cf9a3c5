//! What is kept of changes and decisions, and how it is asked for.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Kind, Millis, Revision};

/// A part of a long list: so many entries after a place. Lists of entries ascend by id; lists of
/// records go from the newest to the oldest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The last place of the page before: an id of an entry, or the number of a record.
    pub after: Option<String>,
    /// At most so many.
    pub limit: u32,
}

/// Which entries of a kind are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryFilter {
    /// Those of this tenant's admins.
    pub tenant: Option<String>,
    /// Those whose id begins with this.
    pub prefix: Option<String>,
    /// Clients of this tier.
    pub tier: Option<String>,
    /// Virtual keys of this owner.
    pub owner: Option<String>,
    /// Virtual keys of this name.
    pub name: Option<String>,
}

/// A change as the audit log has it.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangeRecord {
    /// Its number; they ascend.
    pub id: i64,
    /// When.
    pub at: Millis,
    /// Who: the name of a token.
    pub actor: String,
    /// The id of the token.
    pub token_id: String,
    /// Such as `rule.create`.
    pub action: String,
    /// The kind of the entry.
    pub kind: Kind,
    /// The id of the entry.
    pub entry_id: String,
    /// The tenant that the entry belongs to.
    pub tenant: Option<String>,
    /// The version it got.
    pub version: i64,
    /// The revision that the set got.
    pub revision: Revision,
    /// What it was.
    pub before: Option<Value>,
    /// What it is.
    pub after: Option<Value>,
    /// The id that the admin request had.
    pub request_id: Option<String>,
    /// Where it came from.
    pub address: Option<String>,
}

/// Which changes are wanted: all that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangeFilter {
    /// Of this kind of entry.
    pub kind: Option<Kind>,
    /// Of this entry.
    pub entry_id: Option<String>,
    /// By this actor.
    pub actor: Option<String>,
    /// Of this tenant's entries.
    pub tenant: Option<String>,
    /// Under this request id.
    pub request_id: Option<String>,
    /// At this time or later.
    pub from: Option<Millis>,
    /// Before this time.
    pub until: Option<Millis>,
}

/// A decision, as the audit log keeps it. Nodes of neighbouring versions send it to each other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DecisionRecord {
    /// Unique, so that a record that is sent twice is stored once: 16 bytes in hex.
    pub event_id: String,
    /// When.
    pub at: Millis,
    /// `allowed`, `rejected`, `throttled`, `queued` or `would_deny`: allowed, and refused had all rules been enforced.
    pub action: String,
    /// Such as `HIT_USER_MODEL_LIMIT`.
    pub reason: String,
    /// Who, in one word: the first present of API key (hashed), user, address, tenant.
    pub client_id: String,
    /// The rule that decided.
    pub rule_id: Option<String>,
    /// Its scope.
    pub scope: Option<String>,
    /// How much of the deciding limit was used.
    pub request_count: Option<i64>,
    /// The deciding limit.
    pub limit_count: Option<i64>,
    /// When it would have passed.
    pub retry_after_ms: Option<i64>,
    /// The window of the deciding limit; 0 where it limits what runs at the same time.
    pub window_seconds: Option<i64>,
    /// The rules that would have refused it, had they been enforced.
    pub would_deny: Vec<String>,
    /// What it asked for.
    pub endpoint: Option<String>,
    /// How.
    pub method: Option<String>,
    /// From where.
    pub ip_address: Option<String>,
    /// The user.
    pub user_id: Option<String>,
    /// The tenant.
    pub tenant_id: Option<String>,
    /// The API key, hashed.
    pub api_key_id: Option<String>,
    /// The model.
    pub model_id: Option<String>,
    /// The id that the request had.
    pub request_id: Option<String>,
    /// What it cost.
    pub cost: i64,
    /// The node that decided.
    pub node: String,
    /// The revision of the rule set that decided.
    pub revision: Revision,
    /// How many decisions of one rule, client and reason within an interval this record stands for; absent where it is
    /// one decision.
    pub repeat_count: Option<i64>,
    /// How many of those are also kept in full.
    pub kept_count: Option<i64>,
    /// When the first of those was made; `at` is the last.
    pub first_at: Option<Millis>,
    /// The caller that asked for the decision, for its share of the log: the digest of its token or certificate, else its
    /// address (IPv6: its /64). Empty where the node itself identified the client.
    pub caller: String,
}

/// What a record takes besides its texts: numbers, headers of rows, and entries of 15 indexes.
pub(crate) const RECORD_OVERHEAD_BYTES: i64 = 896;

/// Texts are in the row, in indexes, and in what a page leaves empty.
const TEXT_FACTOR: usize = 3;

impl DecisionRecord {
    /// What the record takes on disk, indexes included: an estimate from above.
    pub fn estimated_bytes(&self) -> i64 {
        let needed =
            [&self.event_id, &self.action, &self.reason, &self.client_id, &self.node, &self.caller];
        let optional = [
            &self.rule_id,
            &self.scope,
            &self.endpoint,
            &self.method,
            &self.ip_address,
            &self.user_id,
            &self.tenant_id,
            &self.api_key_id,
            &self.model_id,
            &self.request_id,
        ];
        let texts = needed.iter().map(|text| text.len()).sum::<usize>()
            + optional.iter().filter_map(|text| text.as_ref()).map(String::len).sum::<usize>()
            + self.would_deny.iter().map(|rule| rule.len() + 3).sum::<usize>();
        RECORD_OVERHEAD_BYTES
            .saturating_add(i64::try_from(TEXT_FACTOR.saturating_mul(texts)).unwrap_or(i64::MAX))
    }
}

/// A decision with its number in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDecision {
    /// Its number; they ascend as they were written.
    pub id: i64,
    /// The decision.
    pub record: DecisionRecord,
}

/// Which decisions are wanted: all that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DecisionFilter {
    /// `allowed`, `rejected`, `throttled`, `queued` or `would_deny`.
    pub action: Option<String>,
    /// Of this client.
    pub client_id: Option<String>,
    /// By this rule.
    pub rule_id: Option<String>,
    /// Of this user.
    pub user_id: Option<String>,
    /// Of this tenant.
    pub tenant_id: Option<String>,
    /// Of this API key, by its id.
    pub api_key_id: Option<String>,
    /// From this address.
    pub ip_address: Option<String>,
    /// By a rule of this scope.
    pub scope: Option<String>,
    /// For this model.
    pub model_id: Option<String>,
    /// For this endpoint.
    pub endpoint: Option<String>,
    /// For this reason.
    pub reason: Option<String>,
    /// Under this request id.
    pub request_id: Option<String>,
    /// At this time or later.
    pub from: Option<Millis>,
    /// Before this time.
    pub until: Option<Millis>,
    /// Written after the record with this number.
    pub written_after: Option<i64>,
}

/// A place in a list of decisions by time: that of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecisionPlace {
    /// When it was made.
    pub at: Millis,
    /// Its number in the log.
    pub id: i64,
}

/// The change that made the version of a rule that was in force at a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleVersionAt {
    /// The version.
    pub version: i64,
    /// The number of the change in the log of changes.
    pub change_id: i64,
    /// When it was made.
    pub at: Millis,
    /// By whom.
    pub actor: String,
}
