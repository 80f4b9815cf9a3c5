//! Who is told of decisions.

use crate::{Decision, Engine, Request};

/// Is told of every decision that was made for good: each once, and none that charged nothing because
/// it was only asked what would happen.
///
/// It is called on the road of a request, so it must neither wait nor do much.
pub trait Observer: Send + Sync {
    /// A decision was made about a request.
    fn decided(&self, request: &Request<'_>, decision: &Decision<'_>);
}

impl<S> Engine<S> {
    /// The same engine with someone who is told of its decisions.
    #[must_use]
    pub fn with_observer(mut self, observer: std::sync::Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    #[inline]
    pub(crate) fn tell(&self, request: &Request<'_>, decision: &Decision<'_>) {
        if let Some(observer) = &self.observer {
            observer.decided(request, decision);
        }
    }
}
