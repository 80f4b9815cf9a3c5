//! A rule, checked and ready.

use tollgate_core::{Limit, Nanos};

use crate::compile_rule::RULE_PREFIX;
use crate::envoy::EnvoyOptions;
use crate::grants::RuleGrants;
use crate::matcher::{Costs, Matcher};
use crate::prices::{Currency, format_nanos};
use crate::{Candidate, KeyPlaces, Known, Schedule};

/// What a rule counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Unit {
    /// The cost of a request, 1 unless stated.
    #[default]
    Requests,
    /// The tokens of a request.
    Tokens,
    /// The cost of a request.
    Cost,
    /// Requests under way at the same time.
    Concurrency,
    /// The input tokens of a request, cached ones included.
    InputTokens,
    /// The output tokens of a request.
    OutputTokens,
    /// The input tokens of a request that were read from a cache.
    CachedTokens,
    /// The money that a request costs, in 1e-9 of the rule's currency.
    Money,
}

impl Unit {
    /// Whether it counts what a model used: tokens of some kind, or their price.
    pub const fn counts_usage(self) -> bool {
        match self {
            Self::Tokens
            | Self::InputTokens
            | Self::OutputTokens
            | Self::CachedTokens
            | Self::Money => true,
            Self::Requests | Self::Cost | Self::Concurrency => false,
        }
    }
}

/// What happens when a limit is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Action {
    /// The request is refused.
    #[default]
    Reject,
    /// The request waits, up to `max_delay`.
    Throttle,
    /// The request is stored and sent later.
    Queue,
    /// It is only reported.
    LogOnly,
}

/// Whose counter a request meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum IdentifierType {
    /// One counter per API key.
    ApiKey,
    /// One counter per user.
    UserId,
    /// One counter per tenant.
    TenantId,
    /// One counter per address.
    Ip,
    /// One counter per client: the first present of API key, user and address.
    Client,
    /// One counter in all.
    #[default]
    Global,
    /// One counter per combination of the `key_by` attributes.
    Composite,
}

/// How exact a shared counter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Consistency {
    /// Every decision is made on the shared counter.
    #[default]
    Strict,
    /// Nodes spend chunks that they took ahead.
    Leased {
        /// How much may be out on lease, in millionths of the quota.
        max_overshoot_ppm: u32,
    },
    /// Every node counts alone.
    Local,
}

/// What a rule does when its store does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// The node decides on its share of the quota.
    Local,
    /// Requests pass.
    Open,
    /// Requests are refused.
    Closed,
}

/// How firmly a budget in money holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BudgetMode {
    /// Requests are reserved by their likely usage. What they use beyond it is charged above the limit.
    #[default]
    Soft,
    /// Requests are reserved by the most that they can use, and nothing passes that cannot be counted.
    Hard,
}

/// What happens to a request that no rule applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NoMatch {
    /// It passes.
    #[default]
    Allow,
    /// It is refused.
    Deny,
}

macro_rules! names {
    ($type:ident { $($variant:ident => $name:literal),+ $(,)? }) => {
        impl $type {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in rule files.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The value of this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == name)
            }
        }
    };
}

names!(Unit {
    Requests => "requests",
    Tokens => "tokens",
    Cost => "cost",
    Concurrency => "concurrency",
    InputTokens => "input_tokens",
    OutputTokens => "output_tokens",
    CachedTokens => "cached_tokens",
    Money => "money",
});
names!(Action {
    Reject => "reject",
    Throttle => "throttle",
    Queue => "queue",
    LogOnly => "log_only",
});
names!(IdentifierType {
    ApiKey => "api_key",
    UserId => "user_id",
    TenantId => "tenant_id",
    Ip => "ip",
    Client => "client",
    Global => "global",
    Composite => "composite",
});
names!(OnStoreFailure { Local => "local", Open => "open", Closed => "closed" });
names!(BudgetMode { Soft => "soft", Hard => "hard" });
names!(NoMatch { Allow => "allow", Deny => "deny" });

/// One part of what names a rule's counter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeyPart {
    /// A known attribute.
    Known(Known),
    /// A further attribute, or one captured from the path.
    Named(String),
    /// The kind and the value of the first present of API key, user and address.
    Client,
}

impl KeyPart {
    /// The name in `key_by`.
    pub fn name(&self) -> &str {
        match self {
            Self::Known(known) => known.name(),
            Self::Named(name) => name,
            Self::Client => "client",
        }
    }

    /// True where the part says who is calling.
    pub const fn is_identity(&self) -> bool {
        match self {
            Self::Known(known) => known.is_identity(),
            Self::Named(_) => false,
            Self::Client => true,
        }
    }
}

/// How much, for one tier.
#[derive(Debug, Clone)]
pub enum Quota {
    /// As much as one likes.
    Unlimited,
    /// This much; a quota of 0 suspends.
    Limited(Limit),
}

impl Quota {
    /// The limit, unless unlimited.
    pub const fn limit(&self) -> Option<&Limit> {
        match self {
            Self::Unlimited => None,
            Self::Limited(limit) => Some(limit),
        }
    }
}

/// One limit of a rule, for every tier.
#[derive(Debug, Clone)]
pub struct RuleLimit {
    /// Algorithm and window, such as `token_bucket+60s` or `fixed_window+month@Europe/Berlin#15`.
    /// It names the counter and does not depend on the quota, so changing a limit keeps what was
    /// counted.
    pub tag: String,
    /// A hash of rule id and tag, to begin the hash of a counter's key with.
    pub salt: u128,
    /// The length of the window, rounded up; nominal for a calendar, 0 for concurrency.
    pub window_seconds: u64,
    /// The quota of tiers that have none of their own; `None`: those are not limited by this one.
    pub base: Option<Quota>,
    /// The quotas of tiers that have one.
    pub tiers: Vec<(String, Quota)>,
    /// When it holds; `None`: always.
    pub active_when: Option<Box<Schedule>>,
    /// Whether it belongs to the candidate of its rule.
    pub is_candidate: bool,
}

impl RuleLimit {
    /// Whether it holds at this instant. Its counter keeps what was counted while it does not.
    #[inline]
    pub fn is_active(&self, now: Nanos) -> bool {
        self.active_when.as_ref().is_none_or(|schedule| schedule.is_active(now))
    }

    /// The quota of a request of this tier. `None`: this limit does not apply to it.
    #[inline]
    pub fn for_tier(&self, tier: Option<&str>) -> Option<&Quota> {
        tier.and_then(|tier| self.tiers.iter().find(|(name, _)| name == tier))
            .map(|(_, quota)| quota)
            .or(self.base.as_ref())
    }
}

/// A rule, checked and ready.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Its unique name.
    pub id: String,
    /// A name for people.
    pub name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// Rules that share a scope are alternatives to each other.
    pub scope: String,
    /// `HIT_<SCOPE>_LIMIT`: the reason of a refusal by this rule.
    pub reason: String,
    /// Decides between equally specific rules of a scope; higher wins.
    pub priority: i64,
    /// What it counts.
    pub unit: Unit,
    /// The currency of a rule that counts money.
    pub currency: Option<Currency>,
    /// How firmly a rule that counts money holds.
    pub budget_mode: BudgetMode,
    /// What happens when a limit is exceeded.
    pub action: Action,
    /// How long a throttled request may wait.
    pub max_delay: Option<Nanos>,
    /// From this share of a limit on (in millionths) a decision carries a warning.
    pub soft_limit_ppm: Option<u32>,
    /// Its limits, at least one; those of its candidate come last.
    pub limits: Vec<RuleLimit>,
    /// Other limits that are tried next to those in force.
    pub candidate: Option<Box<Candidate>>,
    /// What names its counter; empty: one counter in all.
    pub key: Vec<KeyPart>,
    /// What the places in that key mean to a store.
    pub key_places: KeyPlaces,
    /// Whose counter it is, as the file says it.
    pub identifier: IdentifierType,
    /// Whether it belongs to the quota group, which refuses only when every member is exhausted.
    pub quota_mode: bool,
    /// How it answers Envoy, where that is said.
    pub envoy: Option<Box<EnvoyOptions>>,
    /// How exact the shared counter is.
    pub consistency: Consistency,
    /// What happens when the store does not answer; `None`: decided by client type.
    pub on_store_failure: Option<OnStoreFailure>,
    /// Which store it counts in; `None`: the only one.
    pub store: Option<String>,
    /// It applies from this instant on.
    pub starts_at: Option<Nanos>,
    /// It applies before this instant.
    pub ends_at: Option<Nanos>,
    /// When it applies between these; `None`: always.
    pub active_when: Option<Box<Schedule>>,
    /// The scopes it replaces where it applies.
    pub overrides: Vec<String>,
    /// True for the system default.
    pub is_default: bool,
    /// Its place among the standard scopes, if its scope is one.
    pub standard_scope_rank: Option<u8>,
    pub(crate) matcher: Matcher,
    pub(crate) costs: Costs,
    pub(crate) grants: Option<Box<RuleGrants>>,
}

impl Rule {
    /// Whether this rule, where it applies, replaces the other: its scope, or it alone.
    pub fn replaces(&self, other: &Self) -> bool {
        self.overrides.iter().any(|named| match named.strip_prefix(RULE_PREFIX) {
            Some(id) => id == other.id,
            None => *named == other.scope,
        })
    }

    /// True where the counter belongs to someone, not to all.
    pub fn is_keyed_by_identity(&self) -> bool {
        self.key.iter().any(KeyPart::is_identity)
    }

    /// True for a rule that a tenant's own administrator made: it comes on top of what the
    /// installation says, and takes nothing of that away.
    pub fn is_of_tenant(&self) -> bool {
        self.scope.starts_with(TENANT_SCOPE_PREFIX)
    }

    /// Whether the system default yields to this enforcing rule where it applies.
    pub(crate) fn displaces_default(&self, default: &Self) -> bool {
        (self.is_keyed_by_identity() || self.overrides.contains(&default.scope))
            && !self.is_of_tenant()
    }

    /// A figure of this rule as people read it: money as a decimal.
    pub fn figure(&self, amount: u64) -> String {
        if self.unit == Unit::Money { format_nanos(amount) } else { amount.to_string() }
    }

    /// True for a budget that must not be exceeded.
    pub fn is_hard_budget(&self) -> bool {
        self.budget_mode == BudgetMode::Hard
    }

    /// True where the rule is only reported.
    pub fn is_log_only(&self) -> bool {
        self.action == Action::LogOnly
    }
}

/// What the scopes of rules begin with that administrators of tenants make.
pub const TENANT_SCOPE_PREFIX: &str = "tenant:";

/// The standard scopes, in the order in which they give `effectiveLimit`.
pub const STANDARD_SCOPES: [&str; 7] = [
    "API_KEY_MODEL",
    "TENANT_MODEL_TIER",
    "TENANT_MODEL",
    "TENANT_GLOBAL",
    "USER_MODEL",
    "GLOBAL_MODEL",
    "QOS",
];
