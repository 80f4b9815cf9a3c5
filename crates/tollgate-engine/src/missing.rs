//! What becomes of a request that lacks the key of a rule that it should meet.

use tollgate_policy::{Known, Unmet};
use tollgate_store::Store;

use crate::decision::Decision;
use crate::limit_checks::LimitChecks;
use crate::request::Request;
use crate::verdict::{Reason, Verdict};
use crate::{ActiveRules, Enforcement, Engine, EngineError};

/// So many misspelt attributes of a rule set are logged.
const MAX_LOGGED_ATTRIBUTES: usize = 16;

/// What becomes of a request that lacks the key attribute of a rule that it should meet
/// ([`tollgate_policy::RuleSet::unmet`]): such a rule does not limit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingKey {
    /// The decision is an error that names the rule and the attribute ([`EngineError::MissingKey`]). The
    /// default: a program that embeds an engine sets the attributes, so a missing one is a mistake.
    #[default]
    Error,
    /// The request is refused, with the reason `MISSING_KEY`.
    Reject,
    /// The rule does not apply, as in the service, whose callers send what they know.
    Allow,
}

impl<S: Store> Engine<S> {
    /// The same engine with another policy for requests that lack the key of a rule.
    #[must_use]
    pub const fn with_missing_key(mut self, policy: MissingKey) -> Self {
        self.missing_key = policy;
        self
    }

    /// Applies the policy to a prepared decision. A request that is rejected has no limits left to ask.
    #[inline]
    pub(crate) fn check_keys<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        decision: &mut Decision<'r>,
        checks: &mut LimitChecks<'r>,
    ) -> Result<(), EngineError> {
        let is_open = matches!(decision.reason, Reason::WithinLimits | Reason::NoMatch);
        if self.missing_key == MissingKey::Allow || !is_open || request.is_more {
            return Ok(());
        }
        match find(rules, request, decision) {
            Some(unmet) => self.miss(unmet, decision, checks),
            None => Ok(()),
        }
    }

    #[cold]
    fn miss<'r>(
        &self,
        unmet: Unmet<'r>,
        decision: &mut Decision<'r>,
        checks: &mut LimitChecks<'r>,
    ) -> Result<(), EngineError> {
        let Unmet { rule, attribute } = unmet;
        // In shadow nothing is refused: it is reported as refused, and passes.
        if self.missing_key == MissingKey::Error && self.enforcement() == Enforcement::On {
            let (rule_id, attribute) = (rule.id.clone(), attribute.to_owned());
            return Err(EngineError::MissingKey { rule_id, attribute });
        }
        checks.clear();
        (decision.verdict, decision.reason) = (Verdict::Denied, Reason::MissingKey);
        decision.note = Some(attribute);
        Ok(())
    }
}

/// The same attributes as the rules were resolved by: with the request's tier.
fn find<'r>(
    rules: &'r ActiveRules,
    request: &Request<'r>,
    decision: &Decision<'r>,
) -> Option<Unmet<'r>> {
    let (set, now) = (&rules.set, decision.asked_at);
    let tier = set.tier_of(&request.attributes);
    if tier == request.attributes.get(Known::Tier) {
        return set.unmet(&request.attributes, now, &decision.resolution);
    }
    let mut attributes = request.attributes.clone();
    attributes.set(Known::Tier, tier.unwrap_or_default());
    set.unmet(&attributes, now, &decision.resolution)
}

/// Logs what a rule set names that nothing may ever bring.
pub(crate) fn log_misspelt(rules: &tollgate_policy::RuleSet) {
    for (rule, attribute, meant) in rules.misspelt_attributes().take(MAX_LOGGED_ATTRIBUTES) {
        tracing::warn!(
            rule = rule.id,
            attribute,
            "the key of a rule names an attribute that is not a known one; did you mean {meant}?"
        );
    }
}
