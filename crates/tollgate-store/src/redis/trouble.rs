//! What an error of Redis means, and what can be done about it.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::Failure;

/// Whether a server says that it has no database of the number it was asked for.
pub(super) fn is_no_database(text: &str) -> bool {
    text.contains("DB index is out of range")
}

/// Whether a server says that it is no sentinel.
pub(super) fn is_no_sentinel(text: &str) -> bool {
    text.contains("unknown command") && text.contains("SENTINEL")
}

/// Why an attempt did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The server does not know the script: send it.
    NoScript,
    /// The slot is on another node now.
    Moved(String),
    /// The slot is on its way: ask there, this once.
    Ask(String),
    /// Some of the keys are on their way: it may run in a moment.
    TryAgain,
    /// It did not run; it may in a moment.
    Again(Failure, String),
    /// It did not run, and will not on this server: look for the right one.
    Elsewhere(Failure, String),
    /// It may have run or not.
    Lost(Failure, String),
    /// It did not run, and trying again is no use.
    Final(Failure, String),
}

impl Trouble {
    pub(super) fn of(error: &RedisError) -> Self {
        let text = error.to_string();
        if let ErrorKind::Server(kind) = error.kind()
            && let Some(trouble) = Self::of_kind(kind, error, &text)
        {
            return trouble;
        }
        match error.kind() {
            ErrorKind::Io if error.is_timeout() => Self::Lost(Failure::Timeout, text),
            ErrorKind::Io => Self::Lost(Failure::Connection, text),
            ErrorKind::AuthenticationFailed => Self::Final(Failure::Denied, text),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
                Self::Final(Failure::Protocol, text)
            }
            _ if error.code().is_some() => Self::of_code(error.code().unwrap_or_default(), text),
            _ => Self::Lost(Failure::Connection, text),
        }
    }

    /// What is wrong with the server, if anything is.
    pub(super) const fn failure(&self) -> Option<Failure> {
        match self {
            Self::Again(failure, _)
            | Self::Elsewhere(failure, _)
            | Self::Lost(failure, _)
            | Self::Final(failure, _) => Some(*failure),
            Self::NoScript | Self::Moved(_) | Self::Ask(_) | Self::TryAgain => None,
        }
    }

    /// What it says about it.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Moved(text)
            | Self::Ask(text)
            | Self::Again(_, text)
            | Self::Elsewhere(_, text)
            | Self::Lost(_, text)
            | Self::Final(_, text) => text,
            Self::NoScript | Self::TryAgain => "",
        }
    }

    /// Whether the connection is of no more use.
    pub(super) const fn breaks_connection(&self) -> bool {
        matches!(self, Self::Lost(..) | Self::Elsewhere(..) | Self::Final(Failure::Protocol, _))
    }

    fn of_kind(kind: ServerErrorKind, error: &RedisError, text: &str) -> Option<Self> {
        let text = || text.to_owned();
        let target = || error.redirect_node().map(|(address, _)| address.to_owned());
        Some(match kind {
            ServerErrorKind::NoScript => Self::NoScript,
            ServerErrorKind::Moved => Self::Moved(target()?),
            ServerErrorKind::Ask => Self::Ask(target()?),
            ServerErrorKind::TryAgain => Self::TryAgain,
            ServerErrorKind::BusyLoading
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown => Self::Again(Failure::NotReady, text()),
            ServerErrorKind::ReadOnly => Self::Elsewhere(Failure::ReadOnly, text()),
            ServerErrorKind::CrossSlot => Self::Final(Failure::WrongKind, text()),
            ServerErrorKind::NoPerm => Self::Final(Failure::Denied, text()),
            _ => return None,
        })
    }

    /// Errors that the client library has no name for. Redis 6 wraps what went wrong inside a script.
    fn of_code(code: &str, text: String) -> Self {
        let says = |word: &str| code == word || code == "ERR" && text.contains(word);
        if says("OOM") {
            Self::Final(Failure::OutOfMemory, text)
        } else if says("READONLY") {
            Self::Elsewhere(Failure::ReadOnly, text)
        } else if says("NOREPLICAS") || says("MISCONF") {
            Self::Final(Failure::ReadOnly, text)
        } else if says("NOAUTH") || says("WRONGPASS") || says("NOPERM") {
            Self::Final(Failure::Denied, text)
        } else if code == "BUSY" {
            Self::Again(Failure::Timeout, text)
        } else if text.contains("cluster support disabled")
            || is_no_database(&text)
            || is_no_sentinel(&text)
        {
            Self::Final(Failure::WrongKind, text)
        } else if text.contains("invalid password") || text.contains("AUTH") {
            Self::Final(Failure::Denied, text)
        } else if text.contains("max number of clients") {
            Self::Lost(Failure::Connection, text)
        } else {
            Self::Final(Failure::Script, text)
        }
    }
}
