//! What a run is to do, as someone asks for it; [`crate::run`] checks it first.

use std::time::Duration;

use thiserror::Error;

use crate::fields::{Attribute, Field};

/// How many requests a batch may have; servers take no more.
pub const MAX_BATCH: usize = 1_000;
/// How many keys there may be: a table of Zipf's law takes 8 bytes for each.
pub const MAX_KEYS: u32 = 1 << 24;
/// How many connections are opened.
pub const MAX_CONNECTIONS: usize = 20_000;
/// How many calls or streams one connection carries.
pub const MAX_STREAMS: usize = 1_000;
/// How many threads send.
pub const MAX_THREADS: usize = 256;
/// Requests per second; beyond it, a thread's timer is what is measured.
pub const MAX_RATE_PER_SECOND: u64 = 100_000_000;
/// How long a run may be: a row of its report for each second is kept.
pub const MAX_DURATION: Duration = Duration::from_secs(24 * 3_600);
/// How long an answer is waited for; histograms hold as much.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(600);
/// The steepest law of Zipf.
pub const MAX_EXPONENT: f64 = 10.0;

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// `POST /rate-limit/allow`.
    Http,
    /// `POST /rate-limit/check`.
    Check,
    /// `POST /rate-limit/allow/batch`.
    Batch,
    /// gRPC `Allow`.
    Grpc,
    /// gRPC `AllowBatch`.
    GrpcBatch,
    /// gRPC `AllowStream`: streams stay open, with one question under way on each.
    GrpcStream,
    /// Envoy's `ShouldRateLimit`.
    Envoy,
}

impl Target {
    /// All, with their names.
    pub const ALL: [(&'static str, Self); 7] = [
        ("http", Self::Http),
        ("check", Self::Check),
        ("batch", Self::Batch),
        ("grpc", Self::Grpc),
        ("grpc-batch", Self::GrpcBatch),
        ("grpc-stream", Self::GrpcStream),
        ("envoy", Self::Envoy),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, target)| *target == self).map_or("", |(name, _)| name)
    }

    /// The path that is called.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Http => "/rate-limit/allow",
            Self::Check => "/rate-limit/check",
            Self::Batch => "/rate-limit/allow/batch",
            Self::Grpc => "/tollgate.v1.RateLimiterService/Allow",
            Self::GrpcBatch => "/tollgate.v1.RateLimiterService/AllowBatch",
            Self::GrpcStream => "/tollgate.v1.RateLimiterService/AllowStream",
            Self::Envoy => "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        }
    }

    /// Whether it is called by gRPC.
    pub const fn is_grpc(self) -> bool {
        matches!(self, Self::Grpc | Self::GrpcBatch | Self::GrpcStream | Self::Envoy)
    }

    /// Whether one call may ask for several decisions.
    pub const fn has_batches(self) -> bool {
        matches!(self, Self::Batch | Self::GrpcBatch | Self::GrpcStream)
    }
}

/// How often which key comes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// All equally.
    Uniform,
    /// By Zipf's law: the key of rank r by 1 / r^exponent.
    Zipf {
        /// The exponent.
        exponent: f64,
    },
    /// One key has a share, the others share the rest.
    Hot {
        /// The share, from 0 to 1.
        share: f64,
    },
}

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// After this time.
    Duration(Duration),
    /// After so many requests.
    Requests(u64),
}

/// What a run is to do. Has no `Debug`, since it may hold a token.
#[derive(Clone)]
pub struct Plan {
    /// Where the server is.
    pub url: String,
    /// What is asked of it.
    pub target: Target,
    /// Requests per second, whether or not earlier ones are answered; if absent, each connection sends
    /// the next one when it has its answer.
    pub rate_per_second: Option<u64>,
    /// When it ends.
    pub length: Length,
    /// What comes before and is not counted.
    pub warmup: Duration,
    /// Over all threads.
    pub connections: usize,
    /// Calls under way, or streams, on each gRPC connection.
    pub streams: usize,
    /// Threads that send.
    pub threads: usize,
    /// Decisions in one request, where the target has batches.
    pub batch: usize,
    /// How long an answer may take.
    pub timeout: Duration,
    /// How many keys there are.
    pub keys: u32,
    /// How often which comes.
    pub distribution: Distribution,
    /// The attributes that hold the key.
    pub vary: Vec<Attribute>,
    /// What all requests have in common.
    pub fields: Vec<Field>,
    /// Further headers, or metadata.
    pub headers: Vec<(String, String)>,
    /// The bearer token.
    pub token: Option<String>,
    /// The same seed gives the same keys.
    pub seed: u64,
    /// The domain of Envoy's requests.
    pub domain: String,
    /// The descriptors of Envoy's requests, such as `user_id={key},path=/a`; made of `vary` and `fields`
    /// if empty.
    pub descriptors: Vec<String>,
    /// Who is trusted instead of the system's authorities, as PEM.
    pub ca_pem: Option<Vec<u8>>,
    /// The certificate for servers that ask for one, and its key, as PEM.
    pub identity_pem: Option<(Vec<u8>, Vec<u8>)>,
}

impl Plan {
    /// A run of ten seconds against a server, with what most people want.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            target: Target::Http,
            rate_per_second: None,
            length: Length::Duration(Duration::from_secs(10)),
            warmup: Duration::ZERO,
            connections: 64,
            streams: 1,
            threads: 1,
            batch: 1,
            timeout: Duration::from_secs(5),
            keys: 10_000,
            distribution: Distribution::Uniform,
            vary: vec![Attribute::UserId],
            fields: Vec::new(),
            headers: Vec::new(),
            token: None,
            seed: 1,
            domain: "tollgate".to_owned(),
            descriptors: Vec::new(),
            ca_pem: None,
            identity_pem: None,
        }
    }

    /// Whether all figures are within their bounds, and fit together.
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        let within = |name, value: u64, least: u64, most: u64| match value {
            value if value < least || value > most => {
                Err(PlanError::OutOfBounds { name, least, most })
            }
            _ => Ok(()),
        };
        within("connections", self.connections as u64, 1, MAX_CONNECTIONS as u64)?;
        within("streams", self.streams as u64, 1, MAX_STREAMS as u64)?;
        within("threads", self.threads as u64, 1, MAX_THREADS as u64)?;
        within("keys", self.keys.into(), 1, MAX_KEYS.into())?;
        within("batch", self.batch as u64, 1, MAX_BATCH as u64)?;
        within("rate", self.rate_per_second.unwrap_or(1), 1, MAX_RATE_PER_SECOND)?;
        if let Length::Requests(count) = self.length {
            within("requests", count, 1, u64::MAX >> 16)?;
        }
        self.check_times()?;
        match self.distribution {
            Distribution::Zipf { exponent } if !(0.0..=MAX_EXPONENT).contains(&exponent) => {
                Err(PlanError::Exponent)
            }
            Distribution::Hot { share } if !(0.0..=1.0).contains(&share) => Err(PlanError::Share),
            _ if self.batch > 1 && !self.target.has_batches() => {
                Err(PlanError::NoBatches(self.target.name()))
            }
            _ if self.streams > 1 && !self.target.is_grpc() => {
                Err(PlanError::NoStreams(self.target.name()))
            }
            _ => Ok(()),
        }
    }

    fn check_times(&self) -> Result<(), PlanError> {
        let duration = match self.length {
            Length::Duration(duration) if duration.is_zero() => return Err(PlanError::NoTime),
            Length::Duration(duration) => duration,
            Length::Requests(_) => Duration::ZERO,
        };
        if duration > MAX_DURATION || self.warmup > MAX_DURATION {
            return Err(PlanError::TooLong("duration", MAX_DURATION));
        }
        match self.timeout {
            timeout if timeout > MAX_TIMEOUT => Err(PlanError::TooLong("timeout", MAX_TIMEOUT)),
            timeout if timeout.is_zero() => Err(PlanError::NoTime),
            _ => Ok(()),
        }
    }
}

/// Why a plan cannot be carried out.
#[derive(Debug, Error)]
pub enum PlanError {
    /// A figure is too small or too large.
    #[error("{name} must be from {least} to {most}")]
    OutOfBounds {
        /// Which.
        name: &'static str,
        /// The least it may be.
        least: u64,
        /// The most it may be.
        most: u64,
    },
    /// A time is too long.
    #[error("{0} may be {1:?} at most")]
    TooLong(&'static str, Duration),
    /// A time is zero.
    #[error("duration and timeout must be more than 0")]
    NoTime,
    /// Not an exponent of Zipf's law.
    #[error("the exponent must be from 0 to {MAX_EXPONENT}")]
    Exponent,
    /// Not a share.
    #[error("the hot share must be from 0 to 1")]
    Share,
    /// A batch for a target that has none.
    #[error("target {0} has no batches; batch, grpc-batch and grpc-stream do")]
    NoBatches(&'static str),
    /// Streams for a target that has none.
    #[error("target {0} has no streams; gRPC and Envoy targets do")]
    NoStreams(&'static str),
    /// The URL cannot be used.
    #[error("the URL {0}")]
    Url(&'static str),
    /// A field cannot be used.
    #[error("{0}")]
    Field(String),
    /// A header cannot be used.
    #[error("header {0:?} cannot be sent: {1}")]
    Header(String, &'static str),
    /// TLS cannot be set up.
    #[error("{0}")]
    Tls(String),
}
