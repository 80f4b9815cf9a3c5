//! What one charge above a limit owes: at most so much, and by which limit.

use tollgate_core::{Limit, Nanos, SECOND};
use tollgate_policy::{Quota, RuleSet};

use crate::receipts::Part;

/// A debt on a bucket is paid off by the bucket's own rate. One charge owes no more than this time can pay off, so that a
/// wrong number in a header or a settlement does not lock a client out for centuries ...
const MAX_DEBT: Nanos = 30 * 86_400 * SECOND;

/// ... but at least so many times the limit, where its window is long.
const MIN_DEBT_WINDOWS: u64 = 10;

/// The most that one charge may owe. Windows forget a charge by themselves, so theirs is as large as it is stated. Charges
/// add up: what one response can truly use up is far below this, so no part of it is free.
pub(crate) fn max_owed(limit: &Limit) -> u64 {
    if !limit.algorithm().is_bucket() {
        return u64::MAX;
    }
    let windows = (MAX_DEBT / limit.window_nanos().max(1)).max(MIN_DEBT_WINDOWS);
    limit.quota().max(limit.capacity()).max(1).saturating_mul(windows)
}

/// The limit that a bucket's debt is charged by now, where that of its charge was changed since. A receipt does not say which
/// tier or grant its limit came from: where a rule has several, or suspends, its debts are charged by the limit of the charge.
pub(crate) fn changed_limit<'r>(rules: &'r RuleSet, part: &Part) -> Option<&'r Limit> {
    if !part.limit.algorithm().is_bucket() {
        return None;
    }
    let rule = rules.rule(&part.rule_id).filter(|rule| !rule.has_grants())?;
    let limit = rule.limits.iter().find(|limit| *limit.tag == *part.tag)?;
    match (&limit.base, limit.tiers.as_slice()) {
        (Some(Quota::Limited(now)), []) if now.quota() > 0 => {
            Some(now).filter(|now| now.quota() != part.limit.quota())
        }
        _ => None,
    }
}
