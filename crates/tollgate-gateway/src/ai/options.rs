//! How models are served: plain values, checked by [`crate::Gateway::new`].

use super::models::Models;
use super::text::{Tariff, Tokenizer};

/// The most models that can be listed.
pub const MAX_MODELS: usize = 1_000;

/// The longest road from a model to what is served in its place.
pub const MAX_FALLBACKS: usize = 4;

/// The largest body that can be allowed.
pub const MAX_BODY_BYTES: usize = 256 << 20;

/// How routes of kind `openai` are served.
#[derive(Debug, Clone)]
pub struct AiOptions {
    /// The largest body of a request.
    pub max_body_bytes: usize,
    /// How texts become numbers of tokens.
    pub tariff: Tariff,
    /// How many tokens an answer is thought to have, where neither the client nor experience says.
    pub default_output_tokens: u64,
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
}

impl Default for AiOptions {
    fn default() -> Self {
        Self {
            max_body_bytes: 10 << 20,
            tariff: Tariff::default(),
            default_output_tokens: 1_000,
            learns: true,
            models: Vec::new(),
            forwards_unknown: false,
            lists_models: false,
            overrun: Overrun::default(),
        }
    }
}

impl AiOptions {
    /// Says what is wrong with them, where these are the pools.
    pub fn check<'p>(&self, pools: impl Iterator<Item = &'p String>) -> Result<(), String> {
        let places = pools.map(|name| (name.as_str(), 0)).collect();
        Models::new(self, &places).map(|_| ())
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
}

impl Overrun {
    /// Every choice with its name in the configuration.
    pub const ALL: &'static [(&'static str, Self)] = &[("run", Self::Run), ("stop", Self::Stop)];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, overrun)| *overrun == self).map_or("", |(name, _)| name)
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
    /// The most tokens that an answer can have: nobody is charged more in advance, whatever it asks for.
    pub max_output_tokens: Option<u64>,
    /// See [`AiOptions::default_output_tokens`].
    pub default_output_tokens: Option<u64>,
    /// The model that is served in its place when its pool is full, or a rule of [`Self::fallback_rules`] refuses.
    pub fallback: Option<String>,
    /// The rules whose refusals lead to [`Self::fallback`].
    pub fallback_rules: Vec<String>,
    /// Whether its upstream is not to be asked what a stream used, because it does not understand that.
    pub keeps_quiet: bool,
}
