//! `tollgate backtest`: rules and traffic in, a report out.

use std::fs;
use std::io::{IsTerminal as _, stderr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tollgate_backtest::{Mapping, Options, Progress, Report};
use tollgate_policy::RuleSet;

use super::rules;
use crate::args::BacktestArgs;
use crate::failure::{Ended, Failure, Outcome};
use crate::output;

pub(super) fn run(args: &BacktestArgs) -> Ended {
    let options = options(args)?;
    if let Some(path) = &args.html {
        // A replay is too long to find out at its end that the report cannot be kept.
        write(path, "")?;
    }
    let bar = bar();
    let ran = tollgate_backtest::run(&options, &mut |progress| update(bar.as_ref(), progress));
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let report = ran.map_err(Failure::usage)?;
    if let Some(path) = &args.html {
        let made_at = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string();
        write(path, &report.html(&made_at))?;
    }
    print(&report, args)?;
    Ok(if report.is_guard_broken() { Outcome::Refused } else { Outcome::Done })
}

fn options(args: &BacktestArgs) -> Result<Options, Failure> {
    let (rules_name, rules) = read(&args.rules)?;
    let baseline = args.baseline.as_deref().map(read).transpose()?;
    Ok(Options {
        rules,
        rules_name,
        baseline: baseline.map(|(name, rules)| (rules, name)),
        files: files(&args.traffic)?,
        format: args.format,
        mapping: Mapping::new(&args.map, &args.extract).map_err(Failure::usage)?,
        aim: args.aim,
        guards: args.fail_if.clone(),
    })
}

/// The files; of a folder its recordings.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let count = files.len();
        let entries = fs::read_dir(path).with_context(|| format!("reading {}", path.display()));
        for entry in entries.map_err(Failure::Usage)? {
            let file = entry.context("reading the folder").map_err(Failure::Usage)?.path();
            if file
                .extension()
                .is_some_and(|extension| extension == tollgate_backtest::RECORDING_EXTENSION)
            {
                files.push(file);
            }
        }
        if files.len() == count {
            let message = format!(
                "{} holds no recording (no *.{} file)",
                path.display(),
                tollgate_backtest::RECORDING_EXTENSION
            );
            return Err(Failure::Usage(anyhow::anyhow!(message)));
        }
    }
    Ok(files)
}

fn read(file: &Path) -> Result<(String, RuleSet), Failure> {
    let (name, set) = rules::read(file)?;
    let wrong = |problems| Failure::Usage(anyhow::anyhow!("the rules are wrong\n{problems}"));
    set.map(|set| (name, set)).map_err(wrong)
}

fn print(report: &Report, args: &BacktestArgs) -> Result<(), Failure> {
    if args.json {
        output::print_json(&serde_json::to_value(report).context("the report")?)?;
    } else {
        output::print(&report.text())?;
    }
    if let Some(path) = &args.html {
        output::note(&format!("The report with charts is in {}.", path.display()))?;
    }
    for guard in report.guards.iter().filter(|guard| guard.is_broken) {
        output::warn(&format!("--fail-if {} is true: the figure is {}", guard.guard, guard.value))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let written = fs::write(path, text);
    written.with_context(|| format!("writing {}", path.display())).map_err(Failure::Usage)
}

/// A bar on standard error; nothing where that is no terminal.
fn bar() -> Option<ProgressBar> {
    if !stderr().is_terminal() {
        return None;
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let bar_style = if colour { "{bar:32.green}" } else { "{bar:32}" };
    let template = format!("{bar_style} {{percent:>3}} %  {{msg}}");
    Some(match ProgressStyle::with_template(&template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    })
}

fn update(bar: Option<&ProgressBar>, progress: Progress) {
    let Some(bar) = bar else { return };
    bar.set_length(progress.total_bytes.max(1));
    bar.set_position(progress.read_bytes);
    bar.set_message(if progress.read_bytes < progress.total_bytes {
        format!("{} requests", progress.requests)
    } else {
        format!("{} requests, computing limits", progress.requests)
    });
}
