//! What a person at a terminal sees when the process has started.

use std::fmt::Write as _;
use std::net::SocketAddr;

use crate::config::{Config, DataAuth};

/// The few lines after the addresses: where the console is, how to sign in, what to try.
pub(crate) fn banner(
    config: &Config,
    admin: SocketAddr,
    http: SocketAddr,
    code: Option<&str>,
) -> String {
    let scheme = if config.tls.cert_file.is_some() { "https" } else { "http" };
    let url = |address: SocketAddr| format!("{scheme}://{}", reachable(address));
    let mut text = format!("\n  Tollgate {} is running\n\n", env!("CARGO_PKG_VERSION"));
    // Writing to memory does not fail.
    let _ = writeln!(text, "  Console   {}/", url(admin));
    if let Some(code) = code {
        let _ = writeln!(text, "  Sign in   {}/sign-in#{code}", url(admin));
        let _ = writeln!(text, "            (works once, within 10 minutes)");
    }
    if config.decides() {
        let token = match config.data_auth {
            DataAuth::Token(_) => " -H 'authorization: Bearer TOKEN'",
            DataAuth::None | DataAuth::Mtls => "",
        };
        let body = r#"{"userId":"ann","modelId":"gpt4"}"#;
        let _ =
            writeln!(text, "  Try it    curl{token} {}/rate-limit/allow -d '{body}'", url(http));
    }
    let _ = writeln!(text, "\n  Ctrl-C stops it.\n");
    text
}

/// The address by which this machine reaches a listener.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_can_be_opened() {
        for (bound, opened) in [
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("[::]:80", "[::1]:80"),
            ("192.0.2.1:80", "192.0.2.1:80"),
        ] {
            assert_eq!(reachable(bound.parse().unwrap()), opened.parse().unwrap());
        }
    }
}
