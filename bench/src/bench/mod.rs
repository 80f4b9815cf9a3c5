//! One file for each benchmark.

pub mod audit;
pub mod check;
pub mod decide;
pub mod edge;
mod edge_gateway;
mod edge_grpc;
mod edge_models;
mod edge_throttle;
pub mod flood;
pub mod growth;
pub mod handler;
pub mod http;
pub mod profile;
pub mod redis_clients;
pub mod report;
pub mod shared;
pub mod start;
