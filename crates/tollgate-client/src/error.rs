//! Why there is no decision.

use std::time::Duration;

/// Why there is no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// Not an address of a Tollgate.
    #[error("the URL {0}")]
    Url(&'static str),
    /// TLS, or a token, that cannot be used.
    #[error("{0}")]
    Setup(String),
    /// No answer within the deadline.
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// No connection, or it broke.
    #[error("Tollgate cannot be reached: {0}")]
    Unreachable(String),
    /// It answers, and cannot decide.
    #[error("Tollgate cannot decide: {message}")]
    Unavailable {
        /// What it says.
        message: String,
        /// When it may be asked again.
        retry_after: Option<Duration>,
    },
    /// The token is missing or wrong.
    #[error("Tollgate does not take the token: {0}")]
    Unauthorized(String),
    /// The request is wrong.
    #[error("the request is refused as wrong ({code}): {message}")]
    Rejected {
        /// `INVALID_REQUEST` or the like.
        code: String,
        /// What is wrong.
        message: String,
        /// In which field.
        field: Option<String>,
    },
    /// What came back is not what a Tollgate says.
    #[error("the answer cannot be read: {0}")]
    Unreadable(String),
}

impl ClientError {
    /// Whether the fault is not the request's: what [`OnFailure`](crate::OnFailure) is for.
    pub const fn is_outage(&self) -> bool {
        !matches!(self, Self::Rejected { .. } | Self::Url(_) | Self::Setup(_))
    }

    /// Whether the same call may succeed a little later.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Unreachable(_) | Self::Unavailable { .. })
    }
}
