//! `tollgate rules validate`

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tollgate_policy::{MAX_FILE_BYTES, Problem, Problems, RuleSet};

use crate::failure::{Ended, Failure, Outcome};
use crate::output;

pub(super) fn run(files: &[PathBuf], json: bool) -> Ended {
    let checked = files.iter().map(|file| check(file)).collect::<Result<Vec<_>, _>>()?;
    report(&checked, json)?;
    let is_fine = checked.iter().all(|one| one.result.is_ok());
    Ok(if is_fine { Outcome::Done } else { Outcome::Wrong })
}

/// A file and what came of it: how many rules, or what is wrong.
struct Checked {
    name: String,
    result: Result<usize, Problems>,
}

fn check(file: &Path) -> Result<Checked, Failure> {
    let (name, set) = read(file)?;
    Ok(Checked { name, result: set.map(|set| set.rules().len()) })
}

/// Reads and compiles a rule file; gives its name too.
pub(in crate::commands) fn read(
    file: &Path,
) -> Result<(String, Result<RuleSet, Problems>), Failure> {
    let (name, text) = read_text(file)?;
    let set = RuleSet::from_yaml(&text, &name);
    Ok((name, set))
}

/// The text of a rule file, and its name.
pub(super) fn read_text(file: &Path) -> Result<(String, String), Failure> {
    let is_stdin = file == Path::new("-");
    let name = if is_stdin { "<stdin>".to_owned() } else { file.display().to_string() };
    let text = if is_stdin { read_all(io::stdin()) } else { File::open(file).and_then(read_all) };
    let unreadable = |error| {
        Failure::Usage(anyhow::Error::from(error).context(format!("{name} cannot be read")))
    };
    let text = text.map_err(unreadable)?;
    Ok((name, text))
}

/// Reads one byte more than a rule file may have, which the compiler then reports as too much.
fn read_all(source: impl io::Read) -> io::Result<String> {
    let mut text = String::new();
    source.take(MAX_FILE_BYTES as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

fn report(checked: &[Checked], json: bool) -> io::Result<()> {
    if json {
        let files: Vec<Value> = checked.iter().map(file_json).collect();
        let is_fine = checked.iter().all(|one| one.result.is_ok());
        return output::print_json(&json!({ "ok": is_fine, "files": files }));
    }
    let mut text = String::new();
    for one in checked {
        let _ = match &one.result {
            Ok(1) => writeln!(text, "{}: ok: 1 rule", one.name),
            Ok(count) => writeln!(text, "{}: ok: {count} rules", one.name),
            Err(problems) => writeln!(text, "{problems}"),
        };
    }
    output::print(&text)
}

fn file_json(checked: &Checked) -> Value {
    match &checked.result {
        Ok(count) => json!({ "file": checked.name, "ok": true, "rules": count, "problems": [] }),
        Err(Problems(problems)) => {
            let problems: Vec<Value> = problems.iter().map(problem_json).collect();
            json!({ "file": checked.name, "ok": false, "problems": problems })
        }
    }
}

fn problem_json(problem: &Problem) -> Value {
    json!({
        "line": problem.line,
        "column": problem.column,
        "rule": problem.rule,
        "field": problem.field,
        "message": problem.message,
    })
}
