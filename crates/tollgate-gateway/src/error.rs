//! Why a gateway cannot be made of its options.

/// Why a gateway cannot be made of its options.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// A route is not usable.
    #[error("route {route}: {problem}")]
    Route {
        /// The route's name.
        route: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A pool is not usable.
    #[error("pool {pool}: {problem}")]
    Pool {
        /// The pool's name.
        pool: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Something else is not usable.
    #[error("{field}: {problem}")]
    Option {
        /// Which option.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}
