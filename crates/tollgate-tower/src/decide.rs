//! What the layer asks, and the rulings that it gets.

use std::borrow::Cow;
use std::future::Future;
use std::time::Duration;

use tollgate_policy::prices::{Unstated, Usage};
use tollgate_policy::{PathError, RequestPath};

use crate::dialect::Dialect;
use crate::headers::HeaderLines;
use crate::held::Held;
use crate::identity::Identity;
use crate::pending_charge::Unsent;
use crate::rejection::Rejection;

/// A request at the edge, as far as rules look at it.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct EdgeRequest {
    /// Who calls, verified.
    pub identity: Identity,
    /// The path, normalised ([`tollgate_policy::normalize_path`]).
    pub endpoint: Option<String>,
    /// The path as the service gets it, where it holds an encoded slash: rules are matched with both readings of it
    /// ([`RequestPath`]). Ignored where `endpoint` was replaced by another path.
    #[serde(default)]
    pub sent_path: Option<String>,
    /// The HTTP method.
    pub method: Option<String>,
    /// The host that is called.
    pub domain: Option<String>,
    /// The model, where the edge knows it.
    pub model_id: Option<String>,
    /// What it costs, where the edge knows better than the rules.
    pub cost: Option<u64>,
    /// How many tokens it is thought to cost. What it truly cost settles its [`crate::PendingCharge`].
    #[serde(default)]
    pub tokens: Option<u64>,
    /// What it is thought to use of input and output tokens, where rules may count money.
    #[serde(default)]
    pub usage: Option<EdgeUsage>,
    /// More tokens for a request that was let pass before: only limits of tokens are asked, no request is counted, no
    /// slot is taken, and nothing waits.
    #[serde(default)]
    pub is_more: bool,
    /// It uses no tokens: limits of tokens are not asked, so that a caller in debt may still send it.
    #[serde(default)]
    pub uses_no_tokens: bool,
    /// Whose words headers and refusals are in.
    #[serde(default)]
    pub dialect: Dialect,
}

impl EdgeRequest {
    /// Sets the path from the one that the service gets.
    pub fn set_path(&mut self, sent: &str) -> Result<(), PathError> {
        let path = RequestPath::parse(sent)?;
        self.sent_path = (!path.others().is_empty()).then(|| sent.to_owned());
        self.endpoint = Some(path.into_endpoint().into_owned());
        Ok(())
    }

    /// What it is thought to use, for rules that count money or kinds of tokens: at most, so of the dearest kind that it
    /// may be. More of a request is output.
    pub(crate) fn priced_usage(&self) -> Option<Usage> {
        let EdgeUsage { input, output, may_hear, may_speak } = self.usage?;
        let usage = match self.tokens {
            Some(tokens) if self.is_more => {
                Usage::new(0, tokens).with_requests(0).with_earlier_input(input)
            }
            _ => Usage::new(input, output),
        };
        Some(usage.with_unstated(Unstated::Unknown { may_hear, may_speak }))
    }

    /// The path with all its readings.
    pub(crate) fn path(&self) -> Option<RequestPath<'_>> {
        let endpoint = self.endpoint.as_deref()?;
        let sent = self.sent().and_then(|sent| RequestPath::parse(sent).ok());
        Some(sent.unwrap_or_else(|| RequestPath::from_endpoint(Cow::Borrowed(endpoint))))
    }

    /// The path that was sent, where it has several readings and is still the one that is asked about.
    pub(crate) fn sent(&self) -> Option<&str> {
        let sent = self.sent_path.as_deref()?;
        let path = RequestPath::parse(sent).ok()?;
        (Some(path.endpoint()) == self.endpoint.as_deref()).then_some(sent)
    }
}

/// What a request is thought to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct EdgeUsage {
    /// Input tokens.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// Whether input may be sound, which some models charge more for.
    #[serde(default)]
    pub may_hear: bool,
    /// Whether output may be sound.
    #[serde(default)]
    pub may_speak: bool,
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
    /// It is rejected.
    Refuse(Box<Rejection>),
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
    /// What it was charged, where that can be refunded: because it waits, or on an estimate
    /// ([`EdgeRequest::tokens`]). Dropped before the request was sent, it is refunded.
    pub charge: Unsent,
    /// What others may wait for that this one got.
    pub lines: Vec<Line>,
}

/// A request that is to be sent later.
#[derive(Debug, Clone)]
pub struct Postponed {
    /// How it is rejected where there is no queue, or no room in it.
    pub refusal: Box<Rejection>,
    /// The rule that asks for it.
    pub rule_id: String,
    /// Requests of one lane are sent in order: the rule and the key of its counter. Holds no secret.
    pub lane: String,
    /// When it would pass, absent other traffic.
    pub retry_after: Duration,
}

impl Ruling {
    /// Whether the request may pass now. What would be sent later is rejected.
    pub fn passed(self) -> Result<Pass, Box<Rejection>> {
        match self {
            Self::Pass(pass) => Ok(pass),
            Self::Refuse(rejection) => Err(rejection),
            Self::Queue(postponed) => Err(postponed.refusal),
        }
    }

    /// A request that is rejected.
    pub(crate) fn refuse(rejection: Rejection) -> Self {
        Self::Refuse(Box::new(rejection))
    }
}

/// Where a decision broke off.
pub(crate) fn no_ruling() -> Ruling {
    let status = http::StatusCode::INTERNAL_SERVER_ERROR;
    Ruling::refuse(Rejection::new(status, "INTERNAL", "something went wrong here"))
}

/// Decides requests at the edge: an engine in this process, or a remote Tollgate.
pub trait Decide: Send + Sync + 'static {
    /// Decides, and charges if it passes.
    fn decide(&self, asked: &EdgeRequest) -> impl Future<Output = Ruling> + Send;

    /// The same, where nothing need be waited for; None where something must be, and nothing has been decided.
    fn decide_now(&self, asked: &EdgeRequest) -> Option<Ruling> {
        let _ = asked;
        None
    }

    /// Whether a hard budget applies to this request, so that what is reserved for it must be the most that it can use.
    fn meets_hard_budget(&self, asked: &EdgeRequest) -> bool {
        let _ = asked;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_an_encoded_slash_keeps_what_was_sent() {
        let mut asked = EdgeRequest::default();
        asked.set_path("/files/a%2Fb/..;x/c").unwrap();
        let path = asked.path().unwrap();
        assert_eq!((path.endpoint(), path.others()), ("/files/a/c", &["/files/c".to_owned()][..]));
        // As it is stored with a queued request, and read again.
        let stored = serde_json::to_string(&asked).unwrap();
        let again: EdgeRequest = serde_json::from_str(&stored).unwrap();
        assert_eq!(again.path(), asked.path());
        assert_eq!(again.sent(), Some("/files/a%2Fb/..;x/c"));
        asked.endpoint = Some("/other".to_owned());
        assert!(asked.path().unwrap().others().is_empty(), "another path was put in its place");
        assert_eq!(asked.sent(), None);
        asked.set_path("/plain;x").unwrap();
        assert_eq!((asked.endpoint.as_deref(), asked.sent_path), (Some("/plain"), None));
    }
}
