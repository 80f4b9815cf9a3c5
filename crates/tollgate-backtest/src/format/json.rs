//! One JSON object in each line. Fields in objects are named by a path with dots.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use tollgate_policy::Known;

use crate::mapping::{ATTRIBUTES, Fields, Mapping, Targets, put_all};
use crate::record::{Malformed, Record};

/// Attributes of an `attributes` object come after those that are mapped.
const ATTRIBUTE_RANK: u8 = 35;

pub(crate) struct Json {
    fields: Fields,
    path: String,
}

pub(super) fn looks_like(line: &str) -> bool {
    line.trim_start().starts_with('{') && line.trim_end().ends_with('}')
}

impl Json {
    pub(super) fn new(mapping: &Mapping) -> Self {
        Self { fields: mapping.fields(), path: String::new() }
    }

    pub(super) fn parse(&mut self, line: &str, record: &mut Record) -> Result<(), Malformed> {
        self.path.clear();
        let mut problem = None;
        let mut reader = serde_json::Deserializer::from_str(line);
        let object = Object {
            fields: &self.fields,
            path: &mut self.path,
            record,
            problem: &mut problem,
            is_attributes: false,
        };
        let read = reader.deserialize_map(object).and_then(|()| reader.end());
        if let Some(problem) = problem {
            return Err(problem);
        }
        read.map_err(|_| Malformed::Form("it is no JSON object"))
    }
}

/// What an object says.
struct Object<'o> {
    fields: &'o Fields,
    /// The path of the object, with a dot at its end unless it is the outermost.
    path: &'o mut String,
    record: &'o mut Record,
    problem: &'o mut Option<Malformed>,
    /// Whether all fields are further attributes.
    is_attributes: bool,
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let length = self.path.len();
        while map.next_key_seed(Key(&mut *self.path))?.is_some() {
            let name = self.path.get(length..).unwrap_or_default();
            let place = if self.is_attributes {
                Place::Attribute(name.to_owned())
            } else {
                let path = self.path.as_str();
                let targets = self.fields.targets.get(path);
                let is_prefix = self.fields.prefixes.contains(path);
                match (targets, is_prefix) {
                    (None, false) => Place::Nowhere,
                    (targets, _) => Place::Mapped(targets),
                }
            };
            if matches!(place, Place::Nowhere) {
                map.next_value::<IgnoredAny>()?;
            } else {
                map.next_value_seed(Value {
                    fields: self.fields,
                    path: &mut *self.path,
                    record: &mut *self.record,
                    problem: &mut *self.problem,
                    place,
                })?;
            }
            self.path.truncate(length);
        }
        Ok(())
    }
}

/// Where a value goes.
enum Place<'o> {
    Nowhere,
    Mapped(Option<&'o Targets>),
    Attribute(String),
}

/// Appends a key to a path.
struct Key<'o>(&'o mut String);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<(), E> {
        self.0.push_str(key);
        Ok(())
    }
}

/// One value on its way to the record.
struct Value<'o> {
    fields: &'o Fields,
    path: &'o mut String,
    record: &'o mut Record,
    problem: &'o mut Option<Malformed>,
    place: Place<'o>,
}

impl Value<'_> {
    fn put<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        let put = match &self.place {
            Place::Mapped(Some(targets)) => put_all(targets, value, self.record),
            Place::Attribute(name) => {
                // As in a call of the API: what has a name of its own is no further attribute.
                if Known::from_name(name).is_none() {
                    self.record.set_named(name, value, ATTRIBUTE_RANK);
                }
                Ok(())
            }
            Place::Mapped(None) | Place::Nowhere => Ok(()),
        };
        put.map_err(|problem| {
            *self.problem = Some(problem);
            E::custom("malformed")
        })
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        self.put(value)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.put(&value.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.put(&value.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        // A time in seconds has more digits than a double holds: the last ones say nothing.
        if value.abs() >= 1e9 {
            self.put(&format!("{value:.6}"))
        } else {
            self.put(&format!("{value:?}"))
        }
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.put(if value { "true" } else { "false" })
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    /// Of a list, such as Caddy's headers, the first value counts.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        if list.next_element_seed(self)?.is_some() {
            while list.next_element::<IgnoredAny>()?.is_some() {}
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        if matches!(self.place, Place::Attribute(_)) {
            return Err(A::Error::custom("an attribute is an object"));
        }
        let is_attributes = self.path == ATTRIBUTES;
        self.path.push('.');
        let Self { fields, path, record, problem, .. } = self;
        Object { fields, path, record, problem, is_attributes }.visit_map(map)
    }
}
