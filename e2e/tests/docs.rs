//! The documentation is run.
//!
//! Every ```` ```console ```` block of README.md and docs/*.md shows commands (lines that start with
//! `$ `; a line that ends in `\` goes on in the next) and what they print. Those that start with one
//! of [`RUN`] are run from the repository's root, in order, against a server of their own, and must
//! print what is shown. `…` stands for any text without a quote in its line, and a line of `…` alone
//! for any lines. JSON may be shown indented.
//!
//! A comment above a block starts another server for it and the blocks that follow:
//! `<!-- rules: FILE -->`, or `<!-- rules: none -->`, optionally `<!-- env: NAME=VALUE … -->` after it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate_e2e::server::binary;
use tollgate_e2e::{Server, ServerBuilder};

/// What commands start with that are run; others are for the reader's machine.
const RUN: [&str; 8] = [
    "curl ",
    "for ",
    "tollgate audit",
    "tollgate backtest",
    "tollgate check",
    "tollgate rules",
    "tollgate config",
    "printf ",
];

/// What documents call the server.
const SHOWN_ADDRESS: &str = "127.0.0.1:8080";

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("e2e lies in the repository").to_owned()
}

/// The documents people write; generated ones have tests of their own.
fn documents() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
            .iter()
            .map(|name| root().join(name))
            .collect();
    for folder in ["docs", "docs/decisions"] {
        let pages = fs::read_dir(root().join(folder)).expect("a folder");
        let pages = pages.map(|entry| entry.expect("an entry").path());
        found.extend(pages.filter(|path| path.extension().is_some_and(|it| it == "md")));
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A fenced block and the comments directly above it.
struct Block<'d> {
    language: &'d str,
    line: usize,
    lines: Vec<&'d str>,
    rules: Option<&'d str>,
    env: Vec<(&'d str, &'d str)>,
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block<'_>> = None;
    let (mut rules, mut env) = (None, Vec::new());
    for (index, line) in text.lines().enumerate() {
        if let Some(mut block) = open.take() {
            if line.trim_start() == "```" {
                blocks.push(block);
            } else {
                block.lines.push(line);
                open = Some(block);
            }
        } else if let Some(language) = line.trim_start().strip_prefix("```") {
            let (rules, env) = (rules.take(), std::mem::take(&mut env));
            open = Some(Block { language, line: index + 1, lines: Vec::new(), rules, env });
        } else if let Some(file) = comment(line, "rules:") {
            rules = Some(file);
        } else if let Some(pairs) = comment(line, "env:") {
            env = pairs.split(' ').filter_map(|pair| pair.split_once('=')).collect();
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

/// What a comment of this kind says.
fn comment<'d>(line: &'d str, kind: &str) -> Option<&'d str> {
    let inner = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?;
    inner.trim().strip_prefix(kind).map(str::trim)
}

/// A command and what it is said to print.
struct Shown {
    line: usize,
    command: String,
    output: String,
}

fn commands(block: &Block<'_>) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    let mut continues = false;
    for (index, line) in block.lines.iter().enumerate() {
        let last = all.last_mut();
        if let Some(command) = line.strip_prefix("$ ") {
            let line = block.line + index + 1;
            all.push(Shown { line, command: command.to_owned(), output: String::new() });
            continues = command.ends_with('\\');
        } else if let Some(shown) = last.filter(|_| continues) {
            let _ = write!(shown.command, "\n{line}");
            continues = line.ends_with('\\');
        } else if let Some(shown) = all.last_mut() {
            let _ = writeln!(shown.output, "{line}");
        }
    }
    all
}

fn start(block: &Block<'_>) -> Server {
    let mut builder = ServerBuilder::default();
    if let Some(file) = block.rules.filter(|file| *file != "none") {
        builder = builder.rules(&read(&root().join(file)));
    }
    for (name, value) in &block.env {
        builder = builder.env(name, value);
    }
    builder.start()
}

/// Runs a command as a reader would; what it prints on both streams.
fn run(command: &str, server: &Server) -> String {
    let address = server.addr().to_string();
    let folder = binary().parent().expect("a folder").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("sh")
        .args(["-c", &format!("{{ {} ; }} 2>&1", command.replace(SHOWN_ADDRESS, &address))])
        .current_dir(root())
        .env("PATH", format!("{folder}:{path}"))
        .env("LC_ALL", "C")
        .env("no_proxy", "127.0.0.1")
        .env("TOLLGATE_URL", format!("http://{address}"))
        .env("TOLLGATE_TOKEN", tollgate_e2e::ADMIN_TOKEN)
        .output()
        .expect("sh runs");
    String::from_utf8_lossy(&output.stdout).replace('\r', "").replace(&address, SHOWN_ADDRESS)
}

/// `…` alone on its line.
const ANY: char = '\u{0}';
/// `…` within a line.
const SOME: char = '…';

/// Text in the form in which it is compared: lines without trailing space, and from the first line
/// on that begins with a brace, JSON without the space between its tokens.
fn normal(text: &str) -> Vec<char> {
    let mut normal = String::new();
    let mut is_json = false;
    let mut is_string = false;
    for line in text.trim().lines() {
        is_json |= line.starts_with('{');
        if line.trim() == "…" {
            normal.push(ANY);
            continue;
        }
        if !is_json {
            normal.push_str(line.trim_end());
            normal.push('\n');
            continue;
        }
        let mut escaped = false;
        for character in line.chars() {
            if character == '"' && !escaped {
                is_string = !is_string;
            }
            escaped = is_string && character == '\\' && !escaped;
            if is_string || !character.is_whitespace() {
                normal.push(character);
            }
        }
    }
    normal.trim_end().chars().collect()
}

/// Compares what was printed with what is shown; the error says where they part.
fn compare(shown: &str, printed: &str) -> Result<(), String> {
    let (shown, printed) = (normal(shown), normal(printed));
    // The places in `printed` that the part of `shown` so far can end at.
    let mut ends = vec![false; printed.len() + 1];
    ends[0] = true;
    for (index, token) in shown.iter().enumerate() {
        let mut next = vec![false; ends.len()];
        for place in (0..ends.len()).filter(|place| ends[*place]) {
            match *token {
                ANY => next[place..].fill(true),
                SOME => {
                    let rest = &printed[place..];
                    let most = rest.iter().position(|it| matches!(it, '"' | '\n'));
                    next[place..=place + most.unwrap_or(rest.len())].fill(true);
                }
                literal => {
                    if printed.get(place) == Some(&literal) {
                        next[place + 1] = true;
                    }
                }
            }
        }
        if !next.contains(&true) {
            let place = ends.iter().rposition(|end| *end).unwrap_or(0);
            return Err(parting(&shown[index..], &printed[place..]));
        }
        ends = next;
    }
    if ends[printed.len()] {
        return Ok(());
    }
    let place = ends.iter().rposition(|end| *end).unwrap_or(0);
    Err(parting(&[], &printed[place..]))
}

fn parting(shown: &[char], printed: &[char]) -> String {
    let short = |text: &[char]| text.iter().take(60).collect::<String>();
    format!(
        "they part where the document says {:?}\n    and it printed {:?}",
        short(shown),
        short(printed)
    )
}

/// Runs every command of a document; returns how many.
fn check(document: &Path) -> usize {
    let text = read(document);
    let name = document.strip_prefix(root()).unwrap_or(document).display();
    let mut server: Option<Server> = None;
    let mut failures = String::new();
    let mut count = 0;
    for block in blocks(&text).iter().filter(|block| block.language == "console") {
        if block.rules.is_some() {
            server = None;
        }
        for shown in commands(block) {
            if !RUN.iter().any(|start| shown.command.starts_with(start)) {
                continue;
            }
            count += 1;
            let printed = run(&shown.command, server.get_or_insert_with(|| start(block)));
            if let Err(why) = compare(&shown.output, &printed) {
                let _ = writeln!(
                    failures,
                    "\n{name}:{}\n$ {}\n--- the document says\n{}--- it printed\n{printed}\n--- {why}",
                    shown.line, shown.command, shown.output
                );
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
    count
}

#[test]
fn the_readme_is_true() {
    let count = check(&root().join("README.md"));
    assert!(count >= 12, "only {count} commands were run");
}

#[test]
fn the_api_reference_is_true() {
    let count = check(&root().join("docs/api.md"));
    assert!(count >= 20, "only {count} commands were run");
}

#[test]
fn the_other_documents_are_true() {
    let own = ["README.md", "docs/api.md"].map(|name| root().join(name));
    let count: usize =
        documents().iter().filter(|path| !own.contains(path)).map(|path| check(path)).sum();
    assert!(count >= 5, "only {count} commands were run");
}

/// Runs `tollgate`, which must find nothing wrong.
fn must_pass(args: &[&str], files: &[PathBuf]) {
    let output = Command::new(binary()).args(args).args(files).output().expect("tollgate runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Writes each `yaml` block of a document into a file of its own.
fn yaml_files(document: &str, folder: &Path) -> Vec<PathBuf> {
    let text = read(&root().join(document));
    let name = document.replace('/', "-");
    let mut files = Vec::new();
    for block in blocks(&text).iter().filter(|block| block.language == "yaml") {
        let path = folder.join(format!("{name}-line-{}.yaml", block.line));
        fs::write(&path, block.lines.join("\n")).expect("a file is written");
        files.push(path);
    }
    files
}

#[test]
fn every_rule_of_the_documents_is_valid() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut files = yaml_files("docs/rules.md", folder.path());
    assert!(files.len() >= 15, "only {} examples", files.len());
    files.extend(yaml_files("README.md", folder.path()));
    let examples = fs::read_dir(root().join("examples/rules")).expect("examples/rules");
    files.extend(examples.map(|entry| entry.expect("an entry").path()));
    must_pass(&["rules", "validate"], &files);
}

#[test]
fn every_configuration_of_the_documents_is_valid() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let documents = ["docs/deployment.md", "docs/envoy.md"];
    for file in documents.into_iter().flat_map(|document| {
        let files = yaml_files(document, folder.path());
        assert!(!files.is_empty(), "{document}");
        files
    }) {
        must_pass(&["config", "check", "--skip-files", "--config"], &[file]);
    }
}

#[test]
fn the_embedding_example_is_the_one_that_compiles() {
    let examples = [
        "crates/tollgate/examples/hello.rs",
        "crates/tollgate/examples/gate.rs",
        "crates/tollgate/examples/axum_gate.rs",
        "crates/tollgate-engine/examples/embedded.rs",
    ]
    .map(|example| read(&root().join(example)));
    for document in ["README.md", "docs/embedding.md"] {
        let text = read(&root().join(document));
        let blocks = blocks(&text);
        let mut shown = blocks.iter().filter(|block| block.language == "rust").peekable();
        assert!(shown.peek().is_some(), "{document} shows an example");
        for block in shown {
            let code = block.lines.join("\n");
            let is_known = examples.iter().any(|example| example.contains(&code));
            assert!(is_known, "{document}:{} is another one", block.line);
        }
    }
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(document: &Path) -> Vec<String> {
    let text = read(document);
    let mut is_code = false;
    let mut anchors = Vec::new();
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        if let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter(|it| it.is_alphanumeric() || " -_".contains(*it));
            anchors.push(kept.map(|it| if it == ' ' { '-' } else { it }).collect());
        }
    }
    anchors
}

#[test]
fn links_lead_somewhere() {
    let mut broken = String::new();
    for document in documents() {
        let text = read(&document);
        let folder = document.parent().expect("a folder");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            if file.contains("://") {
                continue;
            }
            let path = if file.is_empty() { document.clone() } else { folder.join(file) };
            let is_there = path.exists()
                && (anchor.is_empty() || anchors(&path).iter().any(|known| known == anchor));
            if !is_there {
                let _ = writeln!(broken, "{}: {target}", document.display());
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{broken}");
}

#[test]
fn comparing() {
    assert!(compare("a … c\n", "a b c").is_ok());
    assert!(compare("a … c", "a b\nc").is_err(), "within a line");
    assert!(compare("a\n…\nc", "a\nb\nb\nc").is_ok(), "over lines");
    assert!(
        compare("{\n  \"a\": [1, …],\n  \"b\": \"x …\"\n}", r#"{"a":[1,2],"b":"x y"}"#).is_ok()
    );
    assert!(compare(r#"{"a": "x y"}"#, r#"{"a":"xy"}"#).is_err(), "space inside strings counts");
    assert!(compare(r#"{"a": "…"}"#, r#"{"a":"x","b":"y"}"#).is_err(), "not beyond a quote");
    assert!(compare("a", "a b").is_err());
}

/// All Rust sources of a folder, in one text.
fn sources(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&read(&path));
        }
    }
}

/// Whether a word in backticks can be the name of a test: a sentence, and no metric, table or setting.
fn is_test_name(word: &str, settings: &str) -> bool {
    let is_plain = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    word.split('_').count() >= 4
        && word.split('_').all(is_plain)
        && !word.starts_with("rate_limit")
        && !settings.contains(&format!("{word}:"))
}

const DOCUMENTS_WITH_PROMISES: [&str; 8] =
    ["operations", "admin", "redis", "deployment", "api", "failure", "consistency", "multi-region"];

/// A promise names the test that holds it, and that test exists.
#[test]
fn the_tests_that_the_documents_name_exist() {
    let mut code = String::new();
    for folder in ["crates", "e2e", "testkit"] {
        sources(&root().join(folder), &mut code);
    }
    let settings = read(&root().join("docs/reference/config.md"));
    for document in DOCUMENTS_WITH_PROMISES {
        let text = read(&root().join(format!("docs/{document}.md")));
        let words = text.split('`').map(|word| word.rsplit("::").next().unwrap_or_default());
        for name in words.filter(|word| is_test_name(word, &settings)) {
            let whole = name.strip_suffix("_in_sqlite").unwrap_or(name);
            let whole = whole.strip_suffix("_in_postgres").unwrap_or(whole);
            // A function, or an entry of a macro that makes one.
            let is_made = |name: &str| {
                code.contains(&format!("fn {name}")) || code.contains(&format!("    {name}: "))
            };
            let is_there = [name, whole].into_iter().any(is_made);
            assert!(is_there, "docs/{document}.md names the test {name}, which does not exist");
        }
    }
}
