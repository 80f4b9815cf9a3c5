//! Quota taken ahead in chunks, spent locally.
