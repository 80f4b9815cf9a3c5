//! A request to decide, as a caller states it.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tollgate_proto::v1::AllowRequest;

use crate::usage::{Money, Usage};

/// Declares [`Check`] with a builder method for each of its texts, and its message in gRPC.
macro_rules! check {
    ($($(#[$doc:meta])+ $name:ident),+ $(,)?) => {
        /// A request to decide. Everything is optional; rules that need what is absent do not apply.
        #[derive(Clone, Default, PartialEq, Eq, Hash, Serialize)]
        #[serde(rename_all = "camelCase")]
        pub struct Check {
            $(
                #[serde(skip_serializing_if = "Option::is_none")]
                pub(crate) $name: Option<String>,
            )+
            #[serde(skip_serializing_if = "Option::is_none")]
            pub(crate) cost: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub(crate) tokens: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub(crate) input_tokens: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub(crate) output_tokens: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub(crate) cached_tokens: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub(crate) money: Option<Money>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub(crate) usage: Option<Usage>,
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            pub(crate) attributes: BTreeMap<String, String>,
        }

        impl Check {
            $(
                $(#[$doc])+
                #[must_use]
                pub fn $name(mut self, value: impl Into<String>) -> Self {
                    self.$name = Some(value.into());
                    self
                }
            )+

            /// The message in gRPC, where an absent text is empty.
            pub(crate) fn to_message(&self) -> AllowRequest {
                AllowRequest {
                    $($name: self.$name.clone().unwrap_or_default(),)+
                    cost: self.cost,
                    tokens: self.tokens,
                    input_tokens: self.input_tokens,
                    output_tokens: self.output_tokens,
                    cached_tokens: self.cached_tokens,
                    money: self.money.clone().map(Money::into_message),
                    usage: self.usage.map(Usage::into_message),
                    attributes: self.attributes.clone(),
                }
            }
        }
    };
}

check! {
    /// The user.
    user_id,
    /// The model.
    model_id,
    /// The API key.
    api_key,
    /// The tenant.
    tenant_id,
    /// The class of the model.
    model_tier,
    /// INTERNAL, PARTNER, EXTERNAL or the like.
    client_type,
    /// The path that is asked for.
    endpoint,
    /// The HTTP method.
    method,
    /// The client's address.
    ip,
    /// The caller's plan.
    tier,
    /// The host that is called.
    domain,
    /// Makes the call idempotent for 60 s.
    request_id,
}

// By hand, because the key is a secret.
impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("user_id", &self.user_id)
            .field("tenant_id", &self.tenant_id)
            .field("api_key", &self.api_key.as_ref().map(|_| "…"))
            .field("model_id", &self.model_id)
            .field("endpoint", &self.endpoint)
            .field("method", &self.method)
            .field("cost", &self.cost)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

impl Check {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What it costs on rules of unit requests or cost; 1, or what the rule says, if not given.
    #[must_use]
    pub const fn cost(mut self, cost: u64) -> Self {
        self.cost = Some(cost);
        self
    }

    /// What it costs on rules of unit tokens; 0 if not given.
    #[must_use]
    pub const fn tokens(mut self, tokens: u64) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// What it costs on rules of unit `input_tokens`.
    #[must_use]
    pub const fn input_tokens(mut self, tokens: u64) -> Self {
        self.input_tokens = Some(tokens);
        self
    }

    /// What it costs on rules of unit `output_tokens`.
    #[must_use]
    pub const fn output_tokens(mut self, tokens: u64) -> Self {
        self.output_tokens = Some(tokens);
        self
    }

    /// What it costs on rules of unit `cached_tokens`.
    #[must_use]
    pub const fn cached_tokens(mut self, tokens: u64) -> Self {
        self.cached_tokens = Some(tokens);
        self
    }

    /// What it costs on rules of unit money.
    #[must_use]
    pub fn money(mut self, money: Money) -> Self {
        self.money = Some(money);
        self
    }

    /// What it uses by kind; the server prices it by the model.
    #[must_use]
    pub const fn usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }

    /// A further attribute.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.insert(name.into(), value.into());
        self
    }
}
