//! What decides when a shared store does not.
