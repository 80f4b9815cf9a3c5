//! Rules for Tollgate from the configuration of envoyproxy/ratelimit, with the same meaning.
//!
//! Such a file is a tree of keys and values. A descriptor walks down it, entry by entry: at each level
//! the exact value goes before wildcards, in the order of the file, and these before the bare key; it
//! never turns back; and a limit applies only to descriptors that end at its own depth.
//!
//! Tollgate knows no trees, but alternatives: of the rules that share a scope the one with the highest
//! priority applies. So for every sequence of keys there is one list of rules, in the order of the walk
//! (`flatten`), and where the walk would end without a limit there is a rule that limits nothing.

mod file;
mod flatten;
mod name;
mod print;

pub use name::descriptor_name;

use crate::problem::Report;
use crate::{Problem, Problems, RuleSet};

use file::{Domain, read_domain};

/// How deep descriptors may nest: the most entries that a request's descriptor may have.
pub const MAX_IMPORT_DEPTH: usize = 16;

/// A rule file with the meaning of these files of envoyproxy/ratelimit, each with its name.
pub fn import_envoy(files: &[(&str, &str)]) -> Result<String, Problems> {
    let mut domains: Vec<Domain> = Vec::new();
    let mut problems: Vec<Problem> = Vec::new();
    for (source, text) in files {
        let mut report = Report::new(source);
        if let Some(domain) = read_domain(text, source, &mut report) {
            let same = domains.iter().find(|other| other.name.value == domain.name.value);
            if let Some(same) = same {
                let message = format!("is the domain of {} too; put them into one", same.source);
                report.add(domain.name.at, Some("domain"), message);
            }
            domains.push(domain);
        }
        problems.extend(report.finish());
    }
    if !problems.is_empty() {
        return Err(Problems(problems));
    }
    let mut rules = Vec::new();
    for domain in &domains {
        let mut report = Report::new(&domain.source);
        flatten::flatten(domain, &mut rules, &mut report);
        problems.extend(report.finish());
    }
    if !problems.is_empty() {
        return Err(Problems(problems));
    }
    let text = print::print(&domains, &rules);
    match RuleSet::from_yaml(&text, "the imported rules") {
        Ok(_) => Ok(text),
        Err(Problems(inner)) => Err(Problems(vec![internal(&inner)])),
    }
}

/// The import made what the compiler does not take: a fault of the import, not of the files.
fn internal(inner: &[Problem]) -> Problem {
    let first = inner.first().map(ToString::to_string).unwrap_or_default();
    Problem {
        source: "import".to_owned(),
        line: 1,
        column: 1,
        rule: None,
        field: None,
        message: format!("these files cannot be told as rules; please report this: {first}"),
    }
}
