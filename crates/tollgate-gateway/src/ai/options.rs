//! How models are served: plain values, checked by [`crate::Gateway::new`].

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate_tower::Identity;

use super::models::Models;
use super::text::{EstimateMode, Tariff, Tokenizer};
use crate::places::Party;

/// The most models that can be listed.
pub const MAX_MODELS: usize = 1_000;

/// The longest road from a model to what is served in its place.
pub const MAX_FALLBACKS: usize = 4;

/// The largest body that can be allowed.
pub const MAX_BODY_BYTES: usize = 256 << 20;

/// How routes of kind `openai` are served.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is one choice of the configuration")]
pub struct AiOptions {
    /// The largest body of a request.
    pub max_body_bytes: usize,
    /// The most that all bodies together take up while they are read, and until their answers begin.
    pub max_buffered_bytes: usize,
    /// How long a client may take to send a body in all.
    pub body_timeout: Duration,
    /// How texts become numbers of tokens.
    pub tariff: Tariff,
    /// How many tokens an answer is thought to have, where neither the client nor experience says.
    pub default_output_tokens: u64,
    /// Where an upstream is asked for no more than a hard budget has reserved, in chat completions without a bound.
    pub bound_field: BoundField,
    /// Whether what a model's answers had is learned from.
    pub learns: bool,
    /// The models. Without any, every model goes to its route's pool under its own name.
    pub models: Vec<ModelOptions>,
    /// Whether models that are not listed go to their route's pool, where some are.
    pub forwards_unknown: bool,
    /// Whether `GET …/models` is answered with the models listed here.
    pub lists_models: bool,
    /// What becomes of a stream that brings more than was reserved for it.
    pub overrun: Overrun,
    /// Whether other calls than those whose tokens are counted, and the list of models, go to the upstream.
    pub others: Others,
    /// Paths of calls that go to the upstream uncounted, next to those that only read something: whole ones, or `/x/*` for
    /// everything below `/x` that makes no model work.
    pub forward_paths: Vec<String>,
    /// What becomes of callers of whom nothing but the address is known.
    pub anonymous: Anonymous,
    /// Who gets how much of what is scarce.
    pub weights: Weights,
    /// The most requests that wait for slots of one rule.
    pub max_waiting: usize,
    /// The most tokens that a request can use, times its answers. What an upstream states beyond that is not believed.
    pub max_usage_tokens: u64,
    /// For how long a response that is made in the background can be asked for here, and keeps its reservation.
    pub background_ttl: Duration,
    /// Whether answers name a model as clients do, and not by its [`ModelOptions::upstream_name`].
    pub hides_upstream_names: bool,
    /// Whether upstreams see the host that the client called, and not their own.
    pub preserves_host: bool,
}

impl Default for AiOptions {
    fn default() -> Self {
        Self {
            max_body_bytes: 10 << 20,
            max_buffered_bytes: 256 << 20,
            body_timeout: Duration::from_secs(120),
            tariff: Tariff::default(),
            default_output_tokens: 1_000,
            bound_field: BoundField::default(),
            learns: true,
            models: Vec::new(),
            forwards_unknown: false,
            lists_models: false,
            overrun: Overrun::default(),
            others: Others::default(),
            forward_paths: Vec::new(),
            anonymous: Anonymous::default(),
            weights: Weights::default(),
            max_waiting: 1_000,
            max_usage_tokens: 10_000_000,
            background_ttl: Duration::from_secs(3_600),
            hides_upstream_names: true,
            preserves_host: false,
        }
    }
}

impl AiOptions {
    /// Says what is wrong with [`Self::forward_paths`].
    pub fn check_forward_paths(&self) -> Result<(), String> {
        super::other_calls::check(self)
    }

    /// Says what is wrong with the rest, where these are the pools.
    pub fn check<'p>(&self, pools: impl Iterator<Item = &'p String>) -> Result<(), String> {
        let places = pools.map(|name| (name.as_str(), 0)).collect();
        Models::new(self, &places).map(|_| ())
    }
}

/// The field of a chat completion that bounds its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BoundField {
    /// `max_tokens`, which all servers read. OpenAI's models that reason refuse it.
    #[default]
    MaxTokens,
    /// `max_completion_tokens`, which some servers ignore.
    MaxCompletionTokens,
}

impl BoundField {
    /// Every choice with its name in the configuration.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("max_tokens", Self::MaxTokens), ("max_completion_tokens", Self::MaxCompletionTokens)];

    /// The name in the configuration, and in a request.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
        }
    }
}

/// What becomes of calls that are not known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Others {
    /// There are none.
    #[default]
    Refuse,
    /// Those that read something and make no model work go to the upstream, and those that [`AiOptions::forward_paths`]
    /// names, uncounted but for the request itself.
    Forward,
}

impl Others {
    /// Every choice with its name in the configuration.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("refuse", Self::Refuse), ("forward", Self::Forward)];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, it)| *it == self).map_or("", |(name, _)| name)
    }
}

/// What becomes of callers without a key or a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Anonymous {
    /// They are refused where there are keys or tokens that they could show.
    #[default]
    Auto,
    /// They are refused.
    Refuse,
    /// They are served.
    Allow,
}

impl Anonymous {
    /// Every choice with its name in the configuration.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("refuse", Self::Refuse), ("allow", Self::Allow)];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, it)| *it == self).map_or("", |(name, _)| name)
    }
}

/// What becomes of a stream that brings more than was reserved for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overrun {
    /// It goes on; what it used beyond is a debt.
    #[default]
    Run,
    /// It ends with an error.
    Stop,
    /// More is reserved, and it ends where there is none.
    TopUp,
}

impl Overrun {
    /// Every choice with its name in the configuration.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("run", Self::Run), ("stop", Self::Stop), ("top_up", Self::TopUp)];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, overrun)| *overrun == self).map_or("", |(name, _)| name)
    }
}

/// How much a caller gets beside others that wait with it; 1 where nothing is said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Weights {
    /// By tenant.
    pub tenants: BTreeMap<String, u32>,
    /// By plan, where the tenant has none of its own.
    pub tiers: BTreeMap<String, u32>,
}

impl Weights {
    /// Who shares as one, by kind and name, and how much that gets: a tenant, else a key, a user, an address.
    pub(crate) fn of(&self, identity: &Identity) -> (String, u32) {
        let who = match Party::of(identity) {
            Party::Tenant(name) => format!("tenant_id {name}"),
            Party::Client(kind, name) => format!("{kind} {name}"),
        };
        let own = identity.tenant_id.as_ref().and_then(|tenant| self.tenants.get(tenant));
        let plan = || identity.tier.as_ref().and_then(|tier| self.tiers.get(tier));
        (who, own.or_else(plan).copied().unwrap_or(1))
    }
}

/// A model.
#[derive(Debug, Clone, Default)]
pub struct ModelOptions {
    /// What clients, rules and metrics call it. A `*` at the end is for any rest: then each is its own model.
    pub name: String,
    /// Other names that clients may use.
    pub aliases: Vec<String>,
    /// Who serves it; the route's pool where none is named.
    pub pool: Option<String>,
    /// What its upstream calls it.
    pub upstream_name: Option<String>,
    /// What counts its tokens.
    pub tokenizer: Option<Tokenizer>,
    /// How its prompts are estimated.
    pub estimate: Option<EstimateMode>,
    /// The most tokens that an answer can have: nobody is charged more in advance, whatever it asks for.
    pub max_output_tokens: Option<u64>,
    /// See [`AiOptions::default_output_tokens`].
    pub default_output_tokens: Option<u64>,
    /// See [`AiOptions::bound_field`].
    pub bound_field: Option<BoundField>,
    /// See [`AiOptions::max_usage_tokens`].
    pub max_usage_tokens: Option<u64>,
    /// The model that is served in its place when its pool is full or cannot be reached, or a rule of
    /// [`Self::fallback_rules`] refuses.
    pub fallback: Option<String>,
    /// The rules whose refusals lead to [`Self::fallback`].
    pub fallback_rules: Vec<String>,
    /// Whether its upstream is not to be asked what a stream used, because it does not understand that.
    pub keeps_quiet: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_of_different_kinds_share_nothing() {
        let name = || Some("acme".to_owned());
        let callers = [
            Identity { tenant_id: name(), api_key: name(), ..Identity::default() },
            Identity { api_key: name(), user_id: name(), ..Identity::default() },
            Identity { user_id: name(), ip: name(), ..Identity::default() },
            Identity { ip: name(), ..Identity::default() },
            Identity::default(),
        ];
        let weights = Weights { tenants: [("acme".to_owned(), 7)].into(), ..Weights::default() };
        let keys: std::collections::BTreeSet<String> =
            callers.iter().map(|caller| weights.of(caller).0).collect();
        assert_eq!(keys.len(), callers.len(), "{keys:?}");
        let weights = callers.each_ref().map(|caller| weights.of(caller).1);
        assert_eq!(weights, [7, 1, 1, 1, 1]);
    }
}
