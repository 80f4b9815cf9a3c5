//! `tollgate top`, `tollgate health` and `tollgate log-level`: a node, watched.
//!
//! `seen.rs` is what a node reports, `view.rs` how it is shown on a terminal.

mod seen;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde_json::json;

use crate::args::{HealthArgs, LogLevelArgs, TopArgs};
use crate::failure::{Ended, Failure, Outcome};
use crate::output;
use crate::server::{Server, printable, query};
use crate::value::shown;
use seen::Seen;
use view::Shown;

pub(super) fn run(args: &TopArgs) -> Ended {
    let server = Server::new(&args.reach);
    server.need_token()?;
    if args.json {
        output::print_json(&ask(&server, args, args.hours)?)?;
        return Ok(Outcome::Done);
    }
    if args.once || !io::stdout().is_terminal() {
        let seen = Seen::read(&ask(&server, args, args.hours)?);
        output::print(&seen.summary())?;
        for rule in &seen.rules {
            output::print(&format!("\nrule {}\n", rule.id))?;
            let rows = rule.rows(usize::from(args.limit));
            output::print_table(["CONSUMES MOST", "COUNT", "REFUSED MOST", "COUNT"], &rows)?;
        }
        return Ok(Outcome::Done);
    }
    watch(&server, args)
}

pub(super) fn log_level(args: &LogLevelArgs) -> Ended {
    let server = Server::new(&args.reach);
    let level = match &args.level {
        Some(level) => shown(&server.put("node/log-level", &json!({ "level": level }))?, "level"),
        None => shown(&server.get("node")?, "log_level"),
    };
    output::print(&format!("{level}\n"))?;
    Ok(Outcome::Done)
}

pub(super) fn health(args: &HealthArgs) -> Ended {
    let path = if args.ready { "/readyz" } else { "/healthz" };
    let answer = Server::to_probe(args)?.ask("GET", path, None)?;
    let is_well = answer.status == 200;
    let word = match (is_well, args.ready) {
        (true, true) => "ready",
        (true, false) => "well",
        (false, _) => "not ready",
    };
    output::print(&format!("{word}\n"))?;
    let said = String::from_utf8_lossy(&answer.body);
    for warning in said.lines().filter_map(|line| line.strip_prefix("warning: ")) {
        output::warn(&printable(warning))?;
    }
    Ok(if is_well { Outcome::Done } else { Outcome::Refused })
}

/// All that a node reports, in one object.
fn ask(server: &Server, args: &TopArgs, hours: bool) -> Result<serde_json::Value, Failure> {
    let window = if hours { "hours" } else { "minutes" };
    let limit = args.limit.to_string();
    let parameters =
        [("window", Some(window)), ("limit", Some(&*limit)), ("rule_id", args.rule.as_deref())];
    Ok(json!({
        "node": server.get("node")?,
        "history": server.get("history?minutes=5")?,
        "top": server.get(&format!("top{}", query(&parameters)))?,
    }))
}

fn watch(server: &Server, args: &TopArgs) -> Ended {
    // What cannot be shown at all is said before the terminal is taken over.
    let first = Seen::read(&ask(server, args, args.hours)?);
    restore_when_ended().map_err(failed)?;
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let mut shown = Shown::new(first, args.hours);
    let watched = follow(&mut terminal, &mut shown, server, args);
    ratatui::restore();
    watched.map_err(failed)?;
    Ok(Outcome::Done)
}

/// Restores the terminal when a signal ends this process.
fn restore_when_ended() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut ends, mut hangs_up) = {
        let _inside = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = ends.recv() => {}
                _ = hangs_up.recv() => {}
            }
        });
        ratatui::restore();
        // As a shell reports it.
        std::process::exit(128 + 15);
    });
    Ok(())
}

fn failed(error: io::Error) -> Failure {
    Failure::Failed(anyhow::Error::from(error).context("the terminal"))
}

fn follow(
    terminal: &mut ratatui::DefaultTerminal,
    shown: &mut Shown,
    server: &Server,
    args: &TopArgs,
) -> io::Result<()> {
    let interval = Duration::from_secs(args.interval);
    loop {
        terminal.draw(|frame| view::draw(frame, shown))?;
        let mut is_due = true;
        if event::poll(interval)? {
            is_due = false;
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if is_control => return Ok(()),
                    KeyCode::Char('j') | KeyCode::Down => shown.select_next(),
                    KeyCode::Char('k') | KeyCode::Up => shown.select_previous(),
                    KeyCode::Char('w') => {
                        shown.hours = !shown.hours;
                        is_due = true;
                    }
                    KeyCode::Char('r') => is_due = true,
                    _ => {}
                }
            }
        }
        if is_due {
            match ask(server, args, shown.hours) {
                Ok(report) => shown.update(Seen::read(&report)),
                Err(failure) => shown.trouble = Some(failure.error().to_string()),
            }
        }
    }
}
