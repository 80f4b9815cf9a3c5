//! A decision for people.

use std::fmt::Write as _;
use std::io;

use serde_json::Value;

use crate::output::{self, Colour};
use crate::value::{list, plain, shown};

/// The verdict, why, and a table of limits.
pub(super) fn render(decision: &Value, is_allowed: bool) -> String {
    let (word, colour) =
        if is_allowed { ("ALLOWED", Colour::Green) } else { ("BLOCKED", Colour::Red) };
    let verdict = output::coloured(word, colour, &io::stdout());
    let mut text = format!("{verdict}  {}\n", shown(decision, "reason"));
    let _ = writeln!(text, "{}", explanation(decision));
    for (field, label) in [("waitMs", "wait"), ("retryAfterMs", "retry after")] {
        if let Some(millis) = decision.get(field).and_then(Value::as_u64).filter(|it| *it > 0) {
            let _ = writeln!(text, "{label}: {}.{:03} s", millis / 1_000, millis % 1_000);
        }
    }
    for warning in list(decision, "warnings") {
        let _ = writeln!(text, "warning: {}", plain(warning));
    }
    for rule in list(decision, "wouldDeny") {
        let (id, reason) = (shown(rule, "ruleId"), shown(rule, "reason"));
        let _ = writeln!(text, "would be refused by rule {id}, were it enforced: {reason}");
    }
    let rows: Vec<[String; 7]> = list(decision, "scopes").iter().map(row).collect();
    if !rows.is_empty() {
        let head = ["SCOPE", "RULE", "LIMIT", "USED", "REMAINING", "WINDOW", "RESETS AT"];
        let _ = write!(text, "\n{}", output::table(head, &rows));
    }
    text
}

/// The server explains refusals; of what is allowed it is enough to say which limit is nearest.
fn explanation(decision: &Value) -> String {
    if let Some(text) = decision.get("explanation") {
        return plain(text);
    }
    match decision.get("ruleId").and_then(Value::as_str) {
        Some(rule) => format!("rule {rule:?} decides: {} remaining", shown(decision, "remaining")),
        None => "no limit applies to this request".to_owned(),
    }
}

fn row(scope: &Value) -> [String; 7] {
    let window = match scope.get("windowSeconds").and_then(Value::as_u64) {
        Some(0) | None => "-".to_owned(),
        Some(seconds) => format!("{seconds} s"),
    };
    [
        shown(scope, "name"),
        shown(scope, "ruleId"),
        shown(scope, "limit"),
        shown(scope, "current"),
        shown(scope, "remaining"),
        window,
        shown(scope, "resetAt"),
    ]
}
