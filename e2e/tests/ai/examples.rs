//! The configurations of examples/ai and docs/ai.md are ones that Tollgate takes.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned()
}

fn check(what: &[&str], folder: &Path) {
    let output = Command::new(tollgate_e2e::server::binary())
        .args(what)
        .current_dir(folder)
        .output()
        .expect("tollgate runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{what:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_examples_are_right() {
    let folder = root().join("examples/ai");
    for file in ["vllm.yaml", "llama-cpp.yaml", "openai.yaml", "anthropic.yaml"] {
        check(&["config", "check", "--skip-files", "--config", file], &folder);
    }
    check(&["rules", "validate", "rules.yaml"], &folder);
}

#[test]
fn the_documentation_is_right() {
    let text = std::fs::read_to_string(root().join("docs/ai.md")).expect("the page");
    let folder = tempfile::tempdir().expect("a folder");
    let blocks: Vec<&str> =
        text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 4, "{}", blocks.len());
    for (nth, block) in blocks.into_iter().enumerate() {
        let name = format!("{nth}.yaml");
        std::fs::write(folder.path().join(&name), block).expect("a file");
        if block.contains("gateway:") {
            // Examples of models name pools that other examples define.
            let pools = "  pools: {gpu: {targets: [{url: 'http://127.0.0.1:1'}]}, cpu: {targets: [{url: 'http://127.0.0.1:2'}]}}";
            let whole = if block.contains("pools:") {
                block.to_owned()
            } else {
                format!("{block}{pools}\n")
            };
            std::fs::write(folder.path().join(&name), whole).expect("a file");
            check(&["config", "check", "--skip-files", "--config", &name], folder.path());
        } else {
            check(&["rules", "validate", &name], folder.path());
        }
    }
}

#[test]
fn what_is_wrong_with_models_is_said_before_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    for (models, says) in [
        ("[{name: a, pool: none}]", "there is no pool \"none\""),
        ("[{name: a, tokenizer: none}]", "there is no tokenizer"),
        ("[{name: a}, {name: a}]", "two models are called"),
        ("[{name: a, fallback: b}]", "is no model of this list"),
        ("[{name: a, colour: red}]", "unknown field `colour`"),
    ] {
        let file = folder.path().join("t.yaml");
        std::fs::write(&file, format!("gateway: {{openai: {{models: {models}}}}}"))
            .expect("a file");
        let output = Command::new(tollgate_e2e::server::binary())
            .args(["config", "check", "--config"])
            .arg(&file)
            .output()
            .expect("tollgate runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(2), "{models}: {said}");
        assert!(said.contains("gateway.openai.models") && said.contains(says), "{models}: {said}");
    }
}
