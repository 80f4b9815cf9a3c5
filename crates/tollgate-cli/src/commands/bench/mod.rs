//! `tollgate bench`: a plan made of flags, a run, and its report.
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "figures for people: counts are far below 2^52, and none is negative"
)]

mod progress;
mod table;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use tollgate_load::{Distribution, Field, Halt, Length, Plan, Report, RunError};

use crate::args::{BenchArgs, Form};
use crate::client::{TlsFiles, hint};
use crate::failure::{Ended, Failure, Outcome};
use crate::{output, ready};

/// What a shell says of a command that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Carries out a run.
pub(crate) fn run(args: &BenchArgs) -> Ended {
    let plan = plan(args)?;
    if let Some(path) = &args.html {
        // A run is too long to find out at its end that the report cannot be kept.
        write(path, "")?;
    }
    let halt = Halt::default();
    halt_on_interrupt(&halt)?;
    let mut shown = progress::Shown::new();
    let ran = tollgate_load::run(&plan, &halt, |progress| shown.update(progress));
    shown.clear();
    let report = ran.map_err(failure)?;
    if let Some(path) = &args.html {
        let made_at = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string();
        write(path, &report.html(&made_at))?;
    }
    print(&report, args)?;
    Ok(if report.is_failure() { Outcome::Refused } else { Outcome::Done })
}

fn print(report: &Report, args: &BenchArgs) -> Result<(), Failure> {
    if args.json {
        output::print_json(&serde_json::to_value(report).context("the report")?)?;
    } else {
        output::print(&table::text(report))?;
    }
    if let Some(path) = &args.html {
        output::note(&format!("The report with plots is in {}.", path.display()))?;
    }
    for note in &report.generator.notes {
        output::warn(note)?;
    }
    if report.is_failure() {
        output::warn("Nothing was decided.")?;
    }
    Ok(())
}

fn plan(args: &BenchArgs) -> Result<Plan, Failure> {
    let traffic = &args.traffic;
    let port = if args.target.is_grpc() { 8081 } else { 8080 };
    let fields = traffic.field.iter().map(|(name, value)| Field::new(name, value));
    let tls = TlsFiles::of(&args.certificates);
    let identity = tls.identity()?.map(|identity| (identity.cert_pem, identity.key_pem));
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(Plan {
        url: args.url.clone().unwrap_or_else(|| format!("http://127.0.0.1:{port}")),
        target: args.target,
        rate_per_second: args.rate,
        length: args.requests.map_or(Length::Duration(args.duration), Length::Requests),
        warmup: args.warmup,
        connections: args.connections,
        streams: args.streams,
        threads: args.threads.unwrap_or(cores),
        batch: args.batch,
        timeout: args.timeout,
        keys: traffic.keys,
        distribution: match traffic.distribution {
            Form::Uniform => Distribution::Uniform,
            Form::Zipf => Distribution::Zipf { exponent: traffic.zipf_exponent },
            Form::Hot => Distribution::Hot { share: traffic.hot_share },
        },
        vary: traffic.vary.clone(),
        fields: fields.collect::<Result<_, _>>().map_err(Failure::usage)?,
        headers: args.header.clone(),
        token: args.token.clone().or_else(|| ready::variable("TOLLGATE_TOKEN")),
        seed: traffic.seed,
        domain: traffic.domain.clone(),
        descriptors: traffic.descriptor.clone(),
        ca_pem: tls.ca_pem()?,
        identity_pem: identity,
    })
}

fn failure(error: RunError) -> Failure {
    match error {
        RunError::Plan(error) => Failure::usage(error),
        RunError::Unreachable { ref url, ref cause } => {
            Failure::Failed(anyhow!("{error}\nhint: {}", hint(url, cause)))
        }
        RunError::Thread(_) => Failure::Failed(error.into()),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    Ok(fs::write(path, text).with_context(|| format!("writing {}", path.display()))?)
}

/// The first Ctrl-C ends the run, the second one everything.
fn halt_on_interrupt(halt: &Halt) -> Result<(), Failure> {
    let halt = halt.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // From here on the signal is ours; before the thread runs already.
    let mut interrupts = {
        let _guard = runtime.enter();
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?
    };
    std::thread::Builder::new().name("interrupts".to_owned()).spawn(move || {
        runtime.block_on(async {
            interrupts.recv().await;
            halt.now();
            interrupts.recv().await;
            std::process::exit(INTERRUPTED);
        });
    })?;
    Ok(())
}
