//! The rule file as typed: every value with its place, nothing checked but its type.

use crate::candidate::RawCandidate;
use crate::envoy::RawEnvoy;
use crate::node::Spot;
use crate::problem::Report;
use crate::schedule::RawWindow;
use crate::{Known, Problems, read};

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct At<T> {
    pub(crate) at: Spot,
    pub(crate) value: T,
}

pub(crate) type Text = Option<At<String>>;
pub(crate) type Int = Option<At<i128>>;
pub(crate) type Texts = Option<At<Vec<At<String>>>>;

/// A rule file as typed: read, not yet checked.
#[derive(Debug, Clone, Default)]
pub struct RuleFile {
    pub(crate) source: String,
    pub(crate) rules: Vec<RawRule>,
    pub(crate) allow_list: Vec<RawEntry>,
    pub(crate) deny_list: Vec<RawEntry>,
    /// Absent: any tier name goes.
    pub(crate) tiers: Option<Vec<RawTier>>,
    pub(crate) client_tiers: Vec<RawClientTier>,
    pub(crate) grants: Vec<RawGrant>,
    pub(crate) default: RawDefault,
    pub(crate) no_match: Text,
    pub(crate) digest: u64,
}

impl RuleFile {
    /// Reads a rule file (YAML or JSON); `source` names it in problems.
    pub fn parse(text: &str, source: &str) -> Result<Self, Problems> {
        let mut report = Report::new(source);
        let file = read::read_file(text, source, &mut report);
        match (file, report.finish()) {
            (Some(file), problems) if problems.is_empty() => Ok(file),
            (_, problems) => Err(Problems(problems)),
        }
    }
}

impl RuleFile {
    /// Adds all that another file holds. Its default rule and its `no_match` take the place of this one's where it
    /// states them; lists of tiers are joined.
    pub fn append(&mut self, other: Self) {
        self.rules.extend(other.rules);
        self.allow_list.extend(other.allow_list);
        self.deny_list.extend(other.deny_list);
        self.client_tiers.extend(other.client_tiers);
        self.grants.extend(other.grants);
        if let Some(tiers) = other.tiers {
            self.tiers.get_or_insert_default().extend(tiers);
        }
        if !matches!(other.default, RawDefault::Builtin) {
            self.default = other.default;
        }
        self.no_match = other.no_match.or(self.no_match.take());
        self.digest = self.digest.rotate_left(1) ^ other.digest;
    }
}

/// What `default:` says.
#[derive(Debug, Clone, Default)]
pub(crate) enum RawDefault {
    /// Nothing: the built-in default.
    #[default]
    Builtin,
    /// No default rule.
    Off,
    /// The built-in default with these parts replaced.
    Changed(Box<RawRule>),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct RawRule {
    pub(crate) at: Spot,
    /// The id, or `#n`: how problems name the rule.
    pub(crate) label: String,
    /// Some value has the wrong type; it has been reported, and what depends on it is not checked.
    pub(crate) is_broken: bool,
    pub(crate) rule_id: Text,
    pub(crate) name: Text,
    pub(crate) description: Text,
    pub(crate) scope: Text,
    pub(crate) priority: Int,
    pub(crate) is_active: Option<At<bool>>,
    pub(crate) identifier_type: Text,
    pub(crate) key_by: Texts,
    pub(crate) limit: RawLimit,
    pub(crate) limits: Option<At<Vec<RawLimit>>>,
    pub(crate) unit: Text,
    pub(crate) currency: Text,
    pub(crate) budget_mode: Text,
    pub(crate) slot_ttl: Text,
    pub(crate) applies_to: RawApplies,
    pub(crate) costs: Vec<RawCost>,
    pub(crate) soft_limit: Option<At<f64>>,
    pub(crate) action: Text,
    pub(crate) max_delay_ms: Int,
    pub(crate) overrides: Texts,
    pub(crate) quota_mode: Option<At<bool>>,
    pub(crate) envoy: Option<Box<RawEnvoy>>,
    pub(crate) consistency: Text,
    pub(crate) max_overshoot: Option<At<f64>>,
    pub(crate) store: Text,
    pub(crate) on_store_failure: Text,
    pub(crate) starts_at: Text,
    pub(crate) ends_at: Text,
    pub(crate) active_when: Option<At<Vec<RawWindow>>>,
    pub(crate) candidate: Option<Box<RawCandidate>>,
    /// Which of its counters the rule uses.
    pub(crate) generation: Int,
}

/// A number, or `unlimited`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RawQuota {
    Number(i128),
    Unlimited,
}

/// A tier and its quota.
pub(crate) type TierQuota = (String, At<RawQuota>);

#[derive(Debug, Clone, Default)]
pub(crate) struct RawLimit {
    pub(crate) at: Spot,
    /// What its fields begin with in problems: nothing, or `limits[n].`.
    pub(crate) prefix: String,
    pub(crate) limit: Option<At<RawQuota>>,
    pub(crate) window_seconds: Int,
    pub(crate) window_ms: Int,
    pub(crate) window: Text,
    pub(crate) calendar: Text,
    pub(crate) timezone: Text,
    pub(crate) anchor_day: Int,
    pub(crate) algorithm: Text,
    pub(crate) burst: Int,
    pub(crate) tier_limits: Option<At<Vec<TierQuota>>>,
    /// Of an entry of `limits`; a rule has its own.
    pub(crate) active_when: Option<At<Vec<RawWindow>>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct RawApplies {
    /// By the attribute that they constrain.
    pub(crate) lists: Vec<(Known, At<Vec<At<String>>>)>,
    pub(crate) attributes: Vec<(String, At<Vec<At<String>>>)>,
}

#[derive(Debug, Clone)]
pub(crate) struct RawCost {
    pub(crate) at: Spot,
    pub(crate) endpoint: Text,
    pub(crate) method: Text,
    pub(crate) cost: Int,
}

#[derive(Debug, Clone)]
pub(crate) struct RawEntry {
    /// Its path in the file, such as `deny_list[3]`.
    pub(crate) path: String,
    pub(crate) at: Spot,
    pub(crate) kind: Text,
    pub(crate) value: Text,
    pub(crate) reason: Text,
    pub(crate) expires_at: Text,
}

#[derive(Debug, Clone)]
pub(crate) struct RawTier {
    pub(crate) path: String,
    pub(crate) at: Spot,
    pub(crate) name: Text,
    pub(crate) is_default: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct RawClientTier {
    pub(crate) path: String,
    pub(crate) at: Spot,
    pub(crate) kind: Text,
    pub(crate) value: Text,
    pub(crate) tier: Text,
}

#[derive(Debug, Clone)]
pub(crate) struct RawGrant {
    pub(crate) path: String,
    pub(crate) at: Spot,
    pub(crate) rule_id: Text,
    pub(crate) kind: Text,
    pub(crate) value: Text,
    pub(crate) extra: Int,
    /// Whether there is one, be it of the wrong type.
    pub(crate) has_extra: bool,
    pub(crate) expires_at: Text,
    pub(crate) reason: Text,
}
