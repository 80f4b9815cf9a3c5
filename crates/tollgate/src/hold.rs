//! What a request holds until its true cost is known.

use std::fmt;
use std::sync::Arc;

use tollgate_engine::{Actual, Amounts, Receipts, new_reservation_id};

use crate::gate::Inner;
use crate::{Error, Verdict};

/// What becomes of a [`Hold`] that is dropped without being settled or released.
///
/// ```
/// use tollgate::{Client, Gate, Quota, Rule, Unsettled};
///
/// let rule = Rule::per("user_id").tokens(Quota::per_day(100));
/// let gate = Gate::builder().rule(rule).unsettled(Unsettled::Release).build()?;
/// let client = Client::user("ann").tokens(100);
/// drop(gate.reserve_now(&client)?);
/// assert!(gate.check_now(&client)?.is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Unsettled {
    /// The estimate stays charged, and slots are given back. The default: nobody gets more than the limit by ending early.
    #[default]
    Keep,
    /// All of it is given back.
    Release,
}

/// What a request truly cost.
///
/// ```
/// use tollgate::Usage;
///
/// let both = Usage::tokens(200).and_cost(3);
/// # let _ = both;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    actual: Actual,
}

impl Usage {
    /// What was estimated.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule, Usage};
    /// let gate = Gate::builder().rule(Rule::global().tokens(Quota::per_day(9))).build()?;
    /// let client = Client::new().tokens(6);
    /// gate.reserve_now(&client)?.settle_now(Usage::as_estimated())?;
    /// assert_eq!(gate.peek_now(&client)?.remaining(), Some(3));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn as_estimated() -> Self {
        Self::default()
    }

    /// So many tokens.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule, Usage};
    /// let gate = Gate::builder().rule(Rule::global().tokens(Quota::per_day(9))).build()?;
    /// gate.reserve_now(&Client::new().tokens(6))?.settle_now(Usage::tokens(2))?;
    /// assert_eq!(gate.peek_now(&Client::new())?.remaining(), Some(7));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub const fn tokens(tokens: u64) -> Self {
        Self { actual: Actual { amounts: Amounts::tokens(tokens), usage: None } }
    }

    /// And this cost, on rules of unit cost.
    ///
    /// ```
    /// # use tollgate::Usage;
    /// assert_ne!(Usage::tokens(200).and_cost(3), Usage::tokens(200));
    /// ```
    #[must_use]
    pub const fn and_cost(mut self, cost: u64) -> Self {
        self.actual.amounts.cost = Some(cost);
        self
    }
}

/// Quota that a request holds, from [`Gate::reserve`](crate::Gate::reserve) until it is settled or released. Dropped without
/// either, it ends as [`Unsettled`] says; on a store that has to be awaited this needs a tokio runtime, and without one
/// the estimate stays charged.
///
/// ```
/// use tollgate::{Client, Gate, Quota, Rule, Usage};
///
/// let gate = Gate::builder().rule(Rule::per("user_id").tokens(Quota::per_day(1_000))).build()?;
/// let hold = gate.reserve_now(&Client::user("ann").tokens(600))?;
/// hold.settle_now(Usage::tokens(200))?; // 400 go back
/// assert_eq!(gate.peek_now(&Client::user("ann"))?.remaining(), Some(800));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[must_use = "dropped, it ends as the gate's Unsettled policy says"]
pub struct Hold {
    gate: Arc<Inner>,
    receipts: Receipts,
    verdict: Verdict,
    /// Makes sure that it ends once.
    id: u128,
    has_ended: bool,
    unsettled: Unsettled,
}

impl Hold {
    pub(crate) fn new(gate: Arc<Inner>, receipts: Receipts, verdict: Verdict) -> Self {
        gate.engine.count_reserved(&receipts);
        let unsettled = gate.unsettled;
        Self { gate, receipts, verdict, id: new_reservation_id(), has_ended: false, unsettled }
    }

    /// What becomes of it when it is dropped, from now on.
    #[cfg(feature = "tower")]
    pub(crate) const fn set_unsettled(&mut self, policy: Unsettled) {
        self.unsettled = policy;
    }

    /// What becomes of it when it is dropped is what the gate says, from now on.
    #[cfg(feature = "tower")]
    pub(crate) fn follow_gate(&mut self) {
        self.unsettled = self.gate.unsettled;
    }

    /// What was decided.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().tokens(Quota::per_day(9))).build()?;
    /// let hold = gate.reserve_now(&Client::new().tokens(6))?;
    /// assert_eq!(hold.verdict().remaining(), Some(3));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub const fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Ends it with what the request truly cost: the difference to the estimate is given back, or charged, above the limit if
    /// need be. Slots are given back. If the store fails, the estimate stays charged.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule, Usage};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let gate = Gate::builder().rule(Rule::global().tokens(Quota::per_day(9))).build()?;
    /// let hold = gate.reserve(&Client::new().tokens(6)).await?;
    /// hold.settle(Usage::tokens(2)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn settle(mut self, usage: Usage) -> Result<(), Error> {
        // Also if it fails or is cancelled: what was used must not be released on drop.
        self.has_ended = true;
        let settled = self.gate.engine.settle(self.id, &self.receipts, usage.actual).await;
        settled.map(drop).map_err(Error::of)
    }

    /// [`Hold::settle`] without a future.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule, Usage};
    /// let gate = Gate::builder().rule(Rule::global().tokens(Quota::per_day(9))).build()?;
    /// gate.reserve_now(&Client::new().tokens(6))?.settle_now(Usage::tokens(20))?;
    /// assert!(!gate.check_now(&Client::new().tokens(1))?.is_allowed(), "11 are owed");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn settle_now(mut self, usage: Usage) -> Result<(), Error> {
        let settled = self.gate.engine.settle_now(self.id, &self.receipts, usage.actual);
        // Without an answer at once nothing was settled, and the hold ends as one that is dropped.
        let settled = settled.ok_or(Error::NotImmediate)?;
        self.has_ended = true;
        settled.map(drop).map_err(Error::of)
    }

    /// Ends it as if the request had not been made: all of it is given back.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let gate = Gate::builder().rule(Rule::global().tokens(Quota::per_day(9))).build()?;
    /// gate.reserve(&Client::new().tokens(6)).await?.release().await?;
    /// assert_eq!(gate.peek(&Client::new()).await?.remaining(), Some(9));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(mut self) -> Result<(), Error> {
        let released = self.gate.engine.release(self.id, &self.receipts).await;
        self.has_ended = released.is_ok();
        released.map(drop).map_err(Error::of)
    }

    /// [`Hold::release`] without a future.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::global().tokens(Quota::per_day(9))).build()?;
    /// gate.reserve_now(&Client::new().tokens(6))?.release_now()?;
    /// assert_eq!(gate.peek_now(&Client::new())?.remaining(), Some(9));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn release_now(mut self) -> Result<(), Error> {
        let released = self.gate.engine.release_now(self.id, &self.receipts);
        let released = released.ok_or(Error::NotImmediate)?;
        self.has_ended = released.is_ok();
        released.map(drop).map_err(Error::of)
    }

    /// Holds the slots of rules with [`Rule::concurrent`](crate::Rule::concurrent) for another minute. False if one had expired.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Rule};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let gate = Gate::builder().rule(Rule::global().concurrent(1)).build()?;
    /// let hold = gate.reserve(&Client::new()).await?;
    /// assert!(hold.renew().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn renew(&self) -> Result<bool, Error> {
        self.gate.engine.renew(&self.receipts).await.map_err(Error::of)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.has_ended || self.receipts.is_empty() {
            return;
        }
        let (gate, id, unsettled) = (Arc::clone(&self.gate), self.id, self.unsettled);
        let receipts = std::mem::take(&mut self.receipts);
        let kept = Actual::default();
        let ended = match unsettled {
            Unsettled::Keep => gate.engine.settle_now(id, &receipts, kept),
            Unsettled::Release => gate.engine.release_now(id, &receipts),
        };
        // A store in memory does not fail.
        #[cfg(not(feature = "redis"))]
        drop(ended);
        #[cfg(feature = "redis")]
        if ended.is_none()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                // If that fails, the estimate stays charged.
                let _ = match unsettled {
                    Unsettled::Keep => gate.engine.settle(id, &receipts, kept).await,
                    Unsettled::Release => gate.engine.release(id, &receipts).await,
                };
            });
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("verdict", &self.verdict).finish_non_exhaustive()
    }
}
