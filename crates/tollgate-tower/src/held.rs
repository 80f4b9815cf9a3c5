//! What a request holds while it is under way.

use std::fmt;

/// Given back when dropped.
pub struct Held(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Held {
    /// Calls this when dropped.
    pub fn new(release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(release)))
    }
}

impl Held {
    /// What was held is spent: nothing is given back.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(release) = self.0.take() {
            release();
        }
    }
}
