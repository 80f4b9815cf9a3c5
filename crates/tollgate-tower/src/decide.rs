//! What the layer asks, and what it is told.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};

use crate::bill::{Bill, Unsent};
use crate::headers::HeaderLines;
use crate::held::Held;
use crate::identity::Identity;
use crate::refusal::problem;

/// A request at the edge, as far as rules look at it.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct Asked {
    /// Who calls, verified.
    pub identity: Identity,
    /// The path, normalised ([`tollgate_policy::normalize_path`]).
    pub endpoint: Option<String>,
    /// The HTTP method.
    pub method: Option<String>,
    /// The host that is called.
    pub domain: Option<String>,
    /// The model, where the edge knows it.
    pub model_id: Option<String>,
    /// What it costs, where the edge knows better than the rules.
    pub cost: Option<u64>,
    /// How many tokens it is thought to cost. What it truly cost is told to its [`Bill`].
    #[serde(default)]
    pub tokens: Option<u64>,
    /// More tokens for a request that was let pass before: only limits of tokens are asked, no request is counted, no
    /// slot is taken, and nothing waits.
    #[serde(default)]
    pub is_more: bool,
    /// Whose words headers and refusals are in.
    #[serde(default)]
    pub dialect: Dialect,
}

/// Whose words headers and refusals are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Dialect {
    /// Our own.
    #[default]
    Plain,
    /// Those of the OpenAI API, with our headers beside them.
    OpenAi,
}

/// Which rule refused: an extension of the refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The rule.
    pub rule_id: String,
    /// Where nothing but slots was missing, and their rules let requests wait for one: for which, and how long.
    pub line: Option<Line>,
}

/// What a request waits for that finds no slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The rule and the key of its counter. Holds no secret.
    pub lane: String,
    /// For how long at most.
    pub max_wait: Duration,
}

/// What becomes of a request at the edge.
#[derive(Debug)]
pub enum Ruling {
    /// It goes on.
    Pass(Pass),
    /// It is answered with this, and goes nowhere.
    Refuse(Response<Bytes>),
    /// It is refused now, and its rule asks for it to be kept and sent later.
    Queue(Postponed),
}

/// A request that goes on.
#[derive(Debug, Default)]
pub struct Pass {
    /// How long it waits before it does.
    pub wait: Duration,
    /// What the answer to it is to carry.
    pub headers: HeaderLines,
    /// What it holds while it is under way, such as a concurrency slot; given back when dropped.
    pub held: Option<Held>,
    /// What it was charged, where it waits: given back when dropped before the request went on.
    pub charged: Option<Held>,
    /// What it was charged on an estimate ([`Asked::tokens`]), to be settled when the truth is known.
    pub bill: Option<Bill>,
    /// What others may wait for that this one got.
    pub lines: Vec<Line>,
}

/// A request that is to be sent later.
#[derive(Debug)]
pub struct Postponed {
    /// What it is answered where there is no queue, or no room in it.
    pub refusal: Response<Bytes>,
    /// The rule that asks for it.
    pub rule_id: String,
    /// Requests of one lane are sent in order: the rule and the key of its counter. Holds no secret.
    pub lane: String,
    /// When it would pass, absent other traffic.
    pub retry_after: Duration,
}

/// A ruling on its way to whoever asked. One that nobody takes any more gives back what was charged.
pub(crate) struct Undelivered(Option<Ruling>);

impl Undelivered {
    pub(crate) const fn new(ruling: Ruling) -> Self {
        Self(Some(ruling))
    }

    pub(crate) fn deliver(mut self) -> Ruling {
        self.0.take().unwrap_or_else(no_ruling)
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if let Some(Ruling::Pass(pass)) = self.0.take() {
            drop(Unsent::new(pass.bill));
        }
    }
}

/// Where a decision broke off.
pub(crate) fn no_ruling() -> Ruling {
    let status = http::StatusCode::INTERNAL_SERVER_ERROR;
    Ruling::Refuse(problem(status, "INTERNAL", "something went wrong here"))
}

/// Decides requests at the edge: an engine in this process, or a Tollgate elsewhere.
pub trait Decide: Send + Sync + 'static {
    /// Decides, and charges if it passes. `accepted` are the request's headers, which say what kind
    /// of refusal the client reads.
    fn decide(&self, asked: &Asked, accepted: &HeaderMap) -> impl Future<Output = Ruling> + Send;

    /// The same, where nothing need be waited for; None where something must be, and nothing has been decided.
    fn decide_now(&self, asked: &Asked, accepted: &HeaderMap) -> Option<Ruling> {
        let _ = (asked, accepted);
        None
    }
}
