//! What a gate decides.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use tollgate_engine::{Decision, Reason};

/// What was decided about a request: it passes, or it does not. The figures are those of the limit that decided: of
/// several that refuse, the one with the longest wait; else the one with the least left.
///
/// ```
/// use tollgate::{Client, Gate, Quota, Rule};
///
/// let gate = Gate::builder().rule(Rule::per("user_id").quota(Quota::per_day(1))).build()?;
/// let client = Client::user("ann");
/// assert!(gate.check_now(&client)?.is_allowed());
/// let verdict = gate.check_now(&client)?;
/// assert!(!verdict.is_allowed());
/// assert_eq!(verdict.rule_id(), Some("user_id-requests-1d"));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "the request may have been refused"]
pub struct Verdict {
    is_allowed: bool,
    reason: Cow<'static, str>,
    rule_id: Option<Box<str>>,
    limit: Option<u64>,
    remaining: Option<u64>,
    reset_after: Option<Duration>,
    retry_after: Option<Duration>,
    wait: Duration,
}

impl Verdict {
    pub(crate) fn of(decision: &Decision<'_>) -> Self {
        let deciding = decision.deciding();
        let reset_at = deciding.map(|scope| scope.outcome.status.reset_at);
        let from_now = |at: u64| Duration::from_nanos(at.saturating_sub(decision.now));
        Self {
            is_allowed: decision.is_allowed(),
            reason: match decision.reason {
                // Of the rule, which the verdict may outlive.
                Reason::HitLimit => Cow::Owned(decision.reason_code().to_owned()),
                reason => Cow::Borrowed(reason.code()),
            },
            rule_id: deciding.map(|scope| scope.rule.id.as_str().into()),
            limit: deciding.map(|scope| scope.quota),
            remaining: deciding.map(|scope| scope.outcome.status.remaining),
            reset_after: reset_at.map(from_now),
            retry_after: decision.retry_after().map(Duration::from_nanos),
            wait: Duration::from_nanos(decision.wait),
        }
    }

    /// Whether the request passes. It was charged then, and else it was not.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().quota(Quota::per_day(1))).build()?;
    /// assert!(gate.check_now(&Client::new())?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub const fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// The verdict as a result, for `?`: a refusal is the error.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().quota(Quota::per_day(0))).build()?;
    /// let denial = gate.check_now(&Client::new())?.into_result().unwrap_err();
    /// assert_eq!(denial.to_string(), "refused by rule \"global-requests-1d\": COST_EXCEEDS_LIMIT");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn into_result(self) -> Result<Self, Denial> {
        if self.is_allowed { Ok(self) } else { Err(Denial(Box::new(self))) }
    }

    /// Why, as a code: `WITHIN_LIMITS`, `HIT_…_LIMIT`, `COST_EXCEEDS_LIMIT`, `MISSING_KEY`, `DENY_LISTED`, ….
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().quota(Quota::per_day(1))).build()?;
    /// assert_eq!(gate.check_now(&Client::new())?.reason(), "WITHIN_LIMITS");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The rule that decided. `None`: no limit applies to the request.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let rule = Rule::global().id("all").quota(Quota::per_day(1));
    /// let gate = Gate::builder().rule(rule).build()?;
    /// assert_eq!(gate.check_now(&Client::new())?.rule_id(), Some("all"));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn rule_id(&self) -> Option<&str> {
        self.rule_id.as_deref()
    }

    /// The quota of the limit that decided.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().quota(Quota::per_day(7))).build()?;
    /// assert_eq!(gate.check_now(&Client::new())?.limit(), Some(7));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// How many more requests of cost 1 would pass the limit that decided.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().quota(Quota::per_day(7))).build()?;
    /// assert_eq!(gate.check_now(&Client::new())?.remaining(), Some(6));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub const fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// The time until the counter that decided is fully reset, if nothing else is charged.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().quota(Quota::per_minute(3))).build()?;
    /// assert_eq!(gate.check_now(&Client::new())?.reset_after(), Some(Duration::from_secs(20)));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub const fn reset_after(&self) -> Option<Duration> {
        self.reset_after
    }

    /// When the same request passes, if nothing else is charged. `None`: it passes, or it never does.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Client, Gate, Quota, Rule, TestClock};
    /// let rule = Rule::global().quota(Quota::per_minute(3));
    /// let gate = Gate::builder().rule(rule).clock(TestClock::new()).build()?;
    /// let client = Client::new().cost(3);
    /// assert_eq!(gate.check_now(&client)?.retry_after(), None);
    /// assert_eq!(gate.check_now(&client)?.retry_after(), Some(Duration::from_secs(60)));
    /// assert_eq!(gate.check_now(&Client::new().cost(4))?.retry_after(), None);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// How long to wait before going ahead; zero unless a rule of a rule file has `action: throttle`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().quota(Quota::per_day(1))).build()?;
    /// assert_eq!(gate.check_now(&Client::new())?.wait(), Duration::ZERO);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub const fn wait(&self) -> Duration {
        self.wait
    }
}

/// A refused request, as an error. Nothing was charged.
///
/// ```
/// use tollgate::{Client, Gate, Quota, Rule};
///
/// fn report(gate: &Gate) -> Result<(), Box<dyn std::error::Error>> {
///     gate.check_now(&Client::user("ann"))?.into_result()?;
///     Ok(())
/// }
/// let gate = Gate::builder().rule(Rule::per("user_id").quota(Quota::per_day(1))).build()?;
/// assert!(report(&gate).is_ok());
/// assert!(report(&gate).is_err());
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial(Box<Verdict>);

impl Denial {
    /// The verdict.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().quota(Quota::per_day(0))).build()?;
    /// let denial = gate.check_now(&Client::new())?.into_result().unwrap_err();
    /// assert_eq!(denial.verdict().limit(), Some(0));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub const fn verdict(&self) -> &Verdict {
        &self.0
    }

    /// The rule that refused. `None`: the deny list, or a missing key.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().id("all").quota(Quota::per_day(0))).build()?;
    /// let denial = gate.check_now(&Client::new())?.into_result().unwrap_err();
    /// assert_eq!(denial.rule_id(), Some("all"));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn rule_id(&self) -> Option<&str> {
        self.0.rule_id()
    }

    /// When the same request passes, if nothing else is charged; `None`: never.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().quota(Quota::per_day(0))).build()?;
    /// let denial = gate.check_now(&Client::new())?.into_result().unwrap_err();
    /// assert_eq!(denial.retry_after(), None, "a quota of 0 refuses for ever");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub const fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after()
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule_id() {
            Some(rule) => write!(f, "refused by rule {rule:?}: {}", self.0.reason)?,
            None => write!(f, "refused: {}", self.0.reason)?,
        }
        match self.retry_after() {
            Some(after) => write!(f, "; retry in {after:?}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Denial {}
