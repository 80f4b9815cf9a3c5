//! The calls of all APIs that are metered.

use super::protocol::Protocol;

/// Which call of its API a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Chat,
    Completions,
    Embeddings,
    Responses,
    Messages,
    CountTokens,
}

impl Call {
    /// The API that it is a call of.
    pub(crate) const fn protocol(self) -> Protocol {
        match self {
            Self::Chat | Self::Completions | Self::Embeddings | Self::Responses => Protocol::OpenAi,
            Self::Messages | Self::CountTokens => Protocol::Anthropic,
        }
    }

    /// Whether a model writes an answer.
    pub(crate) const fn has_answer(self) -> bool {
        !matches!(self, Self::Embeddings | Self::CountTokens)
    }

    /// Whether its stream states what it used only where it is asked to.
    pub(crate) const fn has_stream_options(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}
