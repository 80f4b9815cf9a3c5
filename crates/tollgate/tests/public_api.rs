//! The public items of this crate, as a text that a change must change, too: `UPDATE_GOLDEN=1 cargo test -p tollgate --test
//! public_api` writes it.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The signatures of a file's public items: lines that begin with `pub `, each up to its body.
fn signatures(source: &str) -> Vec<String> {
    let product = source.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = Vec::new();
    let mut lines = product.lines();
    while let Some(line) = lines.next() {
        let trimmed = line.trim_start();
        // The setters of `Client` are made by a macro.
        if let Some((name, known)) = trimmed.trim_end_matches(',').split_once(" => ")
            && name != "_"
            && name.chars().chain(known.chars()).all(|c| c.is_alphanumeric() || c == '_')
        {
            found.push(format!("pub fn {name}(self, value: &'a str) -> Self"));
        }
        if !trimmed.starts_with("pub ") || trimmed.starts_with("pub fn $name") {
            continue;
        }
        let mut signature = trimmed.to_owned();
        while !signature.ends_with(['{', ';', ',']) || is_open(&signature) {
            let Some(next) = lines.next() else { break };
            signature.push(' ');
            signature.push_str(next.trim());
        }
        let end = signature.find(" {").unwrap_or(signature.len());
        let signature = signature[..end].trim_end_matches([';', ',']).to_owned();
        found.push(signature.replace("( ", "(").replace(", )", ")"));
    }
    found
}

/// Whether its parentheses are still open.
fn is_open(signature: &str) -> bool {
    let head = signature.split(" {").next().unwrap_or_default();
    head.matches('(').count() != head.matches(')').count()
}

#[test]
fn the_public_api_is_the_one_that_is_written_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![root.join("src/lib.rs")];
    for folder in ["src", "src/layer", "src/store"] {
        let entries = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        let is_module = |path: &std::path::PathBuf| {
            path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("lib.rs")
        };
        files.extend(entries.filter(is_module));
    }
    files.sort();
    let mut api = String::new();
    for file in files {
        let found = signatures(&fs::read_to_string(&file).unwrap());
        if !found.is_empty() {
            let name = file.strip_prefix(root).unwrap().display();
            writeln!(api, "# {name}\n{}\n", found.join("\n")).unwrap();
        }
    }
    let golden = root.join("tests/public_api.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&golden, &api).unwrap();
    }
    let written = fs::read_to_string(&golden).unwrap_or_default();
    assert!(written == api, "the public API changed; UPDATE_GOLDEN=1 writes it:\n{api}");
}
