//! Flags of `tollgate bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tollgate_load::{Attribute, Target};

use super::reach::CertificateArgs;

/// Load a server, and report how fast it answers.
///
/// With --rate, requests follow a timetable whether or not earlier ones came back, and latency counts
/// from the instant a request was due, so that a server which stalls is seen to stall. Without it, each
/// connection sends its next request when it has its answer, which finds the highest throughput.
/// Ctrl-C ends a run early; it still reports. Exit codes: 0 done, 1 if nothing could be reached or
/// nothing was decided, 2 wrong usage.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  tollgate bench
  tollgate bench --rate 20000 --duration 30s --warmup 5s --html report.html
  tollgate bench --target grpc-stream --connections 4 --streams 16 --batch 10 http://10.0.0.5:8081
  tollgate bench --target envoy --domain edge --descriptor 'api_key={key},endpoint=/a' --json
  tollgate bench --keys 1000000 --distribution zipf --vary tenantId --field modelId=gpt4")]
pub(crate) struct BenchArgs {
    /// The server; https:// is spoken too. By default `http://127.0.0.1:8080`, or port 8081 for gRPC.
    pub(crate) url: Option<String>,
    /// What is asked: allow, check or a batch over HTTP; the same, a batch or a stream over gRPC; or Envoy's
    /// rate limit service.
    #[arg(long, value_name = "WHAT", value_parser = target(), default_value = "http")]
    pub(crate) target: Target,
    /// Requests per second, on a timetable; without it, as fast as answers come.
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<u64>,
    /// How long, such as 500ms, 10s, 2m.
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10s")]
    pub(crate) duration: Duration,
    /// End after so many requests instead.
    #[arg(long, value_name = "N", conflicts_with = "duration")]
    pub(crate) requests: Option<u64>,
    /// What comes before and is not counted.
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "0s")]
    pub(crate) warmup: Duration,
    /// Connections, over all threads.
    #[arg(long, short, value_name = "N", default_value_t = 64)]
    pub(crate) connections: usize,
    /// Calls under way, or open streams, on each gRPC connection.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) streams: usize,
    /// Threads that send (default: one for each core).
    #[arg(long, short, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Decisions in one request, for batch, grpc-batch and grpc-stream.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) batch: usize,
    /// How long an answer may take.
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "5s")]
    pub(crate) timeout: Duration,
    /// A further header, or metadata; may be repeated.
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = header)]
    pub(crate) header: Vec<(String, String)>,
    /// The bearer token (default: `$TOLLGATE_TOKEN`, which other users of this machine cannot see).
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    #[command(flatten)]
    pub(crate) certificates: CertificateArgs,
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the report as a page with plots, in one file that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    // Last, since its heading would hold for what comes after it too.
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
}

/// What requests look like.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "The requests")]
pub(crate) struct TrafficArgs {
    /// How many keys there are.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) keys: u32,
    /// How often which key comes: all equally, by Zipf's law, or mostly one.
    #[arg(long, value_name = "FORM", default_value = "uniform")]
    pub(crate) distribution: Form,
    /// For zipf: the key of rank r comes by 1 / r^N.
    #[arg(long, value_name = "N", default_value_t = 1.1)]
    pub(crate) zipf_exponent: f64,
    /// For hot: the share of the one key.
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    pub(crate) hot_share: f64,
    /// The attributes that hold the key, separated by commas; all the same one.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = attribute(),
          default_value = "userId")]
    pub(crate) vary: Vec<Attribute>,
    /// What all requests have in common, by its name in JSON, such as modelId=gpt4, cost=3 or
    /// attributes.region=eu; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::request::pair)]
    pub(crate) field: Vec<(String, String)>,
    /// The same seed gives the same keys.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// The domain of Envoy's requests.
    #[arg(long, value_name = "NAME", default_value = "tollgate")]
    pub(crate) domain: String,
    /// A descriptor of Envoy's requests, such as `user_id={key},path=/a` or `remote_address={ip}`; may
    /// be repeated. Made of --vary and --field if absent.
    #[arg(long, value_name = "ENTRIES")]
    pub(crate) descriptor: Vec<String>,
}

/// How often which key comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    Uniform,
    Zipf,
    Hot,
}

fn target() -> impl TypedValueParser<Value = Target> {
    PossibleValuesParser::new(Target::ALL.map(|(name, _)| name)).map(|given| {
        let found = Target::ALL.into_iter().find(|(name, _)| *name == given);
        found.map_or(Target::Http, |(_, target)| target)
    })
}

fn attribute() -> impl TypedValueParser<Value = Attribute> {
    PossibleValuesParser::new(Attribute::ALL.map(|(name, _)| name)).map(|given| {
        let found = Attribute::ALL.into_iter().find(|(name, _)| *name == given);
        found.map_or(Attribute::UserId, |(_, attribute)| attribute)
    })
}

/// A time such as 500ms, 10s, 2m or 1h.
fn span(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 4] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3_600.0)];
    let wrong = || "must be a time such as 500ms, 10s, 2m or 1h".to_owned();
    let (number, seconds) = UNITS
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)))
        .ok_or_else(wrong)?;
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(wrong());
    }
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("must be a name and a value such as 'X-Region: eu'".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(span("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(span("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(span("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(span("1h"), Ok(Duration::from_secs(3_600)));
        for wrong in ["", "10", "s", "-1s", "1e3s", "10 s", "infs", "99999999999999999999h"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }
}
