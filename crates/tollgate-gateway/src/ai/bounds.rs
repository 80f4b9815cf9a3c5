//! The fields that bound an answer, wherever in a body they stand.
//!
//! Servers read bounds under many names: `options.num_predict`, `parameters.max_new_tokens`, `thinking.budget_tokens`.
//! Which of them an upstream follows is not known here, so the reservation covers the largest of each kind.

use super::ask::{Wrong, wrong};
use super::fields::{FIELDS, NO_OPTIONS, READ};
use super::json::Value;
use super::names::plain;
use super::thinking;

/// Objects that are nested deeper are not searched: no server reads options there.
const MAX_DEPTH: u32 = 8;

/// Agents that a model may start where the request does not say how many.
const DEFAULT_SUBAGENTS: u64 = 6;

/// What the fields of a body say about its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Bounds {
    /// The largest bound of one answer. Upstreams that do not know its name write on: it raises a reservation, and never
    /// lowers it.
    pub(super) output: Option<u64>,
    /// The largest number of tokens that an answer must have.
    pub(super) least: u64,
    /// Whether a field asks for thinking.
    pub(super) asks_thinking: bool,
    /// The largest budget for thinking, which some servers grant on top of the bound.
    pub(super) thinking: u64,
    /// The largest number of answers.
    pub(super) answers: Option<u64>,
    /// How many more times answers may be made, by agents that a model starts.
    pub(super) extra_answers: u64,
    /// Whether bounds that a model does not know are left out instead of refused.
    pub(super) is_dropped: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Output,
    /// What an answer must have at least.
    Least,
    Thinking,
    Answers,
    Extra,
}

/// What an object holds, by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Options: short names mean something here.
    Options,
    /// How much a model may think.
    Thinking,
    Other,
}

/// Names that mean the same everywhere, without underscores, in small letters.
const NAMES: [(&str, Kind, &str); 44] = [
    ("maxtokens", Kind::Output, "max_tokens"),
    ("maxcompletiontokens", Kind::Output, "max_completion_tokens"),
    ("maxoutputtokens", Kind::Output, "max_output_tokens"),
    ("maxnewtokens", Kind::Output, "max_new_tokens"),
    ("maxgentokens", Kind::Output, "max_gen_tokens"),
    ("maxgentoks", Kind::Output, "max_gen_toks"),
    ("maxgenlen", Kind::Output, "max_gen_len"),
    ("maxtokenstosample", Kind::Output, "max_tokens_to_sample"),
    ("maxtokencount", Kind::Output, "max_token_count"),
    ("maxpredict", Kind::Output, "max_predict"),
    ("numpredict", Kind::Output, "num_predict"),
    ("npredict", Kind::Output, "n_predict"),
    ("tokenstogenerate", Kind::Output, "tokens_to_generate"),
    ("outputtokenlimit", Kind::Output, "output_token_limit"),
    ("maxoutputlength", Kind::Output, "max_output_length"),
    ("requestoutputlen", Kind::Output, "request_output_len"),
    ("mintokens", Kind::Least, "min_tokens"),
    ("minnewtokens", Kind::Least, "min_new_tokens"),
    ("minoutputtokens", Kind::Least, "min_output_tokens"),
    ("budgettokens", Kind::Thinking, "budget_tokens"),
    ("thinkingbudget", Kind::Thinking, "thinking_budget"),
    ("thinkingtokenbudget", Kind::Thinking, "thinking_token_budget"),
    ("thinkingbudgettokens", Kind::Thinking, "thinking_budget_tokens"),
    ("thinkingtokens", Kind::Thinking, "thinking_tokens"),
    ("maxthinkingtokens", Kind::Thinking, "max_thinking_tokens"),
    ("maxthinkinglength", Kind::Thinking, "max_thinking_length"),
    ("reasoningbudget", Kind::Thinking, "reasoning_budget"),
    ("reasoningtokenbudget", Kind::Thinking, "reasoning_token_budget"),
    ("reasoningbudgettokens", Kind::Thinking, "reasoning_budget_tokens"),
    ("reasoningtokens", Kind::Thinking, "reasoning_tokens"),
    ("maxreasoningtokens", Kind::Thinking, "max_reasoning_tokens"),
    ("bestof", Kind::Answers, "best_of"),
    ("numreturnsequences", Kind::Answers, "num_return_sequences"),
    ("candidatecount", Kind::Answers, "candidate_count"),
    ("numgenerations", Kind::Answers, "num_generations"),
    ("numcompletions", Kind::Answers, "num_completions"),
    ("numsamples", Kind::Answers, "num_samples"),
    ("numoutputs", Kind::Answers, "num_outputs"),
    ("numcandidates", Kind::Answers, "num_candidates"),
    ("samplecount", Kind::Answers, "sample_count"),
    ("ncmpl", Kind::Answers, "n_cmpl"),
    ("maxconcurrentsubagents", Kind::Extra, "max_concurrent_subagents"),
    // Each beam is an answer on its way.
    ("numbeams", Kind::Answers, "num_beams"),
    ("beamwidth", Kind::Answers, "beam_width"),
];

/// Names that mean something among options only: a schema has a `maxLength` too.
const OPTION_NAMES: [(&str, Kind, &str); 4] = [
    ("n", Kind::Answers, "n"),
    ("numresults", Kind::Answers, "num_results"),
    ("maxlength", Kind::Output, "max_length"),
    ("minlength", Kind::Least, "min_length"),
];

/// How names of objects end whose members are options, and what such names contain that are others.
const OPTION_ENDS: [&str; 8] =
    ["params", "parameters", "options", "config", "args", "kwargs", "settings", "sampling"];
const NO_OPTION_OBJECTS: [&str; 4] = ["tokenizer", "truncat", "processor", "search"];

/// What names of other bounds than those of answers contain.
const NO_OUTPUTS: [&str; 13] = [
    "input", "prompt", "context", "model", "total", "cache", "image", "video", "audio", "history",
    "search", "chunk", "memory",
];

/// Whether the members of an object are options, by its name.
pub(super) fn is_options(plain: &str) -> bool {
    OPTION_ENDS.iter().any(|it| plain.ends_with(it))
        && !NO_OPTION_OBJECTS.iter().any(|it| plain.contains(it))
}

impl Bounds {
    /// Searches a body. The fields that are read by their own name are left out.
    pub(super) fn read(whole: Value<'_>) -> Result<Self, Wrong> {
        let mut bounds = Self::default();
        for member in whole.members() {
            let name = member.name.as_ref();
            let is_read = name != "chat_template_kwargs" && READ.contains(&name);
            bounds.is_dropped |= plain(name) == "dropparams" && member.value.text == "true";
            if !is_read && !NO_OPTIONS.contains(&name) && !FIELDS.contains(&name) {
                bounds.member(name, member.value, Place::Options, 0)?;
            }
        }
        Ok(bounds)
    }

    fn member(
        &mut self,
        name: &str,
        value: Value<'_>,
        place: Place,
        depth: u32,
    ) -> Result<(), Wrong> {
        self.search(&plain(name), value, place, depth)
    }

    /// The value of a member whose name was read once: an array may have many elements.
    fn search(
        &mut self,
        plain: &str,
        value: Value<'_>,
        place: Place,
        depth: u32,
    ) -> Result<(), Wrong> {
        self.asks_thinking |= thinking::is_asked(plain, value);
        if let Some((kind, name)) = kind_of(plain, place) {
            return self.take(kind, name, value);
        }
        if depth >= MAX_DEPTH || plain == "properties" || plain.contains("schema") {
            return Ok(());
        }
        self.repeat(plain, value);
        let inner = match plain {
            name if name.contains("thinking") || name.contains("reasoning") => Place::Thinking,
            name if is_options(name) => Place::Options,
            // Options of one server among those of several.
            _ if depth > 0 && place == Place::Options => Place::Options,
            _ => Place::Other,
        };
        let around = if depth == 0 { Place::Other } else { place };
        for element in value.elements().filter(|it| it.is_object() || it.is_array()) {
            self.search(plain, element, around, depth + 1)?;
        }
        for member in value.members() {
            self.member(&member.name, member.value, inner, depth + 1)?;
        }
        Ok(())
    }

    /// Agents that a model starts write answers of their own.
    fn repeat(&mut self, plain: &str, value: Value<'_>) {
        if plain != "multiagent" {
            return;
        }
        let find = |known: &str| {
            let found = value.members().find(|it| super::names::plain(&it.name) == known);
            found.map(|it| it.value)
        };
        let is_enabled = find("enabled").is_some_and(|it| it.text == "true");
        if is_enabled && find("maxconcurrentsubagents").is_none() {
            self.extra_answers = self.extra_answers.max(DEFAULT_SUBAGENTS);
        }
    }

    fn take(&mut self, kind: Kind, name: &'static str, value: Value<'_>) -> Result<(), Wrong> {
        if value.is_null() || value.boolean().is_some() {
            return Ok(());
        }
        // A level of thinking, such as "high", or no budget, or one that the upstream chooses within the bound.
        if kind == Kind::Thinking && (is_level(value) || value.text.starts_with('-')) {
            return Ok(());
        }
        let number = value
            .whole()
            .filter(|number| *number > 0 || !matches!(kind, Kind::Output | Kind::Answers));
        let number = number.ok_or_else(|| {
            let least = u8::from(matches!(kind, Kind::Output | Kind::Answers));
            wrong(name, format!("{name:?} must be a whole number of at least {least}"))
        })?;
        match kind {
            Kind::Output => self.output = self.output.max(Some(number)),
            Kind::Least => self.least = self.least.max(number),
            Kind::Thinking => self.thinking = self.thinking.max(number),
            Kind::Answers => self.answers = self.answers.max(Some(number)),
            Kind::Extra => self.extra_answers = self.extra_answers.max(number),
        }
        Ok(())
    }
}

/// Whether a value is a text that no server reads a number out of: "high", and neither "9" nor "inf".
fn is_level(value: Value<'_>) -> bool {
    value
        .string()
        .is_some_and(|text| !text.contains(char::is_numeric) && text.trim().parse::<f64>().is_err())
}

fn kind_of(plain: &str, place: Place) -> Option<(Kind, &'static str)> {
    let find = |names: &[(&str, Kind, &'static str)]| {
        let found = names.iter().find(|(known, _, _)| *known == plain);
        found.map(|(_, kind, name)| (*kind, *name))
    };
    let known = || find(&NAMES).or_else(|| like_a_bound(plain));
    match place {
        Place::Options => find(&OPTION_NAMES).or_else(known),
        Place::Other => known(),
        Place::Thinking if matches!(plain, "budget" | "tokens") => Some((Kind::Thinking, "budget")),
        Place::Thinking => match known()? {
            (Kind::Output, name) => Some((Kind::Thinking, name)),
            found => Some(found),
        },
    }
}

/// A bound by a name that is not known: `max_response_tokens`.
fn like_a_bound(plain: &str) -> Option<(Kind, &'static str)> {
    if !plain.ends_with("tokens") || NO_OUTPUTS.iter().any(|it| plain.contains(it)) {
        return None;
    }
    match plain.get(..3)? {
        "max" => Some((Kind::Output, "max_tokens")),
        "min" => Some((Kind::Least, "min_tokens")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::parse;
    use super::*;

    /// Longest answer, thinking budget, answers; or the field that is wrong.
    type Read = Result<(Option<u64>, u64, Option<u64>), Option<&'static str>>;

    fn read(body: &str) -> Read {
        let bounds = Bounds::read(parse(body).unwrap()).map_err(|wrong| wrong.param)?;
        Ok((bounds.output, bounds.thinking, bounds.answers))
    }

    #[test]
    fn bounds_are_found_under_every_documented_name() {
        for (body, bounds) in [
            (r#"{"thinking":{"type":"enabled","budget_tokens":9}}"#, (None, 9, None)),
            (r#"{"reasoning":{"max_tokens":9,"effort":"high"}}"#, (None, 9, None)),
            (r#"{"thinking_budget":9,"thinking_token_budget":8}"#, (None, 9, None)),
            (r#"{"chat_template_kwargs":{"thinking_budget":9}}"#, (None, 9, None)),
            (r#"{"google":{"thinking_config":{"thinking_budget":9}}}"#, (None, 9, None)),
            (r#"{"generationConfig":{"thinkingConfig":{"thinkingBudget":9}}}"#, (None, 9, None)),
            (
                r#"{"additionalModelRequestFields":{"reasoning_config":{"budget_tokens":9}}}"#,
                (None, 9, None),
            ),
            (r#"{"thinking":[{"budget_tokens":9}]}"#, (None, 9, None)),
            (r#"{"thinking_budget":-1,"reasoning_budget":0}"#, (None, 0, None)),
            (r#"{"thinking_budget":"high"}"#, (None, 0, None)),
            (r#"{"options":{"num_predict":9}}"#, (Some(9), 0, None)),
            (
                r#"{"generationConfig":{"maxOutputTokens":9,"candidateCount":3}}"#,
                (Some(9), 0, Some(3)),
            ),
            (
                r#"{"parameters":{"max_new_tokens":9,"n":2,"max_length":11}}"#,
                (Some(11), 0, Some(2)),
            ),
            (r#"{"max_new_tokens":9,"num_return_sequences":4}"#, (Some(9), 0, Some(4))),
            (r#"{"options":{"min_tokens":0}}"#, (None, 0, None)),
            (r#"{"x":{"n":2,"maxLength":5},"metadata":{"max_tokens":5}}"#, (None, 0, None)),
            (r#"{"tools":[{"max_tokens":5}],"max_tokens":7,"user":"max_tokens"}"#, (None, 0, None)),
            (r#"{"options":{"num_predict":null,"x":{}},"think":true}"#, (None, 0, None)),
            // Letters that servers fold to ASCII.
            ("{\"options\":{\"max_token\u{17f}\":9}}", (Some(9), 0, None)),
            ("{\"options\":{\"MAX_TO\u{212a}ENS\":9}}", (Some(9), 0, None)),
            ("{\"options\":{\"num_pred\u{131}ct\":9}}", (Some(9), 0, None)),
            ("{\"options\":{\"NUM_PRED\u{130}CT\":9}}", (Some(9), 0, None)),
            (r#"{"num_beams":4}"#, (None, 0, Some(4))),
            (r#"{"config":{"n":3,"max_length":9}}"#, (Some(9), 0, Some(3))),
            (r#"{"providerOptions":{"openai":{"n":3}},"sampling":{"n":4}}"#, (None, 0, Some(4))),
            (r#"{"x":{"max_response_tokens":9,"min_completion_tokens":11}}"#, (Some(9), 0, None)),
            (r#"{"reasoning":{"max_hidden_tokens":9}}"#, (None, 9, None)),
            (r#"{"x":[{"n":9}],"options":[{"n":3}]}"#, (None, 0, Some(3))),
            (r#"{"max_prompt_tokens":9,"tokenizer_kwargs":{"max_length":9}}"#, (None, 0, None)),
            (r#"{"my_schema":{"properties":{"max_tokens":{"type":"integer"}}}}"#, (None, 0, None)),
            (r#"{"x":{"properties":{"max_tokens":{"type":"integer"}}}}"#, (None, 0, None)),
        ] {
            assert_eq!(read(body), Ok(bounds), "{body}");
        }
    }

    #[test]
    fn agents_least_lengths_and_dropped_bounds_are_found() {
        let read = |body: &str| {
            let bounds = Bounds::read(parse(body).unwrap()).unwrap();
            (bounds.extra_answers, bounds.least, bounds.is_dropped)
        };
        assert_eq!(read(r#"{"multi_agent":{"enabled":false}}"#), (0, 0, false));
        assert_eq!(read(r#"{"multi_agent":{"enabled":true}}"#), (6, 0, false));
        assert_eq!(
            read(r#"{"multi_agent":{"enabled":true,"max_concurrent_subagents":2}}"#),
            (2, 0, false)
        );
        assert_eq!(read(r#"{"min_new_tokens":7,"drop_params":true}"#), (0, 7, true));
        assert_eq!(read(r#"{"options":{"min_tokens":5},"drop_params":false}"#), (0, 5, false));
    }

    #[test]
    fn bounds_that_are_no_whole_numbers_are_refused() {
        for (body, param) in [
            (r#"{"options":{"num_predict":-1}}"#, "num_predict"),
            (r#"{"options":{"num_predict":0}}"#, "num_predict"),
            (r#"{"options":{"num_predict":"900"}}"#, "num_predict"),
            (r#"{"options":{"num_predict":1e9}}"#, "num_predict"),
            (r#"{"thinking":{"budget_tokens":1e5}}"#, "budget_tokens"),
            (r#"{"thinking":{"budget_tokens":"10000"}}"#, "budget_tokens"),
            (r#"{"thinking":{"budget_tokens":"\u0031000"}}"#, "budget_tokens"),
            (r#"{"thinking_budget":99999999999999999999999}"#, "thinking_budget"),
            (r#"{"options":{"num_predict":"inf"}}"#, "num_predict"),
            (r#"{"options":{"num_predict":"nan"}}"#, "num_predict"),
            (r#"{"options":{"num_predict":"high"}}"#, "num_predict"),
            (r#"{"options":{"num_predict":[900]}}"#, "num_predict"),
            (r#"{"options":{"num_predict":[]}}"#, "num_predict"),
            (r#"{"options":{"num_predict":{"value":900}}}"#, "num_predict"),
            (r#"{"max_new_tokens":[[900]]}"#, "max_new_tokens"),
            (r#"{"num_return_sequences":[4]}"#, "num_return_sequences"),
            (r#"{"thinking":{"budget_tokens":" +Infinity"}}"#, "budget_tokens"),
            (r#"{"thinking_budget":"-nan"}"#, "thinking_budget"),
            (r#"{"thinking_budget":[1]}"#, "thinking_budget"),
        ] {
            assert_eq!(read(body), Err(Some(param)), "{body}");
        }
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100), "]".repeat(100));
        assert_eq!(read(&deep), Ok((None, 0, None)));
    }
}
