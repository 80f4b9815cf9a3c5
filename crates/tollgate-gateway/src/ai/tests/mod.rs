//! Estimates compared with real tokenizers, the table of request shapes, and money compared with big decimals.

#![allow(clippy::cast_precision_loss, reason = "ratios of small counts")]

mod bound;
mod corpus;
mod estimates;
mod money;
mod shapes;
mod work;
