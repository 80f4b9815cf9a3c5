//! The body of a request to decide. Its fields are the known attributes of [`Known`] and what is listed here.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tollgate_engine::{MAX_ATTRIBUTES, MAX_COST, MAX_VALUE_BYTES};
use tollgate_policy::{Known, MAX_PATH_BYTES};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::amounts_body::{AmountsBody, MoneyBody, UsageBody};
use super::wire::Pairs;

/// A request to decide. Every field is optional; rules that need an absent one do not apply.
#[derive(Debug, Default)]
pub(crate) struct AllowBody<'a> {
    /// The values of the known attributes, by [`Known`].
    known: [Option<Cow<'a, str>>; Known::COUNT],
    pub(crate) amounts: AmountsBody<'a>,
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) more: Option<bool>,
    pub(crate) request_id: Option<Cow<'a, str>>,
    pub(crate) attributes: Pairs<'a>,
}

impl<'a> AllowBody<'a> {
    /// The value of an attribute, as it was given.
    #[inline]
    pub(crate) fn get(&self, known: Known) -> Option<&str> {
        self.known.get(known as usize)?.as_deref()
    }

    /// Sets an attribute and returns what it was before.
    #[inline]
    pub(crate) fn set(
        &mut self,
        known: Known,
        value: Option<Cow<'a, str>>,
    ) -> Option<Cow<'a, str>> {
        let place = self.known.get_mut(known as usize)?;
        std::mem::replace(place, value)
    }
}

/// A field of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Attribute(Known),
    Cost,
    Tokens,
    InputTokens,
    OutputTokens,
    CachedTokens,
    Money,
    Usage,
    TtlMs,
    More,
    RequestId,
    Attributes,
}

impl Field {
    /// The bit of this field among those that were seen.
    const fn bit(self) -> u64 {
        1 << match self {
            Self::Attribute(known) => known as usize,
            Self::Cost => Known::COUNT,
            Self::Tokens => Known::COUNT + 1,
            Self::RequestId => Known::COUNT + 2,
            Self::Attributes => Known::COUNT + 3,
            Self::TtlMs => Known::COUNT + 4,
            Self::More => Known::COUNT + 5,
            Self::InputTokens => Known::COUNT + 6,
            Self::OutputTokens => Known::COUNT + 7,
            Self::CachedTokens => Known::COUNT + 8,
            Self::Money => Known::COUNT + 9,
            Self::Usage => Known::COUNT + 10,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Attribute(known) => known.field(),
            Self::Cost => "cost",
            Self::Tokens => "tokens",
            Self::RequestId => "requestId",
            Self::Attributes => "attributes",
            Self::TtlMs => "ttlMs",
            Self::More => "more",
            Self::InputTokens => "inputTokens",
            Self::OutputTokens => "outputTokens",
            Self::CachedTokens => "cachedTokens",
            Self::Money => "money",
            Self::Usage => "usage",
        }
    }

    #[inline]
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "cost" => Self::Cost,
            "tokens" => Self::Tokens,
            "ttlMs" => Self::TtlMs,
            "more" => Self::More,
            "inputTokens" => Self::InputTokens,
            "outputTokens" => Self::OutputTokens,
            "cachedTokens" => Self::CachedTokens,
            "money" => Self::Money,
            "usage" => Self::Usage,
            "requestId" => Self::RequestId,
            "attributes" => Self::Attributes,
            _ => Self::Attribute(Known::from_field(name)?),
        })
    }
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldVisitor;

        impl Visitor<'_> for FieldVisitor {
            type Value = Field;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a field")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Field, E> {
                Field::from_name(name).ok_or_else(|| E::unknown_field(name, &[]))
            }
        }
        deserializer.deserialize_identifier(FieldVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for AllowBody<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BodyVisitor;

        impl<'de> Visitor<'de> for BodyVisitor {
            type Value = AllowBody<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut body = AllowBody::default();
                let mut seen = 0_u64;
                while let Some(field) = map.next_key::<Field>()? {
                    if seen & field.bit() != 0 {
                        return Err(A::Error::duplicate_field(field.name()));
                    }
                    seen |= field.bit();
                    match field {
                        Field::Attribute(known) => _ = body.set(known, text(&mut map)?),
                        Field::RequestId => body.request_id = text(&mut map)?,
                        Field::Cost => body.amounts.cost = map.next_value()?,
                        Field::Tokens => body.amounts.tokens = map.next_value()?,
                        Field::InputTokens => body.amounts.input_tokens = map.next_value()?,
                        Field::OutputTokens => body.amounts.output_tokens = map.next_value()?,
                        Field::CachedTokens => body.amounts.cached_tokens = map.next_value()?,
                        Field::Money => body.amounts.money = map.next_value()?,
                        Field::Usage => body.amounts.usage = map.next_value()?,
                        Field::TtlMs => body.ttl_ms = map.next_value()?,
                        Field::More => body.more = map.next_value()?,
                        Field::Attributes => body.attributes = map.next_value()?,
                    }
                }
                Ok(body)
            }
        }
        deserializer.deserialize_map(BodyVisitor)
    }
}

/// A text, borrowed from the body where it has no escape.
fn text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<Cow<'de, str>>, A::Error> {
    /// serde copies a text that may be absent, unless the type inside says that it is borrowed.
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

    Ok(map.next_value::<Option<Text<'de>>>()?.map(|Text(text)| text))
}

impl PartialSchema for AllowBody<'_> {
    fn schema() -> RefOr<Schema> {
        let number = |help: &str, minimum: u64, maximum: u64| {
            json!({ "type": ["integer", "null"], "format": "int64", "description": help,
                    "minimum": minimum, "maximum": maximum })
        };
        let mut properties: serde_json::Map<String, Value> = Known::ALL
            .into_iter()
            .map(|known| (known.field().to_owned(), attribute_schema(known)))
            .collect();
        let rest = [
            (
                "cost",
                number(
                    "What it costs on rules of unit requests or cost; 1, or what the rule says, if absent.",
                    0,
                    MAX_COST,
                ),
            ),
            ("tokens", number("What it costs on rules of unit tokens; 0 if absent.", 0, MAX_COST)),
            ("inputTokens", number("What it costs on rules of unit input_tokens.", 0, MAX_COST)),
            ("outputTokens", number("What it costs on rules of unit output_tokens.", 0, MAX_COST)),
            ("cachedTokens", number("What it costs on rules of unit cached_tokens.", 0, MAX_COST)),
            ("money", schema_of::<MoneyBody<'_>>()),
            ("usage", schema_of::<UsageBody>()),
            (
                "ttlMs",
                number(
                    "For /rate-limit/reserve alone: how long the reservation is held; a minute if absent.",
                    1,
                    86_400_000,
                ),
            ),
            (
                "more",
                json!({ "type": ["boolean", "null"], "description":
                    "For /rate-limit/reserve alone: more tokens for a request that was admitted before. Only limits of \
                     unit tokens are charged; no request is counted, no slot is taken, nothing waits." }),
            ),
            (
                "requestId",
                json!({ "type": ["string", "null"], "maxLength": MAX_VALUE_BYTES,
                        "description": "Makes the call idempotent for 60 s." }),
            ),
            (
                "attributes",
                json!({ "type": ["object", "null"], "additionalProperties": { "type": "string" },
                        "description": format!("Any further attributes, at most {MAX_ATTRIBUTES}.") }),
            ),
        ];
        properties.extend(rest.map(|(name, schema)| (name.to_owned(), schema)));
        let schema = json!({
            "type": "object",
            "description": "A request to decide. Every field is optional; rules that need an absent one do not apply.",
            "properties": properties,
            "additionalProperties": false,
        });
        serde_json::from_value(schema).map(RefOr::T).unwrap_or_default()
    }
}

impl ToSchema for AllowBody<'_> {}

fn schema_of<T: PartialSchema>() -> Value {
    serde_json::to_value(T::schema()).unwrap_or_default()
}

fn attribute_schema(known: Known) -> Value {
    let max_length = match known {
        Known::Endpoint => MAX_PATH_BYTES,
        _ => MAX_VALUE_BYTES,
    };
    let example = match known {
        Known::UserId => "user-1",
        Known::ModelId => "gpt4",
        Known::ClientType => "EXTERNAL",
        Known::Endpoint => "/api/items",
        Known::Method => "GET",
        Known::Ip => "203.0.113.9",
        _ => "",
    };
    let examples: Vec<&str> = Some(example).filter(|text| !text.is_empty()).into_iter().collect();
    json!({ "type": ["string", "null"], "description": known.help(), "maxLength": max_length,
            "examples": examples })
}
