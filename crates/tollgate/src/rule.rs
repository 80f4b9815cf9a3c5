//! Rules in Rust types.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::Quota;

/// What a rule counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Requests,
    Tokens,
    Concurrency,
}

/// One limit of a rule: its quota, and those of tiers.
#[derive(Debug, Clone)]
struct RuleLimit {
    quota: Quota,
    tiers: Vec<(String, Option<Quota>)>,
}

/// One rule of a [`Gate`](crate::Gate): which attributes name its counter, and how much passes. Every rule of a gate applies,
/// and a request is charged to all of them or to none.
///
/// ```
/// use tollgate::{Quota, Rule};
///
/// let per_user = Rule::per("user_id").quota(Quota::per_second(10)).quota(Quota::per_day(10_000));
/// let per_tenant = Rule::per("tenant_id").quota(Quota::per_hour(100)).tier("pro", Quota::per_hour(5_000));
/// let tokens = Rule::per("user_id").tokens(Quota::per_minute(50_000));
/// # let _ = (per_user, per_tenant, tokens);
/// ```
#[derive(Debug, Clone)]
pub struct Rule {
    id: Option<String>,
    key: Vec<String>,
    unit: Unit,
    limits: Vec<RuleLimit>,
    slots: Option<u64>,
    endpoints: Vec<String>,
    methods: Vec<String>,
    /// What the builder was asked that no rule can be.
    problem: Option<&'static str>,
}

impl Rule {
    fn by(key: Vec<String>) -> Self {
        Self {
            id: None,
            key,
            unit: Unit::Requests,
            limits: Vec::new(),
            slots: None,
            endpoints: Vec::new(),
            methods: Vec::new(),
            problem: None,
        }
    }

    /// A counter for each value of this attribute: `user_id`, `tenant_id`, `api_key`, `ip`, `model_id`, any other name, or
    /// `client` for the first present of API key, user and address.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::per("ip").quota(Quota::per_day(1))).build()?;
    /// assert!(gate.check_now(&Client::new().ip("192.0.2.7"))?.is_allowed());
    /// assert!(!gate.check_now(&Client::new().ip("192.0.2.7"))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn per(attribute: impl Into<String>) -> Self {
        Self::by(vec![attribute.into()])
    }

    /// A counter for each combination of values of these attributes.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let rule = Rule::per_each(["user_id", "model_id"]).quota(Quota::per_day(1));
    /// let gate = Gate::builder().rule(rule).build()?;
    /// assert!(gate.check_now(&Client::user("ann").model("small"))?.is_allowed());
    /// assert!(gate.check_now(&Client::user("ann").model("large"))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn per_each(attributes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::by(attributes.into_iter().map(Into::into).collect())
    }

    /// One counter for all requests.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().quota(Quota::per_day(1))).build()?;
    /// assert!(gate.check_now(&Client::user("ann"))?.is_allowed());
    /// assert!(!gate.check_now(&Client::user("bob"))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn global() -> Self {
        Self::by(Vec::new())
    }

    /// The name of the rule in verdicts, and of its counters in a shared store. Without it the name follows from what the rule
    /// counts: `user_id-requests-1s`.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().id("all").quota(Quota::per_day(1))).build()?;
    /// assert_eq!(gate.peek_now(&Client::new())?.rule_id(), Some("all"));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// How many requests pass. Called again, it adds another window: all of them hold.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let rule = Rule::per("user_id").quota(Quota::per_second(5)).quota(Quota::per_day(2));
    /// let gate = Gate::builder().rule(rule).build()?;
    /// assert!(!gate.check_now(&Client::user("ann").cost(3))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn quota(self, quota: Quota) -> Self {
        self.limited(Unit::Requests, quota)
    }

    /// How many tokens pass. Requests state theirs with [`Client::tokens`](crate::Client::tokens).
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::per("user_id").tokens(Quota::per_day(100))).build()?;
    /// assert!(gate.check_now(&Client::user("ann").tokens(60))?.is_allowed());
    /// assert!(!gate.check_now(&Client::user("ann").tokens(60))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn tokens(self, quota: Quota) -> Self {
        self.limited(Unit::Tokens, quota)
    }

    /// How many requests may be under way at once. They hold a slot from [`Gate::reserve`](crate::Gate::reserve) until
    /// their [`Hold`](crate::Hold) ends; a slot that is not renewed expires after a minute. [`Gate::check`](crate::Gate::check) would
    /// never give a slot back: it is an error where such a rule applies.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Rule, Usage};
    /// let gate = Gate::builder().rule(Rule::per("user_id").concurrent(1)).build()?;
    /// let hold = gate.reserve_now(&Client::user("ann"))?;
    /// assert!(gate.reserve_now(&Client::user("ann")).is_err());
    /// hold.settle_now(Usage::as_estimated())?;
    /// assert!(gate.reserve_now(&Client::user("ann")).is_ok());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn concurrent(mut self, slots: u64) -> Self {
        if !self.limits.is_empty() {
            self.problem = Some(ONE_UNIT);
        }
        (self.unit, self.slots) = (Unit::Concurrency, Some(slots));
        self
    }

    /// Another quota for clients of this tier, in place of the one before it, with the same window.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let rule = Rule::per("user_id").quota(Quota::per_day(1)).tier("pro", Quota::per_day(2));
    /// let gate = Gate::builder().rule(rule).build()?;
    /// assert!(gate.check_now(&Client::user("ann").tier("pro").cost(2))?.is_allowed());
    /// assert!(!gate.check_now(&Client::user("bob").tier("free").cost(2))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn tier(self, tier: impl Into<String>, quota: Quota) -> Self {
        self.tiered(tier.into(), Some(quota))
    }

    /// No limit for clients of this tier.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let rule = Rule::per("user_id").quota(Quota::per_day(0)).unlimited_tier("staff");
    /// let gate = Gate::builder().rule(rule).build()?;
    /// assert!(gate.check_now(&Client::user("ann").tier("staff"))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn unlimited_tier(self, tier: impl Into<String>) -> Self {
        self.tiered(tier.into(), None)
    }

    /// Applies to this endpoint only; called again, to any of them. `*` stands for one segment or a trailing rest, `{name}`
    /// for a segment that becomes an attribute.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let rule = Rule::global().quota(Quota::per_day(0)).endpoint("/reports/*");
    /// let gate = Gate::builder().rule(rule).build()?;
    /// assert!(!gate.check_now(&Client::new().endpoint("/reports/7"))?.is_allowed());
    /// assert!(gate.check_now(&Client::new().endpoint("/"))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn endpoint(mut self, pattern: impl Into<String>) -> Self {
        self.endpoints.push(pattern.into());
        self
    }

    /// Applies to this HTTP method only; called again, to any of them.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().quota(Quota::per_day(0)).method("POST")).build()?;
    /// assert!(gate.check_now(&Client::new().method("GET"))?.is_allowed());
    /// assert!(!gate.check_now(&Client::new().method("POST"))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn method(mut self, method: impl Into<String>) -> Self {
        self.methods.push(method.into());
        self
    }

    fn limited(mut self, unit: Unit, quota: Quota) -> Self {
        if (!self.limits.is_empty() || self.slots.is_some()) && self.unit != unit {
            self.problem = Some(ONE_UNIT);
        }
        self.unit = unit;
        self.limits.push(RuleLimit { quota, tiers: Vec::new() });
        self
    }

    fn tiered(mut self, tier: String, quota: Option<Quota>) -> Self {
        match self.limits.last_mut() {
            Some(limit) if quota.is_none_or(|quota| quota.counts_like(&limit.quota)) => {
                limit.tiers.push((tier, quota));
            }
            Some(_) => self.problem = Some(OTHER_WINDOW),
            None => self.problem = Some(TIER_FIRST),
        }
        self
    }

    /// The name that was given, or the one that follows from what the rule counts.
    pub(crate) fn name(&self) -> String {
        if let Some(id) = &self.id {
            return id.clone();
        }
        let key = if self.key.is_empty() { "global".to_owned() } else { self.key.join("+") };
        let mut name = format!("{key}-{}", self.unit.name());
        for limit in &self.limits {
            name.push('-');
            name.push_str(&short(limit.quota.window()));
        }
        name
    }

    /// The rule as a rule file has it, or why there can be no such rule.
    pub(crate) fn to_json(&self) -> Result<Value, String> {
        let name = self.name();
        if let Some(problem) = self.problem {
            return Err(format!("rule {name:?}: {problem}"));
        }
        if self.limits.is_empty() && self.slots.is_none() {
            return Err(format!("rule {name:?}: {NO_QUOTA}"));
        }
        let mut rule = Map::new();
        rule.insert("rule_id".to_owned(), json!(name));
        if !self.key.is_empty() {
            rule.insert("key_by".to_owned(), json!(self.key));
        }
        rule.insert("unit".to_owned(), json!(self.unit.name()));
        if let Some(slots) = self.slots {
            rule.insert("limit".to_owned(), json!(slots));
        } else {
            let limits: Result<Vec<_>, _> = self.limits.iter().map(RuleLimit::to_json).collect();
            let limits = limits.map_err(|problem| format!("rule {name:?}: {problem}"))?;
            rule.insert("limits".to_owned(), json!(limits));
        }
        let mut applies = Map::new();
        for (field, values) in [("endpoints", &self.endpoints), ("methods", &self.methods)] {
            if !values.is_empty() {
                applies.insert(field.to_owned(), json!(values));
            }
        }
        if !applies.is_empty() {
            rule.insert("applies_to".to_owned(), Value::Object(applies));
        }
        Ok(Value::Object(rule))
    }
}

const ONE_UNIT: &str = "a rule counts requests, tokens or slots: make a rule of each";
const OTHER_WINDOW: &str = "the quota of a tier has the window, the algorithm and the burst of the quota before it; make a rule of its own for another";
const TIER_FIRST: &str = "a tier follows the quota that it replaces";
const NO_QUOTA: &str = "has no quota; add quota(), tokens() or concurrent()";

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Concurrency => "concurrency",
        }
    }
}

impl RuleLimit {
    fn to_json(&self) -> Result<Value, String> {
        let window = self.quota.window();
        if !window.subsec_nanos().is_multiple_of(1_000_000) || window.is_zero() {
            return Err("a window of a rule is a whole number of milliseconds".to_owned());
        }
        let mut limit = Map::new();
        limit.insert("limit".to_owned(), json!(self.quota.effective_amount()));
        let millis = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        limit.insert("window_ms".to_owned(), json!(millis));
        limit.insert("algorithm".to_owned(), json!(self.quota.algorithm_name()));
        if let Some(burst) = self.quota.own_burst() {
            limit.insert("burst".to_owned(), json!(burst));
        }
        let tiers = self.tiers.iter().map(|(tier, quota)| {
            let amount =
                quota.map_or_else(|| json!("unlimited"), |it| json!(it.effective_amount()));
            (tier.clone(), amount)
        });
        let tiers: Map<String, Value> = tiers.collect();
        if !tiers.is_empty() {
            limit.insert("tier_limits".to_owned(), Value::Object(tiers));
        }
        Ok(Value::Object(limit))
    }
}

/// A window in the largest unit that it is a whole number of.
fn short(window: Duration) -> String {
    let millis = window.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let fitting =
        units.into_iter().find(|(unit, _)| millis >= *unit && millis.is_multiple_of(*unit));
    fitting.map_or_else(|| "0ms".to_owned(), |(unit, name)| format!("{}{name}", millis / unit))
}
