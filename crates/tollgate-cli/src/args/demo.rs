//! Flags of `tollgate demo`.

use std::net::SocketAddr;

use tollgate_server::config::parse_address;

/// Look around: a node with realistic rules and traffic.
///
/// It listens on loopback, keeps its data in a directory that it removes at the end, and sends itself requests
/// of made-up tenants, users and models. Nothing of it touches another server.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tollgate demo
  tollgate demo --http 127.0.0.1:0 --requests 20 --minutes 5")]
pub(crate) struct DemoArgs {
    /// Where HTTP is served, on loopback; port 0 picks a free one.
    #[arg(long, value_name = "ADDR", value_parser = parse_address, default_value = "127.0.0.1:8080")]
    pub(crate) http: SocketAddr,
    /// Requests a second.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(crate) requests: u32,
    /// How long requests are sent. The node runs until it is stopped.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=240))]
    pub(crate) minutes: u32,
}
