//! The observer of decisions.

use tollgate_core::Nanos;

use crate::{Decision, Engine, Request};

/// The target of the spans that traces are made of. They have the lowest level, so that logs do not take
/// them for their own.
pub const TRACE_TARGET: &str = "tollgate_trace";

/// Whether somebody may want spans of the lowest level: one comparison, so that nobody else pays for them.
#[inline]
pub(crate) fn is_traced() -> bool {
    tracing::level_filters::LevelFilter::current() == tracing::level_filters::LevelFilter::TRACE
}

/// Receives every final decision exactly once. It receives none of `Mode::Peek`, which charges
/// nothing, and none on more of a request that was decided before (`Request::only`).
///
/// It is called on the path of a request, so it must neither block nor do much work.
pub trait Observer: Send + Sync {
    /// A decision was made about a request. `took` reads the clock and says how long that was, for
    /// those who want to know.
    fn decided(&self, request: &Request<'_>, decision: &Decision<'_>, took: &dyn Fn() -> Nanos);
}

impl<S> Engine<S> {
    /// The same engine with an observer of its decisions.
    #[must_use]
    pub fn with_observer(mut self, observer: std::sync::Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    #[inline]
    pub(crate) fn notify_observer(&self, request: &Request<'_>, decision: &Decision<'_>) {
        if let Some(observer) = &self.observer
            && !request.is_more
        {
            let took = || self.clock.now().saturating_sub(decision.asked_at);
            observer.decided(request, decision, &took);
        }
    }
}
