//! What came of a request.

/// The decisions that came back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) allowed: u32,
    pub(crate) refused: u32,
    /// Parts of a batch that were not decided.
    pub(crate) failed: u32,
}

impl Answer {
    pub(crate) const fn single(is_allowed: bool) -> Self {
        Self { allowed: is_allowed as u32, refused: !is_allowed as u32, failed: 0 }
    }
}

/// Why no decision came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// No connection could be made.
    Connect,
    /// No whole answer within its time.
    Timeout,
    /// The connection ended before the answer did.
    Closed,
    /// What came was no answer.
    Protocol,
    /// HTTP said something else than 200.
    Status(u16),
    /// gRPC said something else than OK.
    Grpc(u32),
    /// A part of a batch was not decided.
    Part,
}

impl Fault {
    /// Its name in reports.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Connect => "connect".to_owned(),
            Self::Timeout => "timeout".to_owned(),
            Self::Closed => "closed".to_owned(),
            Self::Protocol => "protocol".to_owned(),
            Self::Status(status) => format!("http_{status}"),
            Self::Grpc(code) => format!("grpc_{}", grpc_name(code)),
            Self::Part => "batch_item".to_owned(),
        }
    }

    /// Whether the connection can be used on.
    pub(crate) const fn is_answer(self) -> bool {
        matches!(self, Self::Status(_) | Self::Grpc(_))
    }
}

fn grpc_name(code: u32) -> String {
    const NAMES: [&str; 17] = [
        "ok",
        "cancelled",
        "unknown",
        "invalid_argument",
        "deadline_exceeded",
        "not_found",
        "already_exists",
        "permission_denied",
        "resource_exhausted",
        "failed_precondition",
        "aborted",
        "out_of_range",
        "unimplemented",
        "internal",
        "unavailable",
        "data_loss",
        "unauthenticated",
    ];
    NAMES.get(code as usize).map_or_else(|| code.to_string(), |&name| name.to_owned())
}
