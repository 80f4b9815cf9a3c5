//! ARCHITECTURE.md and the pages next to it name only files and symbols that exist, the table of crates
//! is the workspace, and the book has every page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = "ARCHITECTURE.md";
const GLOSSARY: &str = "docs/glossary.md";

/// What a path on the page may omit: `server/src/listen.rs` is short for
/// `crates/tollgate-server/src/listen.rs`.
const PREFIXES: [&str; 3] = ["", "crates/", "crates/tollgate-"];

/// Where symbols and configuration keys may be.
const SOURCES: [&str; 5] = ["crates", "e2e", "testkit", "Cargo.toml", "Makefile"];

/// Kinds of source files.
const SOURCE_ENDINGS: [&str; 5] = ["rs", "lua", "sql", "toml", "yaml"];

/// How a definition in Rust starts.
const DEFINITIONS: [&str; 8] =
    ["struct ", "enum ", "trait ", "type ", "fn ", "const ", "static ", "mod "];

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("e2e lies in the repository").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn page() -> String {
    read(&root().join(PAGE))
}

/// The text between backticks, outside of fenced blocks.
fn code_spans(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

/// Every path on the page, in prose and pictures. `{a,b}` stands for several names.
fn paths(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for word in text.split(|it: char| it.is_whitespace() || "`()[]|".contains(it)) {
        let word = word.trim_end_matches(['.', ',', ';', ':']);
        let is_path = word.contains('/')
            && !word.starts_with('/')
            && !word.contains("://")
            && !word.starts_with("HTTP/")
            && (word.contains('.') || word.ends_with('/'));
        let is_file = [".toml", ".sh", ".md"].iter().any(|ending| word.ends_with(ending));
        if is_path || is_file {
            found.extend(expand(word));
        }
    }
    found
}

fn expand(word: &str) -> Vec<String> {
    let Some((start, names, end)) = word
        .split_once('{')
        .and_then(|(start, rest)| rest.split_once('}').map(|(names, end)| (start, names, end)))
    else {
        return vec![word.to_owned()];
    };
    names.split(',').map(|name| format!("{start}{name}{end}")).collect()
}

/// Every page below a folder, and its path from the repository's root.
fn pages_in(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(root().join(folder)).expect("a folder");
    let mut pages = BTreeSet::new();
    for entry in entries.map(|entry| entry.expect("an entry")) {
        let name = entry.file_name().into_string().expect("a name");
        if entry.path().is_dir() {
            pages.extend(pages_in(&format!("{folder}/{name}")));
        } else if entry.path().extension().is_some_and(|it| it == "md") {
            pages.insert(format!("{folder}/{name}"));
        }
    }
    pages
}

#[test]
fn every_path_exists() {
    let mut count = 0;
    let mut missing = Vec::new();
    for page in [PAGE, GLOSSARY].map(str::to_owned).into_iter().chain(pages_in("docs/decisions")) {
        // Links are relative to their page; `docs::links_lead_somewhere` checks them.
        let text = read(&root().join(&page));
        let text = text.lines().filter(|line| !line.contains("](")).collect::<Vec<_>>().join("\n");
        for path in paths(&text) {
            count += 1;
            if !PREFIXES.iter().any(|prefix| root().join(format!("{prefix}{path}")).exists()) {
                missing.push(format!("{page}: {path}"));
            }
        }
    }
    assert!(count >= 150, "only {count} paths");
    assert!(missing.is_empty(), "pages name files that do not exist: {missing:#?}");
}

/// All source files below the given ones.
fn sources() -> Vec<String> {
    let mut open: Vec<PathBuf> = SOURCES.iter().map(|name| root().join(name)).collect();
    let mut texts = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("a folder");
            open.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else if path.ends_with("Makefile")
            || path.extension().is_some_and(|it| SOURCE_ENDINGS.iter().any(|known| it == *known))
        {
            // This file repeats names from the page; it proves nothing about them.
            if !path.ends_with("tests/architecture.rs") {
                texts.push(read(&path));
            }
        }
    }
    texts
}

fn is_identifier(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The words of a text; `-` is part of a word, as in the names of crates.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|it: char| !is_identifier(it) && it != '-').filter(|word| !word.is_empty())
}

/// Whether the text defines this item, variant or field.
fn defines(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(start, _)| {
        let (before, after) = (&text[..start], &text[start + name.len()..]);
        if before.ends_with(is_identifier) || after.starts_with(is_identifier) {
            return false;
        }
        let line = before.rsplit('\n').next().unwrap_or_default().trim();
        let is_item = DEFINITIONS.iter().any(|definition| before.ends_with(definition));
        let is_member = matches!(line, "" | "pub" | "pub(crate)")
            && [",", ":", " {", "("].iter().any(|end| after.starts_with(end));
        is_item || is_member
    })
}

/// A name as Rust writes types: it must be defined, not merely mentioned.
fn is_type(name: &str) -> bool {
    name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase)
}

/// The definition of a type and its `impl` blocks.
fn blocks_of<'t>(text: &'t str, owner: &'t str) -> impl Iterator<Item = &'t str> {
    let ends = text.match_indices("\n}").map(|(end, _)| end);
    let starts = std::iter::once(0).chain(ends.clone().map(|end| end + 2));
    starts.zip(ends.chain([text.len()])).filter_map(move |(start, end)| {
        let block = &text[start..end];
        let is_head = |line: &str| {
            let line = line.trim_start_matches("pub").trim_start_matches("(crate)").trim_start();
            let is_item =
                ["struct ", "enum ", "trait ", "impl"].iter().any(|it| line.starts_with(it));
            is_item && words(line).any(|word| word == owner)
        };
        let head = block.lines().find(|line| is_head(line))?;
        block.split_once(head).map(|(_, body)| body)
    })
}

/// Why a code span names something that does not exist.
fn fault(span: &str, sources: &[String], known: &BTreeSet<&str>) -> Option<String> {
    let parts: Vec<_> = span.split("::").collect();
    if let [.., owner, member] = parts[..] {
        let is_there = |text: &String| blocks_of(text, owner).any(|block| defines(block, member));
        return (!sources.iter().any(is_there)).then(|| format!("`{span}` is not defined"));
    }
    if is_type(span) && span.chars().all(is_identifier) {
        return (!sources.iter().any(|text| defines(text, span)))
            .then(|| format!("`{span}` is not defined"));
    }
    let unknown: Vec<_> = words(span).filter(|word| !known.contains(word)).collect();
    (!unknown.is_empty()).then(|| format!("`{span}`: nothing in the sources is called {unknown:?}"))
}

#[test]
fn every_symbol_exists() {
    let (page, sources) = (page() + &read(&root().join(GLOSSARY)), sources());
    let known: BTreeSet<&str> = sources.iter().flat_map(|text| words(text)).collect();
    let paths = paths(&page);
    let mut faults = String::new();
    let mut count = 0;
    for span in code_spans(&page) {
        if !expand(span).iter().all(|path| paths.contains(path)) {
            count += 1;
            if let Some(fault) = fault(span, &sources, &known) {
                let _ = writeln!(faults, "{fault}");
            }
        }
    }
    // In pictures, `Type::Member` is a symbol, too.
    for block in page.split("```").skip(1).step_by(2) {
        for word in block.split(|it: char| !is_identifier(it) && it != ':') {
            let word = word.trim_end_matches(':');
            if word.contains("::") {
                count += 1;
                if let Some(fault) = fault(word, &sources, &known) {
                    let _ = writeln!(faults, "{fault}");
                }
            }
        }
    }
    assert!(count >= 30, "only {count} symbols");
    assert!(faults.is_empty(), "these do not exist:\n{faults}");
}

/// The members of the workspace by name, and on which other members each depends.
fn members() -> BTreeMap<String, BTreeSet<String>> {
    let mut folders = vec![root().join("e2e"), root().join("testkit")];
    let crates = fs::read_dir(root().join("crates")).expect("crates/");
    folders.extend(crates.map(|entry| entry.expect("an entry").path()));
    let manifest = read(&root().join("Cargo.toml"));
    assert!(manifest.contains(r#"members = ["crates/*", "e2e", "testkit"]"#), "other members");
    let mut members = BTreeMap::new();
    for folder in folders {
        let manifest = read(&folder.join("Cargo.toml"));
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = "));
        let name = name.expect("a name").trim_matches('"').to_owned();
        let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
        let lines = section.lines().take_while(|line| !line.starts_with('['));
        let dependencies = lines
            .filter_map(|line| line.split([' ', '.']).next())
            .filter(|dependency| dependency.starts_with("tollgate"))
            .map(|dependency| dependency.trim_start_matches("tollgate-").to_owned());
        members.insert(name, dependencies.collect());
    }
    members
}

#[test]
fn the_table_of_crates_is_the_workspace() {
    let page = page();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `tollgate"));
    let mut shown = BTreeMap::new();
    for row in rows {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [name, _, dependencies, ..] = cells[..] else { panic!("a short row: {row}") };
        let dependencies = dependencies.split(", ").filter(|it| *it != "—").map(str::to_owned);
        let name = format!("tollgate{}", name.trim_end_matches('`'));
        assert!(shown.insert(name, dependencies.collect()).is_none(), "a crate is listed twice");
    }
    assert_eq!(shown, members(), "left: the table, right: the manifests");
}

#[test]
fn the_picture_of_a_request_fits_a_screen() {
    let page = page();
    let section = page.split("\n## Life of a request\n").nth(1).expect("the section");
    let picture = section.split("```").nth(1).expect("a picture");
    assert!(picture.lines().count() <= 30, "{} lines", picture.lines().count());
    let widest = picture.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{widest:?} columns");
}

#[test]
fn the_book_has_every_page() {
    let summary = read(&root().join("docs/SUMMARY.md"));
    let links = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let listed: BTreeSet<_> =
        links.map(|link| format!("docs/{link}").replace("docs/../", "")).collect();
    let mut pages = pages_in("docs");
    pages.remove("docs/SUMMARY.md");
    let outside = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", PAGE];
    pages.extend(outside.map(str::to_owned));
    assert_eq!(listed, pages, "left: docs/SUMMARY.md, right: the pages there are");
}

#[test]
fn a_name_that_is_only_mentioned_is_not_defined() {
    let text = "/// See Missing.\npub struct Present {\n    pub field: u8,\n}\n";
    assert!(defines(text, "Present") && defines(text, "field"));
    assert!(!defines(text, "Missing") && !defines(text, "Pres"));
    let other = "pub enum Other {\n    Kept,\n}\nimpl Other {\n    fn name() {}\n}\n";
    let text = format!("{text}{other}");
    let is_member = |owner, member| blocks_of(&text, owner).any(|block| defines(block, member));
    assert!(is_member("Present", "field") && is_member("Other", "Kept"));
    assert!(is_member("Other", "name") && !is_member("Present", "Kept"));
    assert_eq!(expand("a/{b,c}.rs"), ["a/b.rs", "a/c.rs"]);
}
