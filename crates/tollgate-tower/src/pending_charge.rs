//! What a request was charged, until it is known what it truly cost.

use std::fmt;

use tollgate_policy::prices::{Money, Usage};

use crate::held::Held;

/// What becomes of a charge when the actual cost is known. A charge ends once, by one of these calls.
pub trait Account: Send + Sync + 'static {
    /// It used this: the difference is given back, or charged as debt. What was charged for it on top is given back
    /// afterwards, and stays where this fails.
    fn settle(self: Box<Self>, used: Usage, top_ups: Vec<PendingCharge>);

    /// It cost nothing: everything is given back.
    fn release(self: Box<Self>);
}

/// A charge that was made on an estimate. Dropped without another word it stays as it was estimated, which is what
/// becomes of it too when this process is killed.
pub struct PendingCharge {
    account: Box<dyn Account>,
    tokens: u64,
    money: Option<Money>,
}

impl PendingCharge {
    /// A charge of so many tokens.
    pub fn new(account: impl Account, tokens: u64) -> Self {
        Self { account: Box::new(account), tokens, money: None }
    }

    /// The same, with the money that was charged.
    #[must_use]
    pub fn with_money(self, money: Option<Money>) -> Self {
        Self { money, ..self }
    }

    /// The money that was charged, where any was.
    pub const fn money(&self) -> Option<Money> {
        self.money
    }

    /// How many tokens were charged.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// It used this.
    pub fn settle(self, used: Usage) {
        self.settle_with(used, Vec::new());
    }

    /// It used this, for which `top_ups` were charged, too. All of it is settled on this charge, at the price of its
    /// admission: prices depend on the whole request, and its money is rounded once.
    pub fn settle_with(self, used: Usage, top_ups: Vec<Self>) {
        self.account.settle(used, top_ups);
    }

    /// It was not made use of.
    pub fn release(self) {
        self.account.release();
    }
}

/// What a request was charged, while it has not been sent. Dropped, it is refunded. What sends a
/// request asks for a [`Sent`], which is made here only: so the charge of a request that was sent is
/// kept, whichever way the request took.
#[derive(Debug, Default)]
#[must_use = "dropped, it refunds the charge"]
pub struct Unsent {
    /// Refunds on drop what was charged to a request that waits.
    refund: Option<Held>,
    pending: Option<PendingCharge>,
}

impl Unsent {
    /// A charge that was made on an estimate.
    pub const fn estimated(pending: PendingCharge) -> Self {
        Self { refund: None, pending: Some(pending) }
    }

    /// A charge that `refund` gives back when it is dropped.
    pub const fn refundable(refund: Held) -> Self {
        Self { refund: Some(refund), pending: None }
    }

    /// The tokens of the estimate, where it is one.
    pub fn tokens(&self) -> Option<u64> {
        self.pending.as_ref().map(PendingCharge::tokens)
    }

    /// The request is sent now: its charge is kept, and an estimate is settled by the returned
    /// [`Sent`].
    pub fn sent(mut self) -> Sent {
        if let Some(refund) = self.refund.take() {
            refund.keep();
        }
        Sent { pending: self.pending.take() }
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        // A refund is made by its own drop.
        if let Some(pending) = self.pending.take() {
            pending.release();
        }
    }
}

/// Proof that the charge of a request is kept: whatever sends requests takes one.
#[derive(Debug)]
pub struct Sent {
    pending: Option<PendingCharge>,
}

impl Sent {
    /// The estimate to settle, where the request was charged on one. Not settled, it stays as it is.
    pub const fn take_pending(&mut self) -> Option<PendingCharge> {
        self.pending.take()
    }
}

impl fmt::Debug for PendingCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCharge").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Counts what becomes of charges.
    #[derive(Clone, Default)]
    struct Book {
        settled: Arc<AtomicUsize>,
        refunded: Arc<AtomicUsize>,
    }

    impl Account for Book {
        fn settle(self: Box<Self>, _: Usage, _: Vec<PendingCharge>) {
            self.settled.fetch_add(1, SeqCst);
        }

        fn release(self: Box<Self>) {
            self.refunded.fetch_add(1, SeqCst);
        }
    }

    impl Book {
        fn charges(&self) -> [Unsent; 2] {
            let refunded = Arc::clone(&self.refunded);
            let refund = Held::new(move || {
                refunded.fetch_add(1, SeqCst);
            });
            [Unsent::estimated(PendingCharge::new(self.clone(), 7)), Unsent::refundable(refund)]
        }

        fn counts(&self) -> (usize, usize) {
            (self.settled.load(SeqCst), self.refunded.load(SeqCst))
        }
    }

    #[test]
    fn a_charge_is_refunded_once_unless_its_request_was_sent() {
        let book = Book::default();
        drop(book.charges());
        assert_eq!(book.counts(), (0, 2), "dropped unsent");
        let [mut estimated, refundable] = book.charges().map(Unsent::sent);
        assert!(refundable.pending.is_none());
        estimated.take_pending().expect("an estimate").settle(Usage::new(2, 3));
        drop((estimated, refundable));
        assert_eq!(book.counts(), (1, 2), "sent and settled");
        drop(book.charges().map(Unsent::sent));
        assert_eq!(book.counts(), (1, 2), "sent, and kept as estimated");
    }
}
