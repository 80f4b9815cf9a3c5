//! What a store answers beside the outcomes, and why it did not.

use std::fmt;

use tollgate_core::Nanos;

/// When requests were decided, and whether by a fallback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// The instant that was decided at; of several, the first.
    pub at: Nanos,
    /// The instant of every charge, where they were decided by several clocks.
    pub each: Option<Box<[Nanos]>>,
    /// A fallback decided.
    pub degraded: Option<Degraded>,
    /// What `degraded` is for every request of the call, where it is not the same for all.
    pub degraded_each: Option<Box<[Option<Degraded>]>>,
    /// The requests of the call that could not be decided, where others could: nothing is known of their
    /// charges, and their outcomes are refusals that mean nothing.
    pub failed: Option<Box<[Option<Failure>]>>,
}

impl Decided {
    /// All of it was decided at one instant.
    pub const fn at(at: Nanos) -> Self {
        Self { at, each: None, degraded: None, degraded_each: None, failed: None }
    }

    /// The instant at which the charge of this number was decided, counted over all requests.
    pub fn of(&self, charge: usize) -> Nanos {
        self.each.as_ref().and_then(|each| each.get(charge)).copied().unwrap_or(self.at)
    }

    /// How the request of this number was decided without its store.
    pub fn degraded_of(&self, request: usize) -> Option<Degraded> {
        match &self.degraded_each {
            Some(each) => each.get(request).copied().flatten(),
            None => self.degraded,
        }
    }

    /// Why the request of this number was not decided, where others of the call were.
    pub fn failed_of(&self, request: usize) -> Option<Failure> {
        self.failed.as_ref().and_then(|failed| failed.get(request)).copied().flatten()
    }
}

/// How a request was decided without its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Degraded {
    /// What went wrong.
    pub failure: Failure,
    /// What decided instead.
    pub fallback: Fallback,
}

/// What decides when the store does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// The node, on its share of every limit.
    Local {
        /// How many nodes share the limits.
        nodes: u32,
    },
    /// Nothing: the request passes uncounted.
    Open,
    /// Nothing: the request is refused.
    Closed,
}

impl Fallback {
    /// The name in metrics and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local { .. } => "local",
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

/// What keeps a store from answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// No answer in time.
    Timeout,
    /// No connection, or a broken one.
    Connection,
    /// The store does not accept our name or password, or forbids what we need.
    Denied,
    /// The store is starting, or has no master now.
    NotReady,
    /// The store takes no writes: a replica, or too few of them.
    ReadOnly,
    /// The store has no memory left.
    OutOfMemory,
    /// A key of ours holds something that is not ours.
    ForeignKey,
    /// A cluster where a single server was expected, or the reverse.
    WrongKind,
    /// Our script did not run to its end.
    Script,
    /// Too many decisions wait for the store already.
    Overloaded,
    /// The store failed lately, and is left alone for a moment.
    CircuitOpen,
    /// An answer that makes no sense.
    Protocol,
    /// The store broke its contract, as by too few outcomes. That is a bug, and no outage: nothing
    /// passes, whatever a rule says about failures.
    Contract,
}

impl Failure {
    /// Every failure.
    pub const ALL: [Self; 13] = [
        Self::Timeout,
        Self::Connection,
        Self::Denied,
        Self::NotReady,
        Self::ReadOnly,
        Self::OutOfMemory,
        Self::ForeignKey,
        Self::WrongKind,
        Self::Script,
        Self::Overloaded,
        Self::CircuitOpen,
        Self::Protocol,
        Self::Contract,
    ];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Connection => "connection",
            Self::Denied => "denied",
            Self::NotReady => "not_ready",
            Self::ReadOnly => "read_only",
            Self::OutOfMemory => "out_of_memory",
            Self::ForeignKey => "foreign_key",
            Self::WrongKind => "wrong_kind",
            Self::Script => "script",
            Self::Overloaded => "overloaded",
            Self::CircuitOpen => "circuit_open",
            Self::Protocol => "protocol",
            Self::Contract => "contract",
        }
    }

    /// What it means, for people.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Timeout => "the store did not answer in time",
            Self::Connection => "the store cannot be reached",
            Self::Denied => "the store does not accept our user, password or permissions",
            Self::NotReady => "the store is starting or has no master at the moment",
            Self::ReadOnly => "the store takes no writes at the moment",
            Self::OutOfMemory => "the store has no memory left",
            Self::ForeignKey => "a key of this counter holds something that is not ours",
            Self::WrongKind => {
                "the store is a cluster where a single server was expected, or the reverse"
            }
            Self::Script => "the store stopped our script",
            Self::Overloaded => "too many decisions wait for the store",
            Self::CircuitOpen => {
                "the store failed a moment ago and is not asked until it has recovered"
            }
            Self::Protocol => "the store's answer makes no sense",
            Self::Contract => "the store broke its contract, which is a bug",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.describe())
    }
}

/// Why a store did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{failure}")]
pub struct StoreError {
    /// What went wrong.
    pub failure: Failure,
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        Self { failure }
    }
}

/// Who asks to answer a request's id, and for what content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestClaim {
    /// The request's id.
    pub id: u128,
    /// Different requests with the same id differ in it.
    pub content: u128,
    /// The engine that claims it; one engine has at most one claim to an id at a time.
    pub owner: u64,
}

/// What a shared memory of answers says about a request's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// This store shares no answers.
    NotShared,
    /// Nobody has answered it: answer it, and publish.
    Yours,
    /// Another node is answering it.
    Pending,
    /// It was answered so.
    Answered(Vec<u8>),
    /// The id was used for another request.
    OtherContent,
}
