//! The API that clients of a route speak.
//!
//! What differs from API to API is asked of it here, and is in a folder for each: where its calls are, how a body is
//! read and estimated, how answers state what they used, how models are listed, and how its errors look.

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue};
use tollgate_policy::prices::Usage;
use tollgate_tower::{Dialect, Format};

use super::ask::{Ask, Call, Wrong, name, positive};
use super::choosers::check_tools;
use super::json::{Member, Value};
use super::sse::Verdict;
use super::text::TextSink;
use super::usage::{self, Doubt, Plausible, StreamReport, View};
use super::{anthropic, openai};

/// The API that clients of a route speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// Chat completions, completions, embeddings and responses.
    #[default]
    OpenAi,
    /// Messages.
    Anthropic,
}

/// Reads one event of a stream.
pub(super) type ReadEvent = fn(&View<'_>, &str, &mut StreamReport, &mut TextSink) -> Verdict;

/// Where the calls of an API are.
pub(super) struct ApiPaths {
    /// What the API may be mounted under.
    pub(super) bases: &'static [&'static str],
    /// What stands before a model's name in a path.
    pub(super) model_prefixes: &'static [&'static str],
    /// Every call by its last segments. The longer ones come first: one is the end of another.
    pub(super) calls: &'static [(&'static str, Call)],
    /// How paths end that make a model work, whatever API a route is for: an upstream may serve several.
    pub(super) working: &'static [&'static str],
    /// Segments of paths of work that a model does later, or over another connection: no answer states what it used.
    pub(super) deferred: &'static [&'static str],
    /// The calls, in words.
    pub(super) described: &'static str,
}

impl Protocol {
    const ALL: [Self; 2] = [Self::OpenAi, Self::Anthropic];

    /// Whose words headers and refusals are in.
    pub(crate) const fn dialect(self) -> Dialect {
        match self {
            Self::OpenAi => Dialect::OpenAi,
            Self::Anthropic => Dialect::Anthropic,
        }
    }

    /// The format of its errors.
    pub(crate) const fn format(self) -> Format {
        Format::Model(self.dialect())
    }

    pub(super) const fn paths(self) -> &'static ApiPaths {
        match self {
            Self::OpenAi => &openai::PATHS,
            Self::Anthropic => &anthropic::PATHS,
        }
    }

    /// Whether a path ends like a call of this API, or of another that an upstream may serve next to it. Where it is no
    /// call here, it must not reach an upstream uncounted.
    pub(super) fn looks_like_call(self, path: &str) -> bool {
        let path = path.trim_end_matches('/').to_ascii_lowercase();
        let is_own = self.paths().calls.iter().any(|(end, _)| path.ends_with(end));
        let works = |api: Self| {
            let ApiPaths { working, deferred, .. } = api.paths();
            working.iter().any(|end| path.ends_with(end))
                || path.split('/').any(|segment| deferred.contains(&segment))
        };
        is_own || Self::ALL.into_iter().any(works)
    }

    /// The query of a call or of a list of models, if all of it is known: servers read models and much else out of queries.
    pub(super) fn check_query(
        self,
        query: Option<&str>,
        is_list: bool,
    ) -> Result<Option<&str>, String> {
        let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(None) };
        match self {
            Self::OpenAi => openai::check_query(query),
            Self::Anthropic => anthropic::check_query(query, is_list),
        }
    }

    /// How a client shows its key.
    pub(super) const fn key_hint(self) -> &'static str {
        match self {
            Self::OpenAi => {
                "You didn't provide an API key: send yours as `Authorization: Bearer …`."
            }
            Self::Anthropic => "You didn't provide an API key: send yours as `x-api-key`.",
        }
    }

    /// Puts the key of a pool, a bearer's, in the place of the client's own.
    pub(crate) fn put_key(self, headers: &mut HeaderMap, bearer: HeaderValue) {
        match self {
            Self::OpenAi => _ = headers.insert(http::header::AUTHORIZATION, bearer),
            Self::Anthropic => anthropic::put_key(headers, &bearer),
        }
    }

    /// A model, as its list describes it.
    pub(super) fn model(self, name: &str) -> serde_json::Value {
        match self {
            Self::OpenAi => openai::model(name),
            Self::Anthropic => anthropic::model(name),
        }
    }

    /// The list of models.
    pub(super) fn list<'n>(self, names: impl Iterator<Item = &'n str>) -> serde_json::Value {
        let models: Vec<_> = names.map(|name| self.model(name)).collect();
        match self {
            Self::OpenAi => openai::list(&models),
            Self::Anthropic => anthropic::list(&models),
        }
    }

    /// The event by which a stream is ended here.
    pub(super) fn stop_event(self, message: &str) -> String {
        match self {
            Self::OpenAi => openai::stop_event(message),
            Self::Anthropic => anthropic::stop_event(message),
        }
    }

    /// Checks what is special about a body. The bound `max_tokens`, and the user that the client says it acts for, given
    /// as `user` by most.
    pub(super) fn read<'a>(
        self,
        call: Call,
        whole: Value<'a>,
        max_tokens: Option<Value<'a>>,
        user: Option<Value<'a>>,
    ) -> Result<(Option<u64>, Option<Cow<'a, str>>), Wrong> {
        match self {
            Self::OpenAi => {
                check_tools(whole)?;
                Ok((positive("max_tokens", max_tokens)?, name("user", user)?))
            }
            Self::Anthropic => {
                anthropic::ask::check(whole)?;
                Ok((anthropic::ask::bound(call, max_tokens)?, anthropic::ask::end_user(whole)?))
            }
        }
    }

    /// Whether a budget for thinking is part of the bound of an answer. Servers of the OpenAI API differ in it.
    pub(super) fn bounds_thinking(self) -> bool {
        self == Self::Anthropic
    }

    /// What counts its prompts, where that is not the usual way.
    pub(super) const fn prompt(self) -> Option<fn(&Ask<'_>, &mut TextSink)> {
        match self {
            Self::OpenAi => None,
            Self::Anthropic => Some(anthropic::prompt::prompt),
        }
    }

    /// Whether a member of this name has a meaning of its own in this API: [`Self::brings`] alone says what it brings.
    pub(super) fn defines(self, name: &str) -> bool {
        match self {
            Self::OpenAi => false,
            Self::Anthropic => anthropic::ask::BRINGING.contains(&name),
        }
    }

    /// The field by which such a member makes the upstream bring something along that is not in the request, if it does.
    pub(super) fn brings(self, member: &Member<'_>) -> Option<&'static str> {
        match self {
            Self::OpenAi => None,
            Self::Anthropic => anthropic::ask::brings(member),
        }
    }

    /// What reads an event of a stream, where that is not the usual way.
    pub(super) const fn event(self) -> Option<ReadEvent> {
        match self {
            Self::OpenAi => None,
            Self::Anthropic => Some(anthropic::usage::event),
        }
    }

    /// Whether every text inside of a plain answer may be a model's. In messages, calls of tools are objects with any names.
    pub(super) fn has_nameless_words(self) -> bool {
        self == Self::Anthropic
    }

    /// What a `usage` states. None where it states nothing.
    pub(super) fn usage(
        self,
        value: Value<'_>,
        plausible: Plausible,
    ) -> Option<Result<Usage, Doubt>> {
        match self {
            Self::OpenAi => usage::read(value, plausible),
            Self::Anthropic => anthropic::usage::read(value, plausible),
        }
    }
}
