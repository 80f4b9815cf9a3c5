//! A request that is not passed on, as data. It is rendered once, at the end: see [`crate::render`].

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderName, HeaderValue};
use tollgate_engine::{Decision, Reason};
use tollgate_policy::Unit;

use crate::decide::Line;
use crate::dialect::Dialect;
use crate::headers::{HeaderFamilies, HeaderLines};

/// Why a request is not passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The HTTP status.
    pub status: StatusCode,
    /// For programs, in upper case: `RATE_LIMIT_EXCEEDED`.
    pub code: Cow<'static, str>,
    /// For people.
    pub message: Cow<'static, str>,
    /// After how long the same request may pass, where that is known.
    pub retry_after: Option<Duration>,
    /// Headers of the response: figures of the deciding limit, a challenge, allowed methods.
    pub headers: HeaderLines,
    /// The field of the request that is wrong, where it is one.
    pub param: Option<&'static str>,
    /// The rules that refused. None where something else than a rule or a list is in the way.
    pub refused_by: Option<RefusedBy>,
}

/// The rules that refused a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefusedBy {
    /// The rule that decided.
    pub rule_id: Option<String>,
    /// Its scope.
    pub scope: Option<String>,
    /// What its limit counts.
    pub unit: Option<Unit>,
    /// All rules that refused.
    pub violated: Vec<String>,
    /// Where nothing but slots was missing, and their rules let requests wait for one: for which, and how long.
    pub line: Option<Line>,
}

impl Rejection {
    /// Something else than a rule is in the way.
    pub fn new(
        status: StatusCode,
        code: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            code: code.into(),
            message: message.into(),
            retry_after: None,
            headers: HeaderLines::default(),
            param: None,
            refused_by: None,
        }
    }

    /// A request that would wait for its turn where too many do.
    pub fn too_many_waiting() -> Self {
        let message = "too many requests wait for their turn; try again in a moment";
        let rejection = Self::new(StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_WAITING", message);
        rejection.retry_after(Duration::from_secs(1))
    }

    /// Says after how long to try again.
    #[must_use]
    pub const fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Adds a header of the response.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push(name, value);
        self
    }

    /// Names the field of the request that is wrong.
    #[must_use]
    pub const fn param(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    /// The rejection that a decision asks for. Its headers are those of `dialect` and of the families that are on.
    pub fn of(
        decision: &Decision<'_>,
        line: Option<Line>,
        dialect: Dialect,
        on: HeaderFamilies,
    ) -> Self {
        let deciding = decision.deciding();
        let refusing = decision.scopes().filter(|scope| scope.refuses());
        Self {
            status: status_of(decision.reason),
            code: Cow::Borrowed(code_of(decision.reason)),
            message: Cow::Owned(decision.explain()),
            retry_after: decision.retry_after().map(Duration::from_nanos),
            headers: HeaderLines::describing(decision, dialect, on),
            param: None,
            // Credentials are no limit: clients must not wait and try again.
            refused_by: (!decision.reason.is_unauthorized()).then(|| RefusedBy {
                rule_id: deciding.map(|scope| scope.rule.id.clone()),
                scope: deciding.map(|scope| scope.rule.scope.clone()),
                unit: deciding.map(|scope| scope.rule.unit),
                violated: refusing.map(|scope| scope.rule.id.clone()).collect(),
                line,
            }),
        }
    }

    /// The rule that refused, if one did.
    pub fn rule_id(&self) -> Option<&str> {
        self.refused_by.as_ref()?.rule_id.as_deref()
    }

    /// What the request may wait for, if it may.
    pub fn line(&self) -> Option<&Line> {
        self.refused_by.as_ref()?.line.as_ref()
    }
}

/// The status of a refusal.
pub(crate) const fn status_of(reason: Reason) -> StatusCode {
    match reason {
        Reason::DenyListed | Reason::ModelNotAllowed => StatusCode::FORBIDDEN,
        Reason::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        Reason::MissingKey => StatusCode::BAD_REQUEST,
        Reason::InvalidApiKey => StatusCode::UNAUTHORIZED,
        _ => StatusCode::TOO_MANY_REQUESTS,
    }
}

/// The code of a refusal. That a limit was hit is one code, whatever its rule calls the reason.
pub(crate) const fn code_of(reason: Reason) -> &'static str {
    match reason {
        Reason::DenyListed
        | Reason::CostExceedsLimit
        | Reason::NoMatch
        | Reason::MissingKey
        | Reason::InvalidApiKey
        | Reason::ModelNotAllowed
        | Reason::StoreUnavailable => reason.code(),
        _ => "RATE_LIMIT_EXCEEDED",
    }
}
