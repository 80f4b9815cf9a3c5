//! The references under `docs/reference` say what the binary says.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail like tests"
)]

mod support;

use std::path::PathBuf;

fn assert_current(command: &str, name: &str) {
    let ran = support::run(&[command]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &ran.stdout).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == ran.stdout,
        "docs/reference/{name} is not up to date; run UPDATE_GOLDEN=1 cargo test -p tollgate-cli"
    );
}

#[test]
fn the_command_line_reference_is_current() {
    assert_current("help-markdown", "cli.md");
}

#[test]
fn the_configuration_reference_is_current() {
    assert_current("config-markdown", "config.md");
}
