//! T5, T8: the edge. gRPC beside HTTP, the gateway beside nginx, the first token of a model,
//! and how even throttling is.

use std::path::Path;

use super::{edge_gateway, edge_grpc, edge_models, edge_throttle};

/// A part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// gRPC beside HTTP.
    Grpc,
    /// The gateway beside nginx.
    Gateway,
    /// When the first token of a model comes.
    Models,
    /// How even throttling is.
    Throttle,
}

pub fn run(quick: bool, rounds: usize, binary: &Path, parts: &[Part]) {
    let wants = |part: Part| parts.is_empty() || parts.contains(&part);
    let rounds = if quick { 1 } else { rounds };
    if wants(Part::Grpc) {
        edge_grpc::run(quick, rounds, binary);
    }
    if wants(Part::Gateway) {
        edge_gateway::run(quick, rounds, binary);
    }
    if wants(Part::Models) {
        edge_models::run(quick, rounds, binary);
    }
    if wants(Part::Throttle) {
        edge_throttle::run(binary);
    }
}
