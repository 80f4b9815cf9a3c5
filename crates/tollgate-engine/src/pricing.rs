//! The money of a request, where a rule counts money.

use tollgate_policy::prices::{Money, Price, Usage};
use tollgate_policy::{Known, Unit};
use tollgate_store::Store;

use crate::decision::Decision;
use crate::limit_checks::LimitChecks;
use crate::request::Request;
use crate::{ActiveRules, Enforcement, Engine, EngineError};

impl<S: Store> Engine<S> {
    /// Puts the money of a request into the checks of money limits: what it states, else the price of its usage.
    /// A model without a price is an error and never free, unless the rule or the installation refuses nothing: then
    /// the limit is left out.
    #[inline]
    pub(crate) fn check_prices<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        decision: &mut Decision<'r>,
        checks: &mut LimitChecks<'r>,
    ) -> Result<(), EngineError> {
        if checks.iter().all(|line| line.rule.unit != Unit::Money) {
            return Ok(());
        }
        self.price(rules, request, decision, checks)
    }

    #[cold]
    fn price<'r>(
        &self,
        rules: &'r ActiveRules,
        request: &Request<'r>,
        decision: &mut Decision<'r>,
        checks: &mut LimitChecks<'r>,
    ) -> Result<(), EngineError> {
        let model = request.attributes.get(Known::ModelId);
        decision.price = model.and_then(|model| rules.prices.price(model, decision.now));
        let is_enforced = self.enforcement() == Enforcement::On;
        let mut failed = None;
        checks.retain(|line| {
            if line.rule.unit != Unit::Money {
                return true;
            }
            match money(request, decision.price, line.rule) {
                Ok(nanos) => {
                    line.cost = nanos;
                    true
                }
                Err(error) => {
                    if is_enforced && line.role.can_refuse() {
                        failed.get_or_insert(error);
                    }
                    false
                }
            }
        });
        failed.map_or(Ok(()), Err)
    }
}

/// What a request costs by the price of its model: its usage, else its tokens, else the request alone.
fn priced(price: &Price, request: &Request<'_>) -> Money {
    let mut price = std::borrow::Cow::Borrowed(price);
    // The request itself was paid before.
    if request.is_more && price.per_request > 0 {
        price.to_mut().per_request = 0;
    }
    let priced = request.amounts.priced(&price, request.usage);
    priced.unwrap_or_else(|| price.money(&Usage::default()))
}

/// What a request costs on a money rule, in nanos. A request that names no model and uses no tokens costs nothing.
fn money(
    request: &Request<'_>,
    price: Option<&Price>,
    rule: &tollgate_policy::Rule,
) -> Result<u64, EngineError> {
    let rule_id = || rule.id.clone();
    let money = match (request.amounts.money, price, request.attributes.get(Known::ModelId)) {
        (Some(money), _, _) => money,
        (None, Some(price), _) => priced(price, request),
        (None, None, Some(model)) => {
            return Err(EngineError::Unpriced { rule_id: rule_id(), model: model.to_owned() });
        }
        (None, None, None) if request.usage.is_some() || request.amounts.of(Unit::Tokens) > 0 => {
            return Err(EngineError::UsageWithoutModel { rule_id: rule_id() });
        }
        (None, None, None) => return Ok(0),
    };
    match rule.currency {
        Some(expected) if expected != money.currency => {
            let given = money.currency;
            Err(EngineError::OtherCurrency { rule_id: rule_id(), expected, given })
        }
        _ => Ok(money.nanos),
    }
}
