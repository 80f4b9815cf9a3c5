//! What a request and the name of its model say about thinking.

use super::json::Value;
use super::names::plain;

/// What names of fields contain that make a model think, or show and hide what it thought.
const NAMES: [&str; 3] = ["think", "reason", "effort"];

/// How names of fields begin that show or hide thinking, and do not turn it off.
const SHOWING: [&str; 6] = ["include", "exclude", "hide", "show", "display", "return"];

/// Objects in a field that are nested deeper are not searched for a switch.
const MAX_DEPTH: u32 = 4;

/// What the name of a model says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Thinking {
    pub(super) is_asked: bool,
    /// The budget in it: some servers serve `m-thinking-16000` as `m` with so many tokens for thinking.
    pub(super) budget: u64,
}

impl Thinking {
    pub(super) fn of_name(model: &str) -> Self {
        let name = model.to_ascii_lowercase();
        let budgets = name.split("thinking").skip(1).map(budget);
        let budget = budgets.max();
        Self { is_asked: budget.is_some() || name.contains("reason"), budget: budget.unwrap_or(0) }
    }
}

/// The number that follows, in thousands where it ends with a k.
fn budget(rest: &str) -> u64 {
    let rest = rest.trim_start_matches(['-', '_', ':', '=', '@']);
    let end = rest.find(|it: char| !it.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, unit) = rest.split_at(end);
    let number: u64 = digits.parse().unwrap_or(if digits.is_empty() { 0 } else { u64::MAX });
    if unit.starts_with('k') { number.saturating_mul(1_000) } else { number }
}

/// Whether a field asks a model to think, by its name, without underscores, in small letters.
pub(super) fn is_asked(plain_name: &str, value: Value<'_>) -> bool {
    let is_about = NAMES.iter().any(|it| plain_name.contains(it));
    let is_showing = SHOWING.iter().any(|it| plain_name.starts_with(it));
    is_about && !value.is_null() && (is_showing || !is_off(value, 0))
}

fn is_off(value: Value<'_>, depth: u32) -> bool {
    if value.is_null() || matches!(value.text, "false" | "0") {
        return true;
    }
    if let Some(text) = value.string() {
        return matches!(&*text.to_ascii_lowercase(), "none" | "off" | "disabled" | "false");
    }
    let is_switch = |name: &str| matches!(name, "type" | "enabled" | "effort" | "mode");
    let mut switches = value.members().filter(|it| is_switch(&plain(&it.name))).peekable();
    depth < MAX_DEPTH
        && value.is_object()
        && switches.peek().is_some()
        && switches.all(|it| is_off(it.value, depth + 1))
}

#[cfg(test)]
mod tests {
    use super::super::json::parse;
    use super::*;

    #[test]
    fn names_of_models_state_budgets() {
        for (name, is_asked, budget) in [
            ("m", false, 0),
            ("m-thinking", true, 0),
            ("m-thinking-16000", true, 16_000),
            ("m-Thinking-16k", true, 16_000),
            ("org/m:thinking=8192-fast", true, 8_192),
            ("m-thinking-99999999999999999999999", true, u64::MAX),
            ("deepseek-reasoner", true, 0),
        ] {
            assert_eq!(Thinking::of_name(name), Thinking { is_asked, budget }, "{name}");
        }
    }

    #[test]
    fn fields_ask_for_thinking_unless_they_turn_it_off() {
        for (name, value, expected) in [
            ("reasoningeffort", r#""low""#, true),
            ("reasoningeffort", r#""none""#, false),
            ("reasoningeffort", "null", false),
            ("reasoning", r#"{"effort":"high"}"#, true),
            ("reasoning", r#"{"summary":"auto"}"#, true),
            ("reasoning", r#"{"enabled":false}"#, false),
            ("reasoning", r#"{"enabled":false,"effort":"high"}"#, true),
            ("thinking", r#"{"type":"adaptive"}"#, true),
            ("thinking", r#"{"type":"disabled"}"#, false),
            ("enablethinking", "true", true),
            ("enablethinking", "false", false),
            ("thinkingbudget", "0", false),
            ("includereasoning", "false", true),
            ("temperature", "1", false),
        ] {
            assert_eq!(is_asked(name, parse(value).unwrap()), expected, "{name}: {value}");
        }
    }
}
