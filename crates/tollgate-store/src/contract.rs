//! The contract of every store: one outcome for every charge.
//!
//! An answer that breaks it is a bug in the store. Nothing is known of what it charged, so nothing
//! passes: a missing outcome is a refusal, and never an admission.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Examination, Outcome, Receipt, Status};

use crate::{Failure, Outcomes, Request, StoreError};

/// The outcome of a charge that could not be examined.
pub const REFUSED: Outcome = Outcome {
    examination: Examination::Refuse { retry_at: None },
    status: Status { used: 0, remaining: 0, reset_at: 0 },
    receipt: Receipt::Nothing,
};

/// Checks a store's answer: the outcomes from `first` on must be one for every charge of `requests`. If
/// they are not, they are removed, and the call counts as failed.
#[inline]
pub fn check_outcomes(
    requests: &[Request<'_>],
    first: usize,
    outcomes: &mut Outcomes,
) -> Result<(), StoreError> {
    let charges: usize = requests.iter().map(|request| request.charges.len()).sum();
    if outcomes.len().checked_sub(first) == Some(charges) {
        return Ok(());
    }
    outcomes.truncate(first);
    report_broken("a store answered with another number of outcomes than charges");
    Err(Failure::Contract.into())
}

/// Logs an invariant that broke: the 1st, 2nd, 4th, 8th … time in this process, so that a bug on the
/// path of every request does not flood the log.
#[cold]
pub fn report_broken(what: &'static str) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    if count.is_power_of_two() {
        tracing::error!(
            what,
            count,
            "an invariant is broken and the request is refused; this is a bug, please report it"
        );
    }
}
