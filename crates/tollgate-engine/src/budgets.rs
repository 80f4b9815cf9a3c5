//! Hard budgets: which requests meet one, and what answers owe beyond their reservation.

use parking_lot::Mutex;
use tollgate_policy::prices::{Currency, Money};
use tollgate_store::Store;

use crate::decision::Decision;
use crate::limit_checks::LimitChecks;
use crate::{ActiveRules, Enforcement, Engine, Receipts, Request};

/// What answers used beyond what hard budgets had reserved for them, in one currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetDebts {
    /// The currency.
    pub currency: Currency,
    /// How many answers there were.
    pub answers: u64,
    /// How much they owe, in nanos.
    pub nanos: u64,
}

/// The debts of this node. There are no more entries than currencies.
#[derive(Debug, Default)]
pub(crate) struct DebtBook(Mutex<Vec<BudgetDebts>>);

impl Receipts {
    /// Whether it charged a hard budget.
    pub const fn is_hard(&self) -> bool {
        self.is_hard
    }
}

impl<S: Store> Engine<S> {
    /// Whether a hard budget applies to this request and is enforced: then what is reserved for it must be the most that it
    /// can use.
    #[inline]
    pub fn meets_hard_budget<'r>(&self, rules: &'r ActiveRules, request: &Request<'r>) -> bool {
        rules.set.may_meet_hard_budget(&request.attributes)
            && self.enforcement() == Enforcement::On
            && self.finds_hard_budget(rules, request)
    }

    #[cold]
    fn finds_hard_budget<'r>(&self, rules: &'r ActiveRules, request: &Request<'r>) -> bool {
        let mut decision = Decision::pending(rules.version);
        let mut checks = LimitChecks::new();
        self.prepare(rules, request, &mut decision, &mut checks);
        checks.iter().any(|check| check.rule.is_hard_budget())
    }

    /// An answer used so much more than a hard budget had reserved for it.
    #[cold]
    pub fn note_budget_debt(&self, owed: Money) {
        tracing::warn!(
            %owed,
            "an upstream used more than was reserved from a hard budget: the budget owes it"
        );
        let mut book = self.debts.0.lock();
        if let Some(known) = book.iter_mut().find(|it| it.currency == owed.currency) {
            known.answers = known.answers.saturating_add(1);
            known.nanos = known.nanos.saturating_add(owed.nanos);
        } else {
            book.push(BudgetDebts { currency: owed.currency, answers: 1, nanos: owed.nanos });
        }
    }

    /// What answers on this node used beyond what hard budgets had reserved for them.
    pub fn budget_debts(&self) -> Vec<BudgetDebts> {
        self.debts.0.lock().clone()
    }
}
