//! The second stage: from settings as typed to a [`Config`].

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tollgate_engine::Enforcement;

use super::read::{Reader, Said};
use super::{
    Config, ConfigProblems, HeaderFamilies, Limits, LogConfig, LogFormat, LogLevel, auth, control,
    edge, oidc, prices, recording, stores, telemetry,
};

/// The most origins that are compared with a request's.
const MAX_ORIGINS: usize = 1_000;

/// The most names in `allowed_hosts`.
const MAX_HOSTS: usize = 1_000;

/// The longest wait that can be configured.
pub(super) const MAX_TIMEOUT_MS: u64 = 3_600_000;

const ENFORCEMENTS: [(&str, Enforcement); 3] = [
    (Enforcement::On.name(), Enforcement::On),
    (Enforcement::Shadow.name(), Enforcement::Shadow),
    (Enforcement::Off.name(), Enforcement::Off),
];

macro_rules! named {
    ($type:ident { $($variant:ident => $name:literal),+ $(,)? }) => {
        impl $type {
            /// Every value, with its name in the configuration.
            pub const ALL: &'static [(&'static str, Self)] = &[$(($name, Self::$variant)),+];

            /// The name in the configuration.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

named!(LogLevel {
    Off => "off",
    Error => "error",
    Warn => "warn",
    Info => "info",
    Debug => "debug",
    Trace => "trace",
});
named!(LogFormat { Auto => "auto", Text => "text", Json => "json" });

/// Where HTTP is served.
pub(super) fn http_address(reader: &mut Reader) -> Option<Said<SocketAddr>> {
    let wanted = "an address and a port such as 127.0.0.1:8080";
    reader.parsed("http", wanted, |text| parse_address(text).ok())
}

/// Checks every setting.
pub(super) fn check(mut reader: Reader, stores: &[String]) -> Result<Config, ConfigProblems> {
    let http = http_address(&mut reader);
    let grpc = edge::optional_address(&mut reader, "grpc");
    let tls = edge::tls(&mut reader);
    let data_auth = auth::check(&mut reader, &[http.as_ref(), grpc.as_ref()], &tls);
    let (redis, stores, api_key_secret) = stores::check(&mut reader, stores);
    let config = Config {
        http: http.map_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), |said| said.value),
        grpc: grpc.map(|said| said.value),
        tls,
        identity: edge::identity(&mut reader),
        gateway: edge::gateway(&mut reader),
        queue: edge::queue(&mut reader),
        data_dir: reader.optional_path("data_dir").map(|said| said.value),
        rules: reader.optional_path("rules").map(|said| said.value),
        prices: prices::check(&mut reader),
        enforcement: reader.choice("enforcement", &ENFORCEMENTS),
        control: control::check(&mut reader),
        oidc: oidc::check(&mut reader),
        redis,
        stores,
        api_key_secret,
        max_counters: size(&mut reader, "max_counters", 1_000, 1_000_000_000),
        max_reservations: size(&mut reader, "max_reservations", 1, 100_000_000),
        journal_interval: millis(&mut reader, "journal_interval_ms", 10, 60_000),
        data_auth,
        cors_origins: origins(&mut reader),
        allowed_hosts: hosts(&mut reader),
        headers: HeaderFamilies {
            x_ratelimit: reader.boolean("headers.x_ratelimit"),
            ratelimit: reader.boolean("headers.ratelimit"),
            retry_after: reader.boolean("headers.retry_after"),
        },
        limits: limits(&mut reader),
        threads: size(&mut reader, "threads", 0, 1_024),
        log: LogConfig {
            level: reader.choice("log.level", LogLevel::ALL),
            format: reader.choice("log.format", LogFormat::ALL),
        },
        telemetry: telemetry::check(&mut reader),
        recording: recording::check(&mut reader),
    };
    let problems = reader.finish();
    if problems.0.is_empty() { Ok(config) } else { Err(problems) }
}

fn limits(reader: &mut Reader) -> Limits {
    Limits {
        max_body_bytes: size(reader, "limits.max_body_bytes", 1_024, 64 << 20),
        // Hyper's buffer is never smaller than 8 KiB.
        max_header_bytes: size(reader, "limits.max_header_bytes", 8_192, 1 << 20),
        max_connections: size(reader, "limits.max_connections", 1, 1_000_000),
        max_connections_per_address: size(
            reader,
            "limits.max_connections_per_address",
            1,
            1_000_000,
        ),
        max_buffered_bytes: size(reader, "limits.max_buffered_bytes", 1 << 20, 1 << 40),
        header_timeout: millis(reader, "limits.header_timeout_ms", 1, MAX_TIMEOUT_MS),
        body_timeout: millis(reader, "limits.body_timeout_ms", 1, MAX_TIMEOUT_MS),
        idle_timeout: millis(reader, "limits.idle_timeout_ms", 1, MAX_TIMEOUT_MS),
        drain_delay: millis(reader, "limits.drain_delay_ms", 0, MAX_TIMEOUT_MS),
        drain_timeout: millis(reader, "limits.drain_timeout_ms", 0, MAX_TIMEOUT_MS),
    }
}

pub(super) fn size(reader: &mut Reader, key: &str, least: u64, most: u64) -> usize {
    usize::try_from(reader.number(key, least..=most)).unwrap_or(usize::MAX)
}

pub(super) fn millis(reader: &mut Reader, key: &str, least: u64, most: u64) -> Duration {
    Duration::from_millis(reader.number(key, least..=most))
}

/// An address and a port; `localhost` is 127.0.0.1, so that no name has to be looked up.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    local
        .map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .or_else(|| text.parse().ok())
        .ok_or_else(|| "must be an address and a port such as 127.0.0.1:8080".to_owned())
}

fn origins(reader: &mut Reader) -> Vec<String> {
    let key = "cors_origins";
    let mut origins = Vec::new();
    for Said { value, origin } in reader.texts(key, MAX_ORIGINS) {
        if value == "*" || is_origin(&value) {
            origins.push(value);
        } else {
            let message = format!(
                "must be an origin such as https://console.example.com (no path, no slash at the \
                 end) or \"*\", not {value:?}"
            );
            reader.wrong(&origin, key, message);
        }
    }
    origins
}

fn hosts(reader: &mut Reader) -> Vec<String> {
    let key = "allowed_hosts";
    let mut hosts = Vec::new();
    for Said { value, origin } in reader.texts(key, MAX_HOSTS) {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if !value.is_empty() && value.bytes().all(is_plain) {
            hosts.push(value.to_ascii_lowercase());
        } else {
            let message =
                format!("must be a name such as shop.example.com, without a port, not {value:?}");
            reader.wrong(&origin, key, message);
        }
    }
    hosts
}

/// Scheme, host and port as browsers send them: lower case and nothing after the port.
fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else { return false };
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !byte.is_ascii_uppercase();
    !scheme.is_empty()
        && scheme.bytes().all(|byte| byte.is_ascii_lowercase() || b"+-.".contains(&byte))
        && !host.is_empty()
        && host.bytes().all(|byte| is_plain(byte) && !b"/?#@*,\\".contains(&byte))
}
