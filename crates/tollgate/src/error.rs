//! Why a gate could not be built or asked.

use tollgate_engine::EngineError;

use crate::verdict::Denial;

/// Why a gate could not be built, or a request could not be decided. A refusal is a decision: [`Gate::check`](crate::Gate::check)
/// returns it as a [`Verdict`](crate::Verdict), and only calls that return something else report it as [`Error::Denied`].
///
/// ```
/// use tollgate::{Error, Gate};
///
/// let error = Gate::builder().build().unwrap_err();
/// assert!(matches!(error, Error::Rules(_)));
/// assert_eq!(error.to_string(), "a gate without a rule limits nothing; add one with rule()");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The rules make no sense. The text names every problem, one in a line.
    #[error("{0}")]
    Rules(String),
    /// The store cannot be used as it is configured, or did not answer. Nothing is known to have been charged.
    #[error("{0}")]
    Store(String),
    /// The client lacks the attribute that a rule counts by. See [`MissingKey`](crate::MissingKey).
    #[error("rule {rule_id:?} counts by {attribute}, which the client does not have")]
    MissingKey {
        /// The rule.
        rule_id: String,
        /// What the client lacks.
        attribute: String,
    },
    /// A rule with [`Rule::concurrent`](crate::Rule::concurrent) applies, and `check` would take a slot that nobody gives back.
    /// Use [`Gate::reserve`](crate::Gate::reserve): its [`Hold`](crate::Hold) gives the slot back. Nothing was charged.
    #[error(
        "rule {rule_id:?} limits what runs at the same time; use reserve(), and keep the Hold until the work is done"
    )]
    SlotNotHeld {
        /// The rule.
        rule_id: String,
    },
    /// A part of the client is out of bounds.
    #[error("{attribute} of the client {problem}")]
    Client {
        /// Which part.
        attribute: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The request is refused, and nothing was charged.
    #[error(transparent)]
    Denied(#[from] Denial),
    /// The store of this gate has to be awaited: use the call without `_now`.
    #[error("the store of this gate has to be awaited; use the call without _now")]
    NotImmediate,
}

impl Error {
    /// The refusal, if it is one.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::per("user_id").quota(Quota::per_day(0))).build()?;
    /// let error = gate.reserve_now(&Client::user("ann")).unwrap_err();
    /// assert_eq!(error.denial().and_then(|denial| denial.rule_id()), Some("user_id-requests-1d"));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub const fn denial(&self) -> Option<&Denial> {
        match self {
            Self::Denied(denial) => Some(denial),
            _ => None,
        }
    }

    pub(crate) fn of(error: EngineError) -> Self {
        match error {
            EngineError::MissingKey { rule_id, attribute } => {
                Self::MissingKey { rule_id, attribute }
            }
            EngineError::SlotNotHeld { rule_id } => Self::SlotNotHeld { rule_id },
            EngineError::Unpriced { .. }
            | EngineError::UsageWithoutModel { .. }
            | EngineError::OtherCurrency { .. } => {
                let problem = format!("cannot be counted: {error}");
                Self::Client { attribute: "money".to_owned(), problem }
            }
            other => Self::Store(other.to_string()),
        }
    }
}
