//! What a request was charged, until it is known what it truly cost.

use std::fmt;

/// What becomes of a charge when the truth is known. Each happens once, whoever is asked.
pub trait Account: Send + Sync + 'static {
    /// It cost so many tokens: the difference is given back, or charged as debt.
    fn settle(self: Box<Self>, tokens: u64);

    /// It cost nothing: everything is given back.
    fn release(self: Box<Self>);
}

/// A charge that was made on an estimate. Dropped without another word it stays as it was estimated, which is what
/// becomes of it too when this process is killed.
pub struct Bill {
    account: Box<dyn Account>,
    tokens: u64,
}

impl Bill {
    /// A charge of so many tokens.
    pub fn new(account: impl Account, tokens: u64) -> Self {
        Self { account: Box::new(account), tokens }
    }

    /// How many tokens were charged.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// It cost so many tokens.
    pub fn settle(self, tokens: u64) {
        self.account.settle(tokens);
    }

    /// It was not made use of.
    pub fn release(self) {
        self.account.release();
    }
}

/// A charge for something that has not been sent: given back when dropped.
#[derive(Debug, Default)]
pub struct Unsent(Option<Bill>);

impl Unsent {
    /// This charge, if there is one.
    pub const fn new(bill: Option<Bill>) -> Self {
        Self(bill)
    }

    /// It is sent now: what becomes of the charge is no longer said here.
    pub fn sent(mut self) -> Option<Bill> {
        self.0.take()
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if let Some(bill) = self.0.take() {
            bill.release();
        }
    }
}

impl fmt::Debug for Bill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bill").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}
