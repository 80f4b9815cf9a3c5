//! What becomes of a request that a rule cannot count.

/// What becomes of a request that lacks the attribute that a rule counts by: such a rule cannot limit it.
///
/// ```
/// use tollgate::{Client, Gate, MissingKey, Quota, Rule};
///
/// let rule = Rule::per("tenant_id").quota(Quota::per_day(10));
/// let gate = Gate::builder().rule(rule).missing_key(MissingKey::Reject).build()?;
/// let verdict = gate.check_now(&Client::user("ann"))?;
/// assert_eq!((verdict.is_allowed(), verdict.reason()), (false, "MISSING_KEY"));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingKey {
    /// The rule does not apply to it.
    Allow,
    /// It is refused.
    Reject,
    /// It is [`Error::MissingKey`](crate::Error::MissingKey). The default: the program sets the attributes, so a missing one is
    /// a mistake.
    #[default]
    Error,
}
