//! The client of a Tollgate: decisions over HTTP and gRPC, refusals remembered, retries that honour Retry-After.
//!
//! ```no_run
//! use tollgate_client::{Check, Client, OnFailure};
//!
//! # async fn example() -> Result<(), tollgate_client::ClientError> {
//! let tollgate = Client::http("http://127.0.0.1:8080")?;
//! let check = Check::new().user_id("ann").endpoint("/api/items").method("GET");
//! let decision = tollgate.allow(&check).await?;
//! if !decision.allowed {
//!     println!("{decision}; again in {:?}", decision.retry_after);
//! }
//!
//! // Where a Tollgate that is away must not stop anybody:
//! let decision = tollgate.allow_or(&check, OnFailure::Open).await;
//! assert!(decision.allowed || !decision.degraded);
//! # Ok(())
//! # }
//! ```
//!
//! A call that was refused can be tried again, when the server says so and not sooner:
//!
//! ```no_run
//! use tollgate_client::{Check, Client, Retry};
//!
//! # async fn example(tollgate: Client) -> Result<(), tollgate_client::ClientError> {
//! let check = Check::new().user_id("ann").cost(5);
//! let decision = Retry::default().run(|| tollgate.allow(&check)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A request whose true cost is known only later is reserved by estimate, and settled:
//!
//! ```no_run
//! use tollgate_client::{Actual, Check, Client};
//!
//! # async fn example(tollgate: Client) -> Result<(), tollgate_client::ClientError> {
//! let check = Check::new().user_id("ann").model_id("gpt4").tokens(1_200);
//! let reserved = tollgate.reserve(&check, None).await?;
//! if let Some(id) = &reserved.decision.reservation_id {
//!     // …
//!     tollgate.settle(id, Actual::tokens(874)).await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Retry`] takes any call whose answer is a [`retry::Reply`], such as an [`http::Response`].

mod cache;
mod caller;
mod check;
mod client;
mod date;
mod decision;
mod error;
mod options;
mod over_grpc;
mod over_http;
mod reservation;
pub mod retry;
mod tls;
mod usage;

pub use caller::{HttpCaller, error_chain};
pub use check::Check;
pub use client::{Client, MAX_BATCH};
pub use decision::{Decision, OnFailure, Scope, WouldDeny};
pub use error::ClientError;
pub use options::{ClientOptions, DEFAULT_MAX_REFUSAL_AGE, DEFAULT_MAX_REFUSALS, DEFAULT_TIMEOUT};
pub use reservation::{Actual, Renewed, Reserved, Settled};
pub use retry::{Retry, RetryAfter};
pub use tls::{ClientIdentity, ServerTrust};
pub use usage::{Money, OtherUnits, Usage};
