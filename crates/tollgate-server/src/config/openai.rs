//! Models behind the gateway.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_gateway::ai::options::{
    AiOptions, Anonymous, BoundField, ModelOptions, Others, Overrun, Weights,
};
use tollgate_gateway::ai::{EstimateMode, Tariff, Tokenizer};

use super::check::{millis, size};
use super::read::Reader;

/// The largest number of tokens that anything is said to have.
const MAX_TOKENS: u64 = 1_000_000_000;

/// How models are served.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct OpenAiConfig {
    /// The largest body of a request.
    pub max_body_bytes: usize,
    /// The most that all bodies together take up.
    pub max_buffered_bytes: usize,
    /// How long a client may take to send one.
    pub body_timeout: Duration,
    /// How texts become numbers of tokens.
    pub tariff: Tariff,
    /// What an answer is thought to have, where nothing better is known.
    pub default_output_tokens: u64,
    /// Where an upstream is asked for no more than a hard budget has reserved.
    pub bound_field: BoundField,
    /// Whether experience is better.
    pub learn_output_tokens: bool,
    /// What becomes of a stream that brings more than was reserved.
    pub stream_overrun: Overrun,
    /// How long an upstream may be silent before and in an answer.
    pub answer_timeout: Duration,
    /// What becomes of other calls than those that are known.
    pub other_calls: Others,
    /// The paths of those that go to the upstream.
    pub forward_paths: Vec<String>,
    /// What becomes of callers without a key or a token.
    pub anonymous: Anonymous,
    /// Whether `GET …/models` is answered here.
    pub list_models: bool,
    /// What becomes of models that are not listed.
    pub unknown_models: UnknownModels,
    /// The most that a request is believed to have used, times its answers.
    pub max_usage_tokens: u64,
    /// For how long a response that is made in the background keeps its reservation.
    pub background_ttl: Duration,
    /// Whether answers name models as clients do.
    pub hide_upstream_names: bool,
    /// Whether upstreams see the Host of the client.
    pub preserve_host: bool,
    /// Who gets how much of what is scarce.
    pub weights: Weights,
    /// The models.
    pub models: Vec<ModelConfig>,
}

/// What becomes of models that are not listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownModels {
    /// They do not exist.
    #[default]
    Refuse,
    /// They go to their route's pool.
    Forward,
}

impl UnknownModels {
    const ALL: &'static [(&'static str, Self)] =
        &[("refuse", Self::Refuse), ("forward", Self::Forward)];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Forward => "forward",
        }
    }
}

/// A model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// What clients and rules call it.
    pub name: String,
    /// Other names.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Who serves it.
    #[serde(default)]
    pub pool: Option<String>,
    /// What its upstream calls it.
    #[serde(default)]
    pub upstream_name: Option<String>,
    /// What counts its tokens.
    #[serde(default)]
    pub tokenizer: Option<String>,
    /// How its prompts are estimated.
    #[serde(default)]
    pub estimate: Option<String>,
    /// The most that an answer can have.
    #[serde(default)]
    pub max_output_tokens: Option<u64>,
    /// What an answer is thought to have.
    #[serde(default)]
    pub default_output_tokens: Option<u64>,
    /// Where its upstream is asked for no more than a hard budget has reserved.
    #[serde(default)]
    pub bound_field: Option<String>,
    /// The most that a request is believed to have used, times its answers.
    #[serde(default)]
    pub max_usage_tokens: Option<u64>,
    /// What is served in its place.
    #[serde(default)]
    pub fallback: Option<String>,
    /// When, besides when its pool is full or cannot be reached.
    #[serde(default)]
    pub fallback_rules: Vec<String>,
    /// Whether its upstream is asked what a stream used.
    #[serde(default = "yes")]
    pub ask_usage: bool,
}

const fn yes() -> bool {
    true
}

impl OpenAiConfig {
    /// As the gateway takes it.
    pub fn options(&self) -> Result<AiOptions, String> {
        let models = self.models.iter().map(ModelConfig::options).collect::<Result<_, _>>()?;
        Ok(AiOptions {
            max_body_bytes: self.max_body_bytes,
            max_buffered_bytes: self.max_buffered_bytes,
            body_timeout: self.body_timeout,
            tariff: self.tariff,
            default_output_tokens: self.default_output_tokens,
            bound_field: self.bound_field,
            learns: self.learn_output_tokens,
            models,
            forwards_unknown: self.unknown_models == UnknownModels::Forward,
            lists_models: self.list_models,
            overrun: self.stream_overrun,
            others: self.other_calls,
            forward_paths: self.forward_paths.clone(),
            anonymous: self.anonymous,
            weights: self.weights.clone(),
            max_usage_tokens: self.max_usage_tokens,
            background_ttl: self.background_ttl,
            hides_upstream_names: self.hide_upstream_names,
            preserves_host: self.preserve_host,
            ..AiOptions::default()
        })
    }
}

impl ModelConfig {
    fn options(&self) -> Result<ModelOptions, String> {
        Ok(ModelOptions {
            name: self.name.clone(),
            aliases: self.aliases.clone(),
            pool: self.pool.clone(),
            upstream_name: self.upstream_name.clone(),
            tokenizer: self.choice("tokenizer", self.tokenizer.as_ref(), Tokenizer::ALL)?,
            estimate: self.choice("estimate", self.estimate.as_ref(), EstimateMode::ALL)?,
            max_output_tokens: self.max_output_tokens,
            default_output_tokens: self.default_output_tokens,
            bound_field: self.choice("bound_field", self.bound_field.as_ref(), BoundField::ALL)?,
            max_usage_tokens: self.max_usage_tokens,
            fallback: self.fallback.clone(),
            fallback_rules: self.fallback_rules.clone(),
            keeps_quiet: !self.ask_usage,
        })
    }

    /// One of several values, by its name.
    fn choice<T: Copy>(
        &self,
        field: &str,
        name: Option<&String>,
        all: &[(&str, T)],
    ) -> Result<Option<T>, String> {
        let Some(name) = name else { return Ok(None) };
        let found = all.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| Some(*value)).ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|(known, _)| *known).collect();
            let (model, known) = (&self.name, known.join(", "));
            format!("model {model:?}: there is no {field} {name:?}; there are {known}")
        })
    }
}

const FORWARD_PATHS: &str = "gateway.openai.forward_paths";

/// Reads `gateway.openai`; `pools` are those that models may name.
pub(super) fn check<P>(reader: &mut Reader, pools: &BTreeMap<String, P>) -> OpenAiConfig {
    let key = "gateway.openai.models";
    let (origin, forward_origin) = (reader.origin(key), reader.origin(FORWARD_PATHS));
    let weights = |reader: &mut Reader, key: &str| {
        let weights: BTreeMap<String, u32> =
            reader.document(key, "a mapping of names to whole numbers").unwrap_or_default();
        weights
    };
    let config = OpenAiConfig {
        max_body_bytes: size(reader, "gateway.openai.max_body_bytes", 1_024, 256 << 20),
        max_buffered_bytes: size(reader, "gateway.openai.max_buffered_bytes", 1_024, 1 << 40),
        body_timeout: millis(reader, "gateway.openai.body_timeout_ms", 1, 3_600_000),
        tariff: Tariff {
            characters_per_token: reader.number("gateway.openai.characters_per_token", 1..=100),
            tokens_per_message: reader.number("gateway.openai.tokens_per_message", 0..=1_000),
            tokens_per_image: reader.number("gateway.openai.tokens_per_image", 0..=1_000_000),
            tokens_per_document: reader
                .number("gateway.openai.tokens_per_document", 1..=MAX_TOKENS),
            history_tokens: reader.number("gateway.openai.history_tokens", 0..=MAX_TOKENS),
            tokenizer: reader.choice("gateway.openai.tokenizer", Tokenizer::ALL),
            estimate: reader.choice("gateway.openai.estimate", EstimateMode::ALL),
        },
        default_output_tokens: reader
            .number("gateway.openai.default_output_tokens", 1..=MAX_TOKENS),
        bound_field: reader.choice("gateway.openai.bound_field", BoundField::ALL),
        learn_output_tokens: reader.boolean("gateway.openai.learn_output_tokens"),
        stream_overrun: reader.choice("gateway.openai.stream_overrun", Overrun::ALL),
        answer_timeout: millis(reader, "gateway.openai.answer_timeout_ms", 1, 86_400_000),
        other_calls: reader.choice("gateway.openai.other_calls", Others::ALL),
        forward_paths: reader.document(FORWARD_PATHS, "a list of paths").unwrap_or_default(),
        anonymous: reader.choice("gateway.openai.anonymous", Anonymous::ALL),
        list_models: reader.boolean("gateway.openai.list_models"),
        unknown_models: reader.choice("gateway.openai.unknown_models", UnknownModels::ALL),
        max_usage_tokens: reader.number("gateway.openai.max_usage_tokens", 1..=MAX_TOKENS),
        background_ttl: millis(reader, "gateway.openai.background_ttl_ms", 1, 86_400_000),
        hide_upstream_names: reader.boolean("gateway.openai.hide_upstream_names"),
        preserve_host: reader.boolean("gateway.openai.preserve_host"),
        weights: Weights {
            tenants: weights(reader, "gateway.openai.tenant_weights"),
            tiers: weights(reader, "gateway.openai.tier_weights"),
        },
        models: reader.document(key, "a list of models").unwrap_or_default(),
    };
    let options = config.options();
    let forwarded = options.as_ref().map_or(Ok(()), AiOptions::check_forward_paths);
    if let (Err(problem), Some(origin)) = (forwarded, forward_origin) {
        reader.wrong(&origin, FORWARD_PATHS, problem);
    }
    let checked = options.and_then(|options| options.check(pools.keys()));
    if let (Err(problem), Some(origin)) = (checked, origin) {
        reader.wrong(&origin, key, problem);
    }
    config
}

/// `gateway.openai` as it is shown.
#[derive(Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(super) struct ShownOpenAi {
    max_body_bytes: usize,
    max_buffered_bytes: usize,
    body_timeout_ms: u64,
    characters_per_token: u64,
    tokens_per_message: u64,
    tokens_per_image: u64,
    tokens_per_document: u64,
    history_tokens: u64,
    tokenizer: &'static str,
    estimate: &'static str,
    default_output_tokens: u64,
    bound_field: &'static str,
    learn_output_tokens: bool,
    stream_overrun: &'static str,
    answer_timeout_ms: u64,
    other_calls: &'static str,
    forward_paths: Option<Vec<String>>,
    anonymous: &'static str,
    list_models: bool,
    unknown_models: &'static str,
    max_usage_tokens: u64,
    background_ttl_ms: u64,
    hide_upstream_names: bool,
    preserve_host: bool,
    tenant_weights: Option<BTreeMap<String, u32>>,
    tier_weights: Option<BTreeMap<String, u32>>,
    models: Option<Vec<ModelConfig>>,
}

impl From<&OpenAiConfig> for ShownOpenAi {
    fn from(config: &OpenAiConfig) -> Self {
        Self {
            max_body_bytes: config.max_body_bytes,
            max_buffered_bytes: config.max_buffered_bytes,
            body_timeout_ms: millis_of(config.body_timeout),
            characters_per_token: config.tariff.characters_per_token,
            tokens_per_message: config.tariff.tokens_per_message,
            tokens_per_image: config.tariff.tokens_per_image,
            tokens_per_document: config.tariff.tokens_per_document,
            history_tokens: config.tariff.history_tokens,
            tokenizer: config.tariff.tokenizer.name(),
            estimate: config.tariff.estimate.name(),
            default_output_tokens: config.default_output_tokens,
            bound_field: config.bound_field.name(),
            learn_output_tokens: config.learn_output_tokens,
            stream_overrun: config.stream_overrun.name(),
            answer_timeout_ms: millis_of(config.answer_timeout),
            other_calls: config.other_calls.name(),
            forward_paths: (!config.forward_paths.is_empty()).then(|| config.forward_paths.clone()),
            anonymous: config.anonymous.name(),
            list_models: config.list_models,
            unknown_models: config.unknown_models.name(),
            max_usage_tokens: config.max_usage_tokens,
            background_ttl_ms: millis_of(config.background_ttl),
            hide_upstream_names: config.hide_upstream_names,
            preserve_host: config.preserve_host,
            tenant_weights: shown(&config.weights.tenants),
            tier_weights: shown(&config.weights.tiers),
            models: (!config.models.is_empty()).then(|| config.models.clone()),
        }
    }
}

fn millis_of(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

fn shown(weights: &BTreeMap<String, u32>) -> Option<BTreeMap<String, u32>> {
    (!weights.is_empty()).then(|| weights.clone())
}
