//! What the requests of a route are.

use serde::{Deserialize, Serialize};
use tollgate_gateway::ai::Protocol;

/// What the requests of a route are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteKind {
    /// Anything that HTTP carries.
    #[default]
    Http,
    /// For models, in the words of the OpenAI API.
    OpenAi,
    /// For models, in the words of the Anthropic API.
    Anthropic,
}

impl RouteKind {
    /// The API of models that clients speak, where it is one.
    pub const fn protocol(self) -> Option<Protocol> {
        match self {
            Self::Http => None,
            Self::OpenAi => Some(Protocol::OpenAi),
            Self::Anthropic => Some(Protocol::Anthropic),
        }
    }
}
