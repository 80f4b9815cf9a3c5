//! The second example of the README as a new user has it: a program of its own that depends on this crate by path.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The most crates that a program in this process compiles.
const MAX_CRATES: usize = 45;

/// The block of Rust code in which this is used.
fn block<'a>(page: &'a str, used: &str) -> &'a str {
    let blocks = page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.into_iter().find(|block| block.contains(used)).unwrap()
}

fn cargo(program: &Path, arguments: &[&str]) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fresh-target");
    cargo.args(arguments).arg("--offline").current_dir(program).env("CARGO_TARGET_DIR", target);
    let output = cargo.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn ten_lines_in_a_new_program_limit() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = own.join("../..");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let code = block(&readme, "use tollgate::{Limiter, Quota}");
    let example = fs::read_to_string(own.join("examples/hello.rs")).unwrap();
    assert_eq!(example.split_once("\n\n").unwrap().1, code, "examples/hello.rs is in the README");
    let lines = code.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= 12, "{lines} lines, two of them closing braces");

    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fresh-program");
    fs::create_dir_all(program.join("src")).unwrap();
    let path = own.display();
    let manifest = format!(
        "[package]\nname = \"fresh\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\ntollgate = {{ path = {:?} }}\n",
        path.to_string()
    );
    fs::write(program.join("Cargo.toml"), manifest).unwrap();
    fs::copy(root.join("Cargo.lock"), program.join("Cargo.lock")).unwrap();
    fs::write(program.join("src/main.rs"), code).unwrap();

    let printed = cargo(&program, &["run", "--quiet"]);
    let expected = "2 left\n1 left\n0 left\nlimit of 3 per minute exceeded; retry in 19.";
    assert!(printed.starts_with(expected), "{printed}");
    let tree = cargo(&program, &["tree", "--edges=normal", "--prefix=none", "--package=tollgate"]);
    let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(" (").next()).collect();
    assert!(crates.len() <= MAX_CRATES, "{} crates:\n{tree}", crates.len());
    for absent in ["axum", "http", "jsonwebtoken", "redis", "ring", "rustls", "tonic"] {
        assert!(!crates.iter().any(|name| name.split(' ').next() == Some(absent)), "{absent}");
    }
}
