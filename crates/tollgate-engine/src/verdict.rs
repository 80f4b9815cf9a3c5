//! What becomes of a request, and why, in one word each.

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Allowed,
    /// It goes on after a wait.
    Throttled,
    /// It is refused.
    Denied,
    /// It is refused, and its rule asks for it to be stored and sent later.
    Queued,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 4] = [Self::Allowed, Self::Throttled, Self::Denied, Self::Queued];

    /// The name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Throttled => "throttled",
            Self::Denied => "denied",
            Self::Queued => "queued",
        }
    }
}

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Every limit had room.
    WithinLimits,
    /// A throttling rule made it wait.
    Throttled,
    /// It is on the allow list; nothing was counted.
    AllowListed,
    /// It is on the deny list.
    DenyListed,
    /// No rule applies to it; `no_match` decided.
    NoMatch,
    /// A limit was hit; the scope that the decision names says which.
    HitLimit,
    /// Its cost is above what a limit can ever pay.
    CostExceedsLimit,
    /// Enforcement is off; nothing was counted.
    EnforcementOff,
    /// The store does not answer, and a rule that applies refuses then.
    StoreUnavailable,
    /// It lacks the key of a rule that it should meet.
    MissingKey,
    /// Its virtual key is not known, or is disabled or expired.
    InvalidApiKey,
    /// Its virtual key may not use its model.
    ModelNotAllowed,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 12] = [
        Self::WithinLimits,
        Self::Throttled,
        Self::AllowListed,
        Self::DenyListed,
        Self::NoMatch,
        Self::HitLimit,
        Self::CostExceedsLimit,
        Self::EnforcementOff,
        Self::StoreUnavailable,
        Self::MissingKey,
        Self::InvalidApiKey,
        Self::ModelNotAllowed,
    ];

    /// The reason as callers see it; for a limit that was hit, the rule's own reason replaces it.
    pub const fn code(self) -> &'static str {
        match self {
            Self::WithinLimits => "WITHIN_LIMITS",
            Self::Throttled => "THROTTLED",
            Self::AllowListed => "ALLOW_LISTED",
            Self::DenyListed => "DENY_LISTED",
            Self::NoMatch => "NO_MATCH",
            Self::HitLimit => "HIT_LIMIT",
            Self::CostExceedsLimit => "COST_EXCEEDS_LIMIT",
            Self::EnforcementOff => "ENFORCEMENT_OFF",
            Self::StoreUnavailable => "STORE_UNAVAILABLE",
            Self::MissingKey => "MISSING_KEY",
            Self::InvalidApiKey => "INVALID_API_KEY",
            Self::ModelNotAllowed => "MODEL_NOT_ALLOWED",
        }
    }

    /// Whether the request's credentials do not permit it. No limit has been asked then.
    pub const fn is_unauthorized(self) -> bool {
        matches!(self, Self::InvalidApiKey | Self::ModelNotAllowed)
    }
}
