//! What a client asks a model for: the few things that limits and routes look at.

use std::borrow::Cow;

use super::bounds::Bounds;
pub(crate) use super::call::Call;
use super::choosers;
use super::fields::{FIELDS, READ};
use super::json::{self, Value};
use super::names::is_alike;
use super::prompt::prompts;
use super::thinking::Thinking;

/// The longest name of a model, and of a user.
pub(crate) const MAX_NAME_BYTES: usize = 256;

/// The field that says whether an answer is text or sound.
const MODALITIES: &str = "modalities";

/// Why a body is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) message: String,
    /// The field that is wrong, if one is.
    pub(crate) param: Option<&'static str>,
}

pub(super) fn wrong(param: &'static str, message: impl Into<String>) -> Wrong {
    Wrong { message: message.into(), param: Some(param) }
}

/// A request's body, as far as it matters here.
#[expect(clippy::struct_excessive_bools, reason = "each is a statement by itself")]
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) call: Call,
    pub(super) whole: Value<'a>,
    pub(crate) model: Cow<'a, str>,
    /// Where the body names the model, if it does.
    pub(super) model_value: Option<Value<'a>>,
    pub(crate) user: Option<Cow<'a, str>>,
    pub(crate) is_stream: bool,
    /// Whether the client itself asks for the usage of a stream.
    pub(crate) wants_usage: bool,
    pub(super) stream_options: Option<Value<'a>>,
    /// The most tokens of one answer, where the client says so by a name that every server of this call knows.
    pub(crate) max_output: Option<u64>,
    /// The largest bound by another name: it counts where it is more than what is reserved without one.
    other_bound: u64,
    /// The most tokens of thinking, which may come on top of the answer.
    pub(crate) thinking: u64,
    /// Whether it or the model's name asks for thinking.
    pub(crate) asks_thinking: bool,
    /// The fewest tokens of one answer.
    pub(crate) min_output: u64,
    /// How many answers are made.
    pub(crate) answers: u64,
    /// How many prompts they are made of.
    pub(crate) prompts: u64,
    /// Whether bounds that the upstream does not know are left out instead of refused.
    pub(super) drops_bounds: bool,
}

impl<'a> Ask<'a> {
    /// Reads a body; `path_model` is the model that the path names, where it does. Fields without a meaning here are
    /// left to the upstream.
    pub(crate) fn read(
        call: Call,
        body: &'a [u8],
        path_model: Option<&'a str>,
    ) -> Result<Self, Wrong> {
        let not_json = |message: String| Wrong { message, param: None };
        let text = std::str::from_utf8(body)
            .map_err(|error| not_json(format!("the body is not UTF-8: {error}")))?;
        let whole = json::parse(text)
            .map_err(|error| not_json(format!("the body is not valid JSON: {error}")))?;
        if !whole.is_object() {
            return Err(not_json("the body must be a JSON object".to_owned()));
        }
        let mut found: [Option<Value<'a>>; FIELDS.len()] = [None; FIELDS.len()];
        let mut read = [false; READ.len()];
        for member in whole.members() {
            if let Some((name, place)) = place_of(&member.name, &FIELDS, &mut found)? {
                once(name, place.replace(member.value).is_some())?;
            } else if let Some((name, place)) = place_of(&member.name, &READ, &mut read)? {
                once(name, std::mem::replace(place, true))?;
                refuse_template(name, member.value)?;
            }
        }
        choosers::check(whole)?;
        let [
            model,
            user,
            stream,
            stream_options,
            max_tokens,
            max_completion,
            max_output,
            n_predict,
            n,
            n_cmpl,
            best_of,
            min_tokens,
        ] = found.map(|value| value.filter(|value| !value.is_null()));
        let named = name("model", model)?;
        if let (Some(path), Some(body)) = (path_model, &named)
            && *path != **body
        {
            return Err(wrong(
                "model",
                "\"model\" must be the one that the path names, or be left out",
            ));
        }
        let named = path_model.map(Cow::Borrowed).or(named);
        let named = named.ok_or_else(|| wrong("model", "you must provide a model"))?;
        let options = stream_options.filter(|value| value.is_object());
        let wants_usage = options.map(include_usage).transpose()?.flatten().unwrap_or(false);
        let bounds = Bounds::read(whole)?;
        let (max_tokens, user) = call.protocol().read(call, whole, max_tokens, user)?;
        let max_completion = positive("max_completion_tokens", max_completion)?;
        let max_output = positive("max_output_tokens", max_output)?;
        // Which of them an upstream goes by is its own affair. One that a call does not have is no bound: an upstream that
        // does not know it writes on.
        let others = positive("n_predict", n_predict)?.max(bounds.output);
        let (known, others) = match call {
            Call::Chat => (max_tokens.max(max_completion), others.max(max_output)),
            Call::Responses => (max_output, others.max(max_tokens).max(max_completion)),
            _ => (max_tokens, others.max(max_completion).max(max_output)),
        };
        let min_output = min_tokens.map(|value| {
            let wrong = || wrong("min_tokens", "\"min_tokens\" must be a whole number");
            value.whole().ok_or_else(wrong)
        });
        let min_output = min_output.transpose()?.unwrap_or(0).max(bounds.least);
        let by_name = Thinking::of_name(&named);
        let is_stream = match stream.map(Value::boolean) {
            None => false,
            Some(Some(said)) => said,
            // Some would take it for one.
            Some(None) => return Err(wrong("stream", "\"stream\" must be true or false")),
        };
        let each =
            positive("n", n)?.max(positive("n_cmpl", n_cmpl)?).max(positive("best_of", best_of)?);
        let each = each.max(bounds.answers).unwrap_or(1);
        let prompts = if call.has_answer() { prompts(whole) } else { 1 };
        Ok(Self {
            call,
            whole,
            model: named,
            model_value: model,
            user,
            is_stream: is_stream && call.has_answer(),
            wants_usage,
            stream_options,
            // 0 lets an upstream write nothing, or as much as it likes.
            max_output: known.filter(|bound| *bound > 0 && call.has_answer()),
            other_bound: others.unwrap_or(0),
            thinking: bounds.thinking.max(by_name.budget),
            asks_thinking: bounds.asks_thinking || by_name.is_asked,
            min_output,
            answers: each
                .saturating_mul(prompts)
                .saturating_mul(bounds.extra_answers.saturating_add(1)),
            prompts,
            drops_bounds: bounds.is_dropped,
        })
    }

    /// The longest that one answer may become, where `usual` is what it is without a bound. Some servers count thinking
    /// within the bound, others on top of it.
    pub(crate) fn longest_answer(&self, usual: impl FnOnce() -> u64) -> u64 {
        if !self.call.has_answer() {
            return 0;
        }
        let bound = match self.max_output {
            Some(bound) if !self.drops_bounds => bound,
            bound => usual().max(bound.unwrap_or(0)),
        };
        let bound = bound.max(self.min_output).max(self.other_bound);
        // It may be larger than the bound nevertheless, where it is for all answers between calls of tools.
        if self.call.protocol().bounds_thinking() && self.thinking < bound {
            return bound;
        }
        bound.saturating_add(self.thinking)
    }

    /// Whether the answer may be sound: unless the client states that it wants text alone. Some models speak by default.
    pub(crate) fn may_speak(&self) -> bool {
        let is_text = |value: Value<'_>| {
            value.is_array() && value.elements().all(|it| it.string().as_deref() == Some("text"))
        };
        let mut stated =
            self.whole.members().filter(|it| is_alike(MODALITIES, &it.name)).peekable();
        stated.peek().is_none() || !stated.all(|it| it.name == MODALITIES && is_text(it.value))
    }
}

/// The place of a field, if it is one of these. A name that some servers take for one of them is refused: servers
/// that read it and servers that do not would see different requests.
pub(super) fn place_of<'p, T>(
    name: &str,
    names: &[&'static str],
    places: &'p mut [T],
) -> Result<Option<(&'static str, &'p mut T)>, Wrong> {
    let Some((known, place)) = names.iter().zip(places).find(|(known, _)| is_alike(known, name))
    else {
        return Ok(None);
    };
    if *known != name {
        let shown: String = name.chars().take(100).collect();
        return Err(wrong(
            known,
            format!("{shown:?} can be taken for {known:?}; write it as that"),
        ));
    }
    Ok(Some((known, place)))
}

/// A template is a program: a short one can write a long prompt.
fn refuse_template(name: &'static str, value: Value<'_>) -> Result<(), Wrong> {
    const TEMPLATE: &str = "chat_template";
    let is_set = |value: Option<Value<'_>>| value.is_some_and(|it| !it.is_null());
    let has_template = match name {
        TEMPLATE => is_set(Some(value)),
        "chat_template_kwargs" => value.members().any(|it| is_alike(TEMPLATE, &it.name)),
        _ => false,
    };
    if has_template {
        let message =
            "\"chat_template\" is not accepted: the length of what it writes is not known here";
        return Err(wrong(name, message));
    }
    Ok(())
}

pub(super) fn once(name: &'static str, is_again: bool) -> Result<(), Wrong> {
    if is_again { Err(wrong(name, format!("{name:?} is given twice"))) } else { Ok(()) }
}

/// Whether the client itself asks for the usage of a stream, where it says so.
fn include_usage(options: Value<'_>) -> Result<Option<bool>, Wrong> {
    let mut found: [Option<Value<'_>>; 1] = [None];
    for member in options.members() {
        if let Some((name, place)) = place_of(&member.name, &["include_usage"], &mut found)? {
            once(name, place.replace(member.value).is_some())?;
        }
    }
    Ok(found.into_iter().flatten().next().and_then(Value::boolean))
}

pub(super) fn positive(
    param: &'static str,
    value: Option<Value<'_>>,
) -> Result<Option<u64>, Wrong> {
    let Some(value) = value else { return Ok(None) };
    match value.whole() {
        Some(number @ 1..) => Ok(Some(number)),
        _ => Err(wrong(param, format!("{param:?} must be a whole number of at least 1"))),
    }
}

pub(super) fn name<'a>(
    param: &'static str,
    value: Option<Value<'a>>,
) -> Result<Option<Cow<'a, str>>, Wrong> {
    let Some(value) = value else { return Ok(None) };
    match value.string() {
        // Some servers send a request to every model of a list, or to those that a stored preset names.
        Some(text)
            if param == "model"
                && (text.contains(|it: char| it == ',' || it.is_control())
                    || text.contains("@preset/")) =>
        {
            Err(wrong(param, "\"model\" must be the name of one model"))
        }
        Some(text) if !text.is_empty() && text.len() <= MAX_NAME_BYTES => Ok(Some(text)),
        // A user of no name is none.
        Some(text) if text.is_empty() && param == "user" => Ok(None),
        _ => Err(wrong(param, format!("{param:?} must be a text of 1 to {MAX_NAME_BYTES} bytes"))),
    }
}

#[cfg(test)]
mod tests;
