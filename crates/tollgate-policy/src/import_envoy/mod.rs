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
mod yaml;

pub use name::descriptor_name;

use crate::problem::Report;
use crate::{Problem, Problems, RuleSet};

use file::{Domain, read_domain, report_repeated};

/// How deep descriptors may nest: the most entries that a request's descriptor may have.
pub const MAX_IMPORT_DEPTH: usize = 16;

/// What is imported otherwise than envoyproxy/ratelimit means it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the flags of the command")]
pub struct ImportOptions {
    /// Files may share a domain (`MERGE_DOMAIN_CONFIG` there).
    pub merge_domains: bool,
    /// A call charges all of its descriptors or none, also where they carry their own `hits_addend`.
    pub all_or_nothing: bool,
    /// A descriptor that only checks (`hits_addend: 0`) is over a limit that is used up exactly.
    pub refuse_check_at_limit: bool,
    /// Months are those of the calendar in UTC (`USE_CALENDAR_MONTH_RATE_LIMIT` there), not 30 days.
    pub calendar_months: bool,
}

/// A rule file with the meaning of these files of envoyproxy/ratelimit, each with its name.
pub fn import_envoy(files: &[(&str, &str)], options: ImportOptions) -> Result<String, Problems> {
    let domains = read_domains(files, options)?;
    let mut problems: Vec<Problem> = Vec::new();
    let mut rules = Vec::new();
    for domain in &domains {
        let mut report = Report::new("");
        flatten::flatten(domain, &mut rules, &mut report);
        problems.extend(report.finish());
    }
    if !problems.is_empty() {
        return Err(Problems(problems));
    }
    let text = print::print(&domains, &rules, options);
    match RuleSet::from_yaml(&text, "the imported rules") {
        Ok(_) => Ok(text),
        Err(Problems(inner)) => Err(Problems(vec![internal(&inner)])),
    }
}

fn read_domains(files: &[(&str, &str)], options: ImportOptions) -> Result<Vec<Domain>, Problems> {
    let mut domains: Vec<Domain> = Vec::new();
    let mut problems: Vec<Problem> = Vec::new();
    for (source, text) in files {
        let mut report = Report::new(source);
        if let Some(domain) = read_domain(text, source, &mut report) {
            let same = domains.iter_mut().find(|other| other.name.value == domain.name.value);
            match same {
                Some(same) if options.merge_domains => same.append(domain),
                Some(same) => {
                    let message = format!(
                        "is the domain of {} too; put them into one file, or import with --merge-domains",
                        same.sources.join(", ")
                    );
                    report.add(domain.name.at, Some("domain"), message);
                }
                None => domains.push(domain),
            }
        }
        problems.extend(report.finish());
    }
    for domain in &domains {
        let mut report = Report::new("");
        report_repeated(&domain.children, &mut report);
        problems.extend(report.finish());
    }
    if problems.is_empty() { Ok(domains) } else { Err(Problems(problems)) }
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
        message: format!("these files were not imported correctly; please report this: {first}"),
    }
}
