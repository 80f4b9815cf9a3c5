//! `tollgate rules explain`

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use anyhow::anyhow;
use serde_json::{Map, Value, json};
use tollgate_engine::{Clock as _, SystemClock};
use tollgate_policy::{
    Attributes, Explained, Known, ListMatch, RequestPath, RuleVerdict, TierSource,
};

use crate::args::{ExplainArgs, RequestArgs};
use crate::commands::check;
use crate::failure::{Ended, Failure, Outcome};
use crate::output::{self, Colour};
use crate::server::Server;
use crate::value::{list, plain, shown, text};

/// Rules that an explanation of a file speaks of at most.
const MAX_EXPLAINED: usize = 200;

pub(super) fn run(args: &ExplainArgs) -> Ended {
    let explained = match &args.rules {
        Some(file) => local(file, &args.request)?,
        None => Server::new(&args.reach).post("rules/explain", &check::body(&args.request))?,
    };
    if args.json {
        output::print_json(&explained)?;
    } else {
        output::print(&render(&explained))?;
    }
    Ok(Outcome::Done)
}

/// The same as a server says, but for what it has counted.
fn local(file: &Path, request: &RequestArgs) -> Result<Value, Failure> {
    let (_, set) = super::read(file)?;
    let set = set.map_err(|problems| Failure::usage(anyhow!("the rules are wrong\n{problems}")))?;
    let path = match request.known.get(Known::Endpoint).map(RequestPath::parse) {
        Some(Err(problem)) => return Err(Failure::usage(anyhow!("--endpoint: {problem}"))),
        Some(Ok(path)) => Some(path),
        None => None,
    };
    let mut attributes = Attributes::default();
    for (known, value) in request.known.given() {
        attributes.set(known, value);
    }
    if let Some(path) = &path {
        attributes.set_path(path);
    }
    for (name, value) in &request.attribute {
        attributes.push_extra(name, value);
    }
    let explained = set.explain(&attributes, SystemClock::new().now(), MAX_EXPLAINED);
    let (tier, source) = explained.tier.unzip();
    Ok(json!({
        "listed": explained.listed.map(listed),
        "tier": tier,
        "tier_from": source.map(|source| match source {
            TierSource::Stated => "stated",
            TierSource::ClientTiers(_) => "client_tiers",
            TierSource::Default => "default",
        }),
        "rules": explained.rules.iter().map(rule).collect::<Vec<Value>>(),
        "rules_left_out": explained.left_out,
    }))
}

fn listed(listed: ListMatch<'_>) -> Value {
    let (list, entry) = match listed {
        ListMatch::Denied(entry) => ("blacklist", entry),
        ListMatch::Allowed(entry) => ("whitelist", entry),
    };
    json!({ "list": list, "identifier_type": entry.kind.name(), "reason": entry.reason })
}

fn rule(explained: &Explained<'_>) -> Value {
    let (verdict, because) = match explained.verdict {
        RuleVerdict::Applies => ("applies", None),
        RuleVerdict::LessSpecific { than } => ("less_specific", Some(than)),
        RuleVerdict::Replaced { by } => ("replaced", Some(by)),
        RuleVerdict::DefaultYields { to } => ("default_yields", Some(to)),
        RuleVerdict::Misses { field } => ("misses", Some(field)),
    };
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), Value::from(*value));
    let key: Map<String, Value> = explained.key.iter().map(pair).collect();
    json!({
        "rule_id": explained.rule.id,
        "scope": explained.rule.scope,
        "verdict": verdict,
        "because": because,
        "key": key,
    })
}

fn render(explained: &Value) -> String {
    let mut out = String::new();
    if let Some(is_allowed) = explained.get("allowed").and_then(Value::as_bool) {
        let (word, colour) =
            if is_allowed { ("ALLOWED", Colour::Green) } else { ("BLOCKED", Colour::Red) };
        let word = output::coloured(word, colour, &io::stdout());
        let _ = writeln!(out, "{word}  {}", shown(explained, "reason"));
        if let Some(why) = text(explained, "explanation").filter(|_| !is_allowed) {
            let _ = writeln!(out, "{}", plain(&Value::from(why)));
        }
    }
    if let Some(listed) = explained.get("listed").filter(|listed| !listed.is_null()) {
        let name = match text(listed, "list") {
            Some("blacklist") => "deny list: every request is refused",
            _ => "allow list: no rule counts",
        };
        let reason = text(listed, "reason").map(|reason| format!(" ({reason})"));
        let reason = plain(&Value::from(reason.unwrap_or_default()));
        let kind = shown(listed, "identifier_type");
        let _ = writeln!(out, "its {kind} is on the {name}{reason}");
    }
    if let Some(tier) = text(explained, "tier") {
        let from = match text(explained, "tier_from") {
            Some("stated") => "the request states it",
            Some("client_tiers") => "the client has it",
            _ => "the default tier",
        };
        let _ = writeln!(out, "tier: {} ({from})", plain(&Value::from(tier)));
    }
    let rules = list(explained, "rules");
    if rules.is_empty() {
        out.push_str("no rule applies to this request, nor nearly\n");
        return out;
    }
    let rows: Vec<[String; 4]> = rules.iter().map(|rule| row(rule, explained)).collect();
    let head = ["RULE", "SCOPE", "STANDS", "WHY"];
    let _ = write!(out, "{}{}", if out.is_empty() { "" } else { "\n" }, output::table(head, &rows));
    if let Some(more) = explained.get("rules_left_out").and_then(Value::as_u64).filter(|n| *n > 0) {
        let _ = writeln!(out, "and {more} more");
    }
    out
}

fn row(rule: &Value, explained: &Value) -> [String; 4] {
    let because = shown(rule, "because");
    let (stands, why) = match text(rule, "verdict") {
        Some("applies") => ("applies", applies(rule, explained)),
        Some("less_specific") => ("loses", format!("{because} is more specific")),
        Some("replaced") => ("replaced", format!("{because} overrides its scope")),
        Some("default_yields") => ("yields", format!("the default yields to {because}")),
        Some("misses") if because == "key_by" => {
            ("misses", "the request lacks an attribute of its key_by".to_owned())
        }
        Some("misses") => ("misses", format!("{because} does not fit")),
        _ => ("-", because),
    };
    [shown(rule, "rule_id"), shown(rule, "scope"), stands.to_owned(), why]
}

/// Whose counter it is, and how full that is.
fn applies(rule: &Value, explained: &Value) -> String {
    let key = rule.get("key").and_then(Value::as_object);
    let pairs = key.into_iter().flatten();
    let key: Vec<String> = pairs.map(|(name, value)| format!("{name}={}", plain(value))).collect();
    let key = if key.is_empty() { "for all together".to_owned() } else { key.join(" ") };
    let of_rule = |limit: &&Value| limit.get("rule_id") == rule.get("rule_id");
    let used: Vec<String> = list(explained, "limits")
        .iter()
        .filter(of_rule)
        .map(|limit| format!("{} of {} used", shown(limit, "current"), shown(limit, "limit")))
        .collect();
    if used.is_empty() { key } else { format!("{key}: {}", used.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_has_words() {
        let explained = json!({
            "tier": "free", "tier_from": "default",
            "rules": [
                {"rule_id": "a", "scope": "S", "verdict": "applies", "because": null,
                 "key": {"user_id": "ann"}},
                {"rule_id": "b", "scope": "S", "verdict": "less_specific", "because": "a", "key": {}},
                {"rule_id": "c", "scope": "T", "verdict": "misses", "because": "key_by", "key": {}},
            ],
            "limits": [{"rule_id": "a", "limit": 5, "current": 2}],
        });
        let expected = "\
tier: free (the default tier)

RULE  SCOPE  STANDS   WHY
a     S      applies  user_id=ann: 2 of 5 used
b     S      loses    a is more specific
c     T      misses   the request lacks an attribute of its key_by
";
        assert_eq!(render(&explained), expected);
        assert_eq!(render(&json!({})), "no rule applies to this request, nor nearly\n");
    }
}
