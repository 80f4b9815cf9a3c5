//! The attributes of a request: their names in JSON, their numbers in gRPC, their names for Envoy.

use tollgate_policy::Known;

use crate::plan::PlanError;

/// The largest number that JSON carries exactly.
const MAX_NUMBER: u64 = (1 << 53) - 1;

/// What comes before the name of a further attribute.
const FURTHER: &str = "attributes.";

/// An attribute that can hold the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    /// `user-0042`.
    UserId,
    /// `tenant-0042`.
    TenantId,
    /// `key-0042`.
    ApiKey,
    /// An IPv4 address.
    Ip,
}

impl Attribute {
    /// All, with their names.
    pub const ALL: [(&'static str, Self); 4] = [
        ("userId", Self::UserId),
        ("tenantId", Self::TenantId),
        ("apiKey", Self::ApiKey),
        ("ip", Self::Ip),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, attribute)| *attribute == self).map_or("", |(name, _)| name)
    }

    /// What comes before the key's digits.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::UserId => "user-",
            Self::TenantId => "tenant-",
            Self::ApiKey => "key-",
            Self::Ip => "",
        }
    }

    pub(crate) const fn known(self) -> RequestField {
        RequestField::text(match self {
            Self::UserId => Known::UserId,
            Self::TenantId => Known::TenantId,
            Self::ApiKey => Known::ApiKey,
            Self::Ip => Known::Ip,
        })
    }
}

/// A field that requests have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestField {
    /// In JSON.
    pub(crate) name: &'static str,
    /// In gRPC.
    pub(crate) number: u32,
    /// As an entry of Envoy's descriptors.
    pub(crate) entry: &'static str,
    is_number: bool,
}

impl RequestField {
    const COST: Self = Self { name: "cost", number: 12, entry: "cost", is_number: true };
    const TOKENS: Self = Self { name: "tokens", number: 13, entry: "tokens", is_number: true };

    const fn text(known: Known) -> Self {
        let entry = match known {
            Known::Ip => "remote_address",
            _ => known.name(),
        };
        Self { name: known.field(), number: known.number(), entry, is_number: false }
    }

    fn all() -> impl Iterator<Item = Self> {
        Known::ALL.into_iter().map(Self::text).chain([Self::COST, Self::TOKENS])
    }
}

/// The number of the map of further attributes in gRPC.
pub(crate) const ATTRIBUTES_NUMBER: u32 = 15;

/// What all requests of a run have in common.
#[derive(Debug, Clone)]
pub struct Field {
    pub(crate) value: Value,
}

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Text(RequestField, String),
    Number(RequestField, u64),
    Further(String, String),
}

impl Field {
    /// A field with its value: `modelId` and `gpt4`, `cost` and `3`, `attributes.region` and `eu`.
    pub fn new(name: &str, value: &str) -> Result<Self, PlanError> {
        if let Some(further) = name.strip_prefix(FURTHER).filter(|further| !further.is_empty()) {
            return Ok(Self { value: Value::Further(further.to_owned(), value.to_owned()) });
        }
        let known = RequestField::all().find(|known| known.name == name).ok_or_else(|| {
            let names: Vec<&str> = RequestField::all().map(|known| known.name).collect();
            let names = names.join(", ");
            PlanError::Field(format!("no field {name:?}; there are {names} and {FURTHER}NAME"))
        })?;
        if !known.is_number {
            return Ok(Self { value: Value::Text(known, value.to_owned()) });
        }
        match value.parse() {
            Ok(number) if number <= MAX_NUMBER => Ok(Self { value: Value::Number(known, number) }),
            _ => Err(PlanError::Field(format!("{name} must be a number up to {MAX_NUMBER}"))),
        }
    }

    /// Its name as given.
    pub(crate) fn name(&self) -> String {
        match &self.value {
            Value::Text(known, _) | Value::Number(known, _) => known.name.to_owned(),
            Value::Further(name, _) => format!("{FURTHER}{name}"),
        }
    }

    /// With its value, unless that is a secret.
    pub(crate) fn shown(&self) -> String {
        match &self.value {
            Value::Text(known, _) if known.name == "apiKey" => "apiKey=…".to_owned(),
            Value::Text(_, value) | Value::Further(_, value) => format!("{}={value}", self.name()),
            Value::Number(_, value) => format!("{}={value}", self.name()),
        }
    }
}
