//! Rules in Rust types and those of rule files as one set.

use tollgate_policy::{Problems, RuleFile, RuleSet};

use crate::Error;

/// A gate that lets everything pass is a mistake.
const NO_RULE: &str = "a gate without a rule limits nothing; add one with rule()";

/// The set of the typed rules, which are JSON already, and of these rule files.
pub(crate) fn merge(typed: &str, files: &[String]) -> Result<RuleSet, Error> {
    let mut merged =
        RuleFile::parse(typed, "rules").map_err(|problems| typed_problems(&problems))?;
    for (number, text) in (1..).zip(files) {
        let source = format!("rule file {number}");
        let file = RuleFile::parse(text, &source).map_err(|all| Error::Rules(all.to_string()))?;
        merged.append(file);
    }
    let set = RuleSet::compile(&merged).map_err(|problems| typed_problems(&problems))?;
    let limits_something =
        !set.rules().is_empty() || set.default_rule().is_some() || !set.deny_list().is_empty();
    if limits_something { Ok(set) } else { Err(Error::Rules(NO_RULE.to_owned())) }
}

/// The places of problems mean nothing where there is no file.
fn typed_problems(problems: &Problems) -> Error {
    let line = |problem: &tollgate_policy::Problem| {
        let rule = problem.rule.as_deref().unwrap_or("?");
        let field = problem.field.as_deref().unwrap_or("rule");
        format!("rule {rule:?}: {field} {}", problem.message)
    };
    let lines: Vec<String> = problems.0.iter().map(line).collect();
    Error::Rules(lines.join("\n"))
}
