//! The tables of request shapes: what clients of model APIs send, and what it is charged.

use serde::Deserialize;
use serde_json::Value;

/// The tables, of OpenAI-compatible APIs and of Anthropic's. Adding a shape is adding a row.
const OPENAI: &str = include_str!("../shapes.yaml");
const ANTHROPIC: &str = include_str!("../shapes-anthropic.yaml");

/// A shape of a request.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// The API and what is special about it.
    pub name: String,
    /// The path with its query.
    pub path: String,
    body: Option<Value>,
    raw: Option<String>,
    /// The model that it is decided on.
    pub model: Option<String>,
    /// Tokens that are reserved with `estimate: default`.
    #[serde(default)]
    pub charge: u64,
    /// Tokens that are reserved with `estimate: upper_bound`.
    #[serde(default)]
    pub bound: u64,
    /// Tokens that a model would read and write if it read all fields, where the prompt is in fields that the API does not
    /// have.
    pub tokens: Option<u64>,
    /// How it is refused, if it is.
    pub refused: Option<RefusedShape>,
}

/// How a shape is refused.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedShape {
    /// The status of the answer.
    pub status: u16,
    /// `error.code` of the answer, or `error.type` of Anthropic's.
    pub code: String,
    /// `error.param` of the answer; Anthropic's have none, and this is the field that its message is about.
    pub param: Option<String>,
}

impl Shape {
    /// Every shape of OpenAI-compatible APIs.
    pub fn all() -> Vec<Self> {
        serde_saphyr::from_str(OPENAI).unwrap_or_else(|error| panic!("shapes.yaml: {error}"))
    }

    /// Every shape of Anthropic's API.
    pub fn anthropic() -> Vec<Self> {
        let rows = serde_saphyr::from_str(ANTHROPIC);
        rows.unwrap_or_else(|error| panic!("shapes-anthropic.yaml: {error}"))
    }

    /// The body as it is sent.
    pub fn text(&self) -> String {
        if let Some(raw) = &self.raw {
            return raw.clone();
        }
        expanded(&self.body.clone().unwrap_or_default().to_string())
    }
}

/// A text with `{{40}}` as 40 words, and `{{b40}}` as 40 characters of base64.
fn expanded(text: &str) -> String {
    const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (count, after) = after.split_once("}}").expect("}} after {{");
        out.push_str(before);
        let bytes = count.strip_prefix('b').map(|count| count.parse::<usize>().expect("a number"));
        if let Some(count) = bytes {
            out.extend((0..count).map(|place| char::from(BASE64[place * place * 31 % 61])));
        } else {
            out.push_str(vec!["word"; count.parse().expect("a number")].join(" ").as_str());
        }
        rest = after;
    }
    out + rest
}
