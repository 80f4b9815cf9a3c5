//! What a verified token says: whether it holds now and here, and for whom.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use tollgate_core::{Nanos, SECOND};

use super::{Identity, MAX_VALUE_BYTES};

/// Times beyond this (the year 33658) are nonsense.
const MAX_TIME_SECONDS: f64 = 1e12;

/// Which claims say who it is. A name may be a path with dots into nested claims; a claim whose own name is the
/// whole path comes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimNames {
    /// The user: `sub`.
    pub user_id: Option<String>,
    /// The tenant: `tenant_id`.
    pub tenant_id: Option<String>,
    /// The plan: `plan`.
    pub tier: Option<String>,
    /// INTERNAL, PARTNER, EXTERNAL or the like: none.
    pub client_type: Option<String>,
    /// Further attributes: name, claim.
    pub attributes: Vec<(String, String)>,
}

impl Default for ClaimNames {
    fn default() -> Self {
        Self {
            user_id: Some("sub".to_owned()),
            tenant_id: Some("tenant_id".to_owned()),
            tier: Some("plan".to_owned()),
            client_type: None,
            attributes: Vec::new(),
        }
    }
}

/// What claims must say for a token to hold.
#[derive(Debug)]
pub(super) struct ClaimChecks {
    pub(super) requires_expiry: bool,
    pub(super) leeway: Duration,
    pub(super) audiences: Vec<String>,
    pub(super) issuers: Vec<String>,
}

impl ClaimChecks {
    pub(super) fn check(&self, claims: &Claims, now: Nanos) -> Result<(), &'static str> {
        let (now, leeway) = (now / SECOND, self.leeway.as_secs());
        match claims.time("exp")? {
            Some(expiry) if now >= expiry.saturating_add(leeway) => {
                return Err("the token has expired");
            }
            None if self.requires_expiry => return Err("the token has no expiry"),
            _ => {}
        }
        let latest = now.saturating_add(leeway);
        if claims.time("nbf")?.is_some_and(|begin| begin > latest) {
            return Err("the token does not hold yet");
        }
        if claims.time("iat")?.is_some_and(|issued| issued > latest) {
            return Err("the token was issued in the future");
        }
        self.check_issuer(claims)?;
        self.check_audience(claims)
    }

    fn check_issuer(&self, claims: &Claims) -> Result<(), &'static str> {
        if self.issuers.is_empty() {
            return Ok(());
        }
        match claims.0.get("iss") {
            Some(Value::String(issuer)) if self.issuers.contains(issuer) => Ok(()),
            Some(_) => Err("the token is of another issuer"),
            None => Err("the token names no issuer"),
        }
    }

    fn check_audience(&self, claims: &Claims) -> Result<(), &'static str> {
        let ours = |value: &Value| {
            value.as_str().is_some_and(|name| self.audiences.iter().any(|ours| ours == name))
        };
        match claims.0.get("aud") {
            None if self.audiences.is_empty() => Ok(()),
            None => Err("the token names no audience"),
            // RFC 7519 section 4.1.3: who is not among them must not take it.
            Some(_) if self.audiences.is_empty() => {
                Err("the token is for an audience, and none is configured here")
            }
            Some(Value::Array(names)) if names.iter().any(ours) => Ok(()),
            Some(name) if ours(name) => Ok(()),
            Some(_) => Err("the token is for another audience"),
        }
    }
}

impl ClaimNames {
    /// Who it is. A claim that is there must be usable: a caller must not become nobody by having an odd name.
    pub(super) fn identity(&self, claims: &Claims) -> Result<Identity, &'static str> {
        let read = |name: &Option<String>| match name {
            Some(name) => claims.text(name),
            None => Ok(None),
        };
        let mut extra = Vec::new();
        for (name, claim) in &self.attributes {
            if let Some(value) = claims.text(claim)? {
                extra.push((name.clone(), value));
            }
        }
        Ok(Identity {
            user_id: read(&self.user_id)?,
            tenant_id: read(&self.tenant_id)?,
            tier: read(&self.tier)?,
            client_type: read(&self.client_type)?,
            extra,
            ..Identity::default()
        })
    }
}

/// A token's claims. No name occurs twice: readers would differ on which one counts.
#[derive(Debug, Default)]
pub(super) struct Claims(pub(super) Map<String, Value>);

impl Claims {
    /// A time in whole seconds.
    fn time(&self, name: &str) -> Result<Option<u64>, &'static str> {
        const WRONG: &str = "a time of the token is not a number of seconds";
        match self.0.get(name) {
            None => Ok(None),
            Some(Value::Number(number)) => match (number.as_u64(), number.as_f64()) {
                (Some(whole), _) => Ok(Some(whole)),
                #[expect(clippy::cast_sign_loss, reason = "checked to be in range")]
                (None, Some(part)) if (0.0..=MAX_TIME_SECONDS).contains(&part) => {
                    Ok(Some(part as u64))
                }
                _ => Err(WRONG),
            },
            Some(_) => Err(WRONG),
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<&Value> {
        if let Some(value) = self.0.get(name) {
            return Some(value);
        }
        let mut steps = name.split('.');
        let first = self.0.get(steps.next()?)?;
        steps.try_fold(first, |value, step| value.as_object()?.get(step))
    }

    fn text(&self, name: &str) -> Result<Option<String>, &'static str> {
        let text = match self.find(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) if !number.is_f64() => number.to_string(),
            Some(Value::Bool(flag)) => flag.to_string(),
            Some(_) => return Err("a claim of the token is neither text nor a whole number"),
        };
        if text.is_empty() || text.len() > MAX_VALUE_BYTES {
            return Err("a claim of the token is empty or longer than 256 bytes");
        }
        Ok(Some(text))
    }
}

impl<'de> Deserialize<'de> for Claims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Strict::deserialize(deserializer)?.0 {
            Value::Object(claims) => Ok(Self(claims)),
            _ => Err(D::Error::custom("claims are an object")),
        }
    }
}

/// JSON whose objects name nothing twice, at any depth.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without repeated names")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Value, E> {
        let number = Number::from_f64(number).ok_or_else(|| E::custom("not a finite number"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((name, Strict(value))) = entries.next_entry::<String, Strict>()? {
            if map.insert(name, value).is_some() {
                return Err(A::Error::custom("a name occurs twice"));
            }
        }
        Ok(Value::Object(map))
    }
}
