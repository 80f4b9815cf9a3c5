//! Several rules, charged together.

use std::fmt;
use std::sync::Arc;

use tollgate_core::Nanos;
use tollgate_engine::{Clock, Engine, SystemClock};
use tollgate_policy::RuleSet;
use tollgate_store::Mode;

use crate::client::Kept;
use crate::hold::{Hold, Unsettled};
use crate::housekeeping::Housekeeping;
use crate::store::{GateStore, Opened as _, Storage};
use crate::{Client, Error, MissingKey, Rule, Verdict};

/// Several rules: a request is charged to all that apply to it, or to none.
///
/// A gate is cheap to clone; clones share its counters. Housekeeping is done on the way.
///
/// ```
/// use tollgate::{Client, Gate, MissingKey, Quota, Rule};
///
/// let gate = Gate::builder()
///     .rule(Rule::per("user_id").quota(Quota::per_second(10)))
///     .rule(Rule::per("tenant_id").quota(Quota::per_day(100)).tier("pro", Quota::per_day(5_000)))
///     .missing_key(MissingKey::Reject)
///     .build()?;
/// let client = Client::user("ann").tenant("acme");
/// assert!(gate.check_now(&client)?.is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone)]
pub struct Gate {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) engine: Arc<Engine<GateStore>>,
    pub(crate) unsettled: Unsettled,
    /// The system's clock, where no other was given.
    system: Option<Arc<SystemClock>>,
    housekeeping: Housekeeping,
}

impl Gate {
    /// Begins a gate without any rule: there is no hidden default.
    ///
    /// ```
    /// # use tollgate::{Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::per("ip").quota(Quota::per_minute(60))).build()?;
    /// # let _ = gate;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn builder() -> GateBuilder {
        GateBuilder::default()
    }

    /// Decides a request and, if it passes, charges it to every rule that applies. A request that a rule with
    /// [`Rule::concurrent`] applies to is [`Error::SlotNotHeld`]: only [`Gate::reserve`] gives slots back.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let gate = Gate::builder().rule(Rule::per("user_id").quota(Quota::per_day(1))).build()?;
    /// assert!(gate.check(&Client::user("ann")).await?.is_allowed());
    /// assert!(!gate.check(&Client::user("ann")).await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check(&self, client: &Client<'_>) -> Result<Verdict, Error> {
        self.decide(client, Mode::Charge).await
    }

    /// [`Gate::check`] without a future: for a gate in memory.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::per("user_id").quota(Quota::per_day(1))).build()?;
    /// assert!(gate.check_now(&Client::user("ann"))?.is_allowed());
    /// assert!(!gate.check_now(&Client::user("ann"))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn check_now(&self, client: &Client<'_>) -> Result<Verdict, Error> {
        self.decide_now(client, Mode::Charge)
    }

    /// Decides a request and charges nothing.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let gate = Gate::builder().rule(Rule::per("user_id").quota(Quota::per_day(1))).build()?;
    /// assert!(gate.peek(&Client::user("ann")).await?.is_allowed());
    /// assert!(gate.peek(&Client::user("ann")).await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn peek(&self, client: &Client<'_>) -> Result<Verdict, Error> {
        self.decide(client, Mode::Peek).await
    }

    /// [`Gate::peek`] without a future: for a gate in memory.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::per("user_id").quota(Quota::per_day(3))).build()?;
    /// assert_eq!(gate.peek_now(&Client::user("ann"))?.remaining(), Some(3));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn peek_now(&self, client: &Client<'_>) -> Result<Verdict, Error> {
        self.decide_now(client, Mode::Peek)
    }

    /// Charges an estimate, to be settled when the true cost is known, and takes the slots of rules with
    /// [`Rule::concurrent`]. A refusal is [`Error::Denied`].
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule, Usage};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let gate = Gate::builder().rule(Rule::per("user_id").tokens(Quota::per_day(900))).build()?;
    /// let hold = gate.reserve(&Client::user("ann").tokens(600)).await?;
    /// assert!(gate.reserve(&Client::user("ann").tokens(600)).await.is_err());
    /// hold.settle(Usage::tokens(200)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reserve(&self, client: &Client<'_>) -> Result<Hold, Error> {
        let engine = &self.inner.engine;
        let (rules, path) = (engine.rules(), client.path()?);
        let request = client.request(path.as_ref(), Kept::Receipts)?;
        let decision = engine.decide(&rules, &request, Mode::Charge).await.map_err(Error::of)?;
        self.inner.tidy(decision.asked_at());
        let verdict = Verdict::of(&decision).into_result()?;
        Ok(Hold::new(Arc::clone(&self.inner), engine.receipts(&request, &decision), verdict))
    }

    /// [`Gate::reserve`] without a future: for a gate in memory.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule, Usage};
    /// let gate = Gate::builder().rule(Rule::per("user_id").tokens(Quota::per_day(900))).build()?;
    /// let hold = gate.reserve_now(&Client::user("ann").tokens(600))?;
    /// hold.settle_now(Usage::tokens(200))?;
    /// assert_eq!(gate.peek_now(&Client::user("ann"))?.remaining(), Some(700));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn reserve_now(&self, client: &Client<'_>) -> Result<Hold, Error> {
        let engine = &self.inner.engine;
        let (rules, path) = (engine.rules(), client.path()?);
        let request = client.request(path.as_ref(), Kept::Receipts)?;
        let decided = engine.decide_now(&rules, &request, Mode::Charge);
        let decision = decided.ok_or(Error::NotImmediate)?.map_err(Error::of)?;
        self.inner.tidy(decision.asked_at());
        let verdict = Verdict::of(&decision).into_result()?;
        Ok(Hold::new(Arc::clone(&self.inner), engine.receipts(&request, &decision), verdict))
    }

    /// Resets the counters of this client that a request of it would be charged to, whatever it costs. Slots that are held
    /// are free then. Counters that other clients are counted in, too, stay as they are: those of rules whose key has no
    /// identity of the client (user, API key, tenant, address), or, of a client that names none, of global rules. An empty
    /// client resets global rules.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let gate = Gate::builder().rule(Rule::per("user_id").quota(Quota::per_day(1))).build()?;
    /// assert!(gate.check(&Client::user("ann")).await?.is_allowed());
    /// gate.reset(&Client::user("ann")).await?;
    /// assert!(gate.check(&Client::user("ann")).await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reset(&self, client: &Client<'_>) -> Result<(), Error> {
        let engine = &self.inner.engine;
        let (rules, path) = (engine.rules(), client.path()?);
        let request = client.request(path.as_ref(), Kept::Nothing)?;
        let (names_identity, is_empty) = (client.names_identity(), client.is_empty());
        let is_own = |rule: &tollgate_policy::Rule| {
            if names_identity {
                rule.is_keyed_by_identity()
            } else {
                is_empty || !rule.key.is_empty()
            }
        };
        engine.reset(&rules, &request, is_own).await.map(drop).map_err(Error::of)
    }

    async fn decide(&self, client: &Client<'_>, mode: Mode) -> Result<Verdict, Error> {
        let engine = &self.inner.engine;
        let (rules, path) = (engine.rules(), client.path()?);
        let request = client.request(path.as_ref(), Kept::Nothing)?;
        let decision = engine.decide(&rules, &request, mode).await.map_err(Error::of)?;
        self.inner.tidy(decision.asked_at());
        Ok(Verdict::of(&decision))
    }

    fn decide_now(&self, client: &Client<'_>, mode: Mode) -> Result<Verdict, Error> {
        let engine = &self.inner.engine;
        let (rules, path) = (engine.rules(), client.path()?);
        let request = client.request(path.as_ref(), Kept::Nothing)?;
        let decided = engine.decide_now(&rules, &request, mode).ok_or(Error::NotImmediate)?;
        let decision = decided.map_err(Error::of)?;
        self.inner.tidy(decision.asked_at());
        Ok(Verdict::of(&decision))
    }
}

impl Inner {
    /// Does the housekeeping that is due, by the time at which a request was decided: the clock is not read again.
    #[inline]
    pub(crate) fn tidy(&self, now: Nanos) {
        if let Some(round) = self.housekeeping.claim(now) {
            self.tidy_round(round, now);
        }
    }

    #[cold]
    fn tidy_round(&self, round: usize, now: Nanos) {
        if let Some(system) = &self.system {
            system.follow();
        }
        self.engine.store().tidy_round(round, now);
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.inner.engine.rules();
        let ids: Vec<&str> = rules.set.rules().iter().map(|rule| rule.id.as_str()).collect();
        f.debug_struct("Gate").field("rules", &ids).finish_non_exhaustive()
    }
}

/// Builds a [`Gate`].
///
/// ```
/// use tollgate::{Gate, Memory, Quota, Rule};
///
/// let gate = Gate::builder()
///     .rule(Rule::per("user_id").quota(Quota::per_second(10)))
///     .store(Memory::counters(100_000))
///     .build()?;
/// # let _ = gate;
/// # Ok::<(), tollgate::Error>(())
/// ```
#[must_use = "build() makes the gate"]
#[derive(Default)]
pub struct GateBuilder {
    rules: Vec<Rule>,
    yaml: Vec<String>,
    missing_key: MissingKey,
    unsettled: Unsettled,
    storage: Storage,
    clock: Option<Arc<dyn Clock>>,
}

impl GateBuilder {
    /// Adds a rule.
    ///
    /// ```
    /// # use tollgate::{Gate, Quota, Rule};
    /// let builder = Gate::builder().rule(Rule::per("user_id").quota(Quota::per_second(10)));
    /// # let _ = builder;
    /// ```
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Adds the rules of a rule file, as text: YAML or JSON, with its lists, tiers and grants. Its `default:` applies only
    /// if it is stated.
    ///
    /// ```
    /// # use tollgate::{Client, Gate};
    /// let gate = Gate::builder()
    ///     .rules_yaml("rules: [{rule_id: r, identifier_type: user_id, limit: 1, window: 1d}]")
    ///     .build()?;
    /// assert!(gate.check_now(&Client::user("ann"))?.is_allowed());
    /// assert!(!gate.check_now(&Client::user("ann"))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[cfg(feature = "yaml")]
    pub fn rules_yaml(mut self, text: impl Into<String>) -> Self {
        self.yaml.push(text.into());
        self
    }

    /// What becomes of a request that lacks the attribute that a rule counts by. Without this it is an error.
    ///
    /// ```
    /// # use tollgate::{Client, Error, Gate, MissingKey, Quota, Rule};
    /// let builder = || Gate::builder().rule(Rule::per("user_id").quota(Quota::per_day(1)));
    /// let nobody = Client::new();
    /// assert!(matches!(builder().build()?.check_now(&nobody), Err(Error::MissingKey { .. })));
    /// assert!(!builder().missing_key(MissingKey::Reject).build()?.check_now(&nobody)?.is_allowed());
    /// assert!(builder().missing_key(MissingKey::Allow).build()?.check_now(&nobody)?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub const fn missing_key(mut self, policy: MissingKey) -> Self {
        self.missing_key = policy;
        self
    }

    /// What becomes of a [`Hold`] that is dropped without being settled.
    ///
    /// ```
    /// # use tollgate::{Gate, Unsettled};
    /// let builder = Gate::builder().unsettled(Unsettled::Release);
    /// # let _ = builder;
    /// ```
    pub const fn unsettled(mut self, policy: Unsettled) -> Self {
        self.unsettled = policy;
        self
    }

    /// Where counters are kept: in [`Memory`](crate::Memory), or with the feature `redis` in Redis.
    ///
    /// ```
    /// # use tollgate::{Gate, Memory};
    /// let builder = Gate::builder().store(Memory::counters(10_000));
    /// # let _ = builder;
    /// ```
    pub fn store(mut self, store: impl Into<Storage>) -> Self {
        self.storage = store.into();
        self
    }

    /// Another clock than the system's, for tests.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Client, Gate, Quota, Rule, TestClock};
    /// let clock = TestClock::new();
    /// let rule = Rule::global().quota(Quota::per_second(1));
    /// let gate = Gate::builder().rule(rule).clock(clock.clone()).build()?;
    /// assert!(gate.check_now(&Client::new())?.is_allowed());
    /// assert!(!gate.check_now(&Client::new())?.is_allowed());
    /// clock.advance(Duration::from_secs(1));
    /// assert!(gate.check_now(&Client::new())?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// The gate, or everything that is wrong with its rules.
    ///
    /// ```
    /// # use tollgate::{Gate, Rule};
    /// let error = Gate::builder().rule(Rule::per("user_id")).build().unwrap_err();
    /// let expected = "rule \"user_id-requests\": has no quota; add quota(), tokens() or concurrent()";
    /// assert_eq!(error.to_string(), expected);
    /// ```
    pub fn build(self) -> Result<Gate, Error> {
        let rules = compile(&self.rules, &self.yaml)?;
        let store = self.storage.open()?;
        let (clock, system) = if let Some(clock) = self.clock {
            (clock, None)
        } else {
            let system = Arc::new(SystemClock::new());
            (Arc::clone(&system) as Arc<dyn Clock>, Some(system))
        };
        let engine = Engine::new(store, clock, rules).with_missing_key(self.missing_key.into());
        let (unsettled, housekeeping) = (self.unsettled, Housekeeping::default());
        let engine = Arc::new(engine);
        Ok(Gate { inner: Arc::new(Inner { engine, unsettled, system, housekeeping }) })
    }
}

impl fmt::Debug for GateBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateBuilder").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// One rule set of the rules in Rust types and those of rule files.
fn compile(rules: &[Rule], yaml: &[String]) -> Result<RuleSet, Error> {
    let mut names: Vec<String> = rules.iter().map(Rule::name).collect();
    names.sort_unstable();
    if let Some(twice) =
        names.windows(2).find_map(|two| (two.first() == two.last()).then(|| two.first())).flatten()
    {
        let message = format!("two rules are named {twice:?}; give one of them another id()");
        return Err(Error::Rules(message));
    }
    let (typed, problems): (Vec<_>, Vec<_>) =
        rules.iter().map(Rule::to_json).partition(Result::is_ok);
    let problems: Vec<String> = problems.into_iter().filter_map(Result::err).collect();
    if !problems.is_empty() {
        return Err(Error::Rules(problems.join("\n")));
    }
    let typed: Vec<_> = typed.into_iter().filter_map(Result::ok).collect();
    let text = serde_json::json!({ "rules": typed, "default": false }).to_string();
    crate::rule_files::merge(&text, yaml)
}

impl From<MissingKey> for tollgate_engine::MissingKey {
    fn from(policy: MissingKey) -> Self {
        match policy {
            MissingKey::Allow => Self::Allow,
            MissingKey::Reject => Self::Reject,
            MissingKey::Error => Self::Error,
        }
    }
}

/// A store in memory, unless another one is chosen.
impl Default for Storage {
    fn default() -> Self {
        Self::memory(crate::DEFAULT_MAX_COUNTERS)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_store::MemoryStore;

    use super::*;
    use crate::{Memory, Quota, TestClock};

    #[cfg(feature = "redis")]
    fn memory(gate: &Gate) -> &MemoryStore {
        let GateStore::Memory(store) = gate.inner.engine.store() else { panic!("not in memory") };
        store
    }

    #[cfg(not(feature = "redis"))]
    fn memory(gate: &Gate) -> &MemoryStore {
        gate.inner.engine.store()
    }

    #[test]
    fn memory_is_bounded_and_counters_that_are_reset_are_freed() {
        let clock = TestClock::new();
        let gate = Gate::builder()
            .rule(Rule::per("user_id").quota(Quota::per_second(1)))
            .store(Memory::counters(1_000))
            .clock(clock.clone())
            .build()
            .unwrap();
        for number in 0..5_000 {
            assert!(gate.check_now(&Client::user(&number.to_string())).unwrap().is_allowed());
        }
        assert!(memory(&gate).usage().counters <= 1_000);
        for _ in 0..crate::housekeeping::TIDY_PARTS {
            clock.advance(Duration::from_secs(1));
            assert!(gate.peek_now(&Client::user("ann")).unwrap().is_allowed());
        }
        assert_eq!(memory(&gate).usage().counters, 0);
    }
}
