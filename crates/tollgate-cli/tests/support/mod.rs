//! Runs the real binary.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// The binary, with nothing of our own environment that could change what it does.
pub(crate) fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TOLLGATE_") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// How a run ended.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    fn new(output: &Output) -> Self {
        Self {
            code: output.status.code().expect("it was killed"),
            stdout: String::from_utf8(output.stdout.clone()).unwrap(),
            stderr: String::from_utf8(output.stderr.clone()).unwrap(),
        }
    }

    /// What it printed, as JSON.
    #[allow(dead_code, reason = "not every test binary reads JSON")]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| {
            panic!("{error}: {}\n{}", self.stdout, self.stderr);
        })
    }
}

/// Runs it with these arguments.
pub(crate) fn run(args: &[&str]) -> Ran {
    Ran::new(&tollgate().args(args).output().unwrap())
}

/// Runs it with these arguments and variables.
#[allow(dead_code, reason = "not every test binary sets variables")]
pub(crate) fn run_with(args: &[&str], env: &[(&str, &str)]) -> Ran {
    Ran::new(&tollgate().args(args).envs(env.iter().copied()).output().unwrap())
}

/// A file with this text.
#[allow(dead_code, reason = "not every test binary needs files")]
pub(crate) fn file(text: &str) -> tempfile::TempPath {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.into_temp_path()
}
