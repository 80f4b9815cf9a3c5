//! Estimates compared with real tokenizers, and the table of request shapes.

#![allow(clippy::cast_precision_loss, reason = "ratios of small counts")]

mod bound;
mod corpus;
mod estimates;
mod shapes;
