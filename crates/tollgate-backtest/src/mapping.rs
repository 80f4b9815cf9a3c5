//! Which field of a log is which attribute of a request.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use tollgate_core::{Nanos, SECOND};
use tollgate_policy::Known;

use crate::error::OptionError;
use crate::extract::Extract;
use crate::record::{Malformed, Record};
use crate::time;

/// The most fields that can be mapped.
const MAX_MAPPED: usize = 64;

/// What is mapped by hand comes before anything else.
const STATED_RANK: u8 = u8::MAX;

/// The longest duration that is believed: a day.
const MAX_DURATION_SECONDS: f64 = 86_400.0;

/// What a field is.
#[derive(Debug, Clone)]
enum Role {
    Known(Known),
    /// An address that a proxy logged.
    PeerAddress,
    Extra(Box<str>),
    Time,
    Cost,
    Tokens,
    /// How long the request took, in so many nanoseconds each.
    Duration(f64),
    /// Seconds if it has a fraction (Caddy), else milliseconds (Envoy).
    MixedDuration,
    Status,
    RequestLine,
    Uri,
    Host,
    Extract(Arc<Extract>),
}

/// One use of a field's value.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    role: Role,
    /// Of several fields that give one attribute the one with the highest rank counts.
    rank: u8,
}

/// All uses of a field's value.
pub(crate) type Targets = SmallVec<[Target; 2]>;

/// Which field of a log is which attribute of a request.
#[derive(Debug, Clone, Default)]
pub struct Mapping {
    stated: Vec<(String, String)>,
    extracts: Vec<Arc<Extract>>,
}

impl Mapping {
    /// From texts such as `tenant=tenant_id`; on top of the fields that are known by name.
    pub fn new(maps: &[String], extracts: &[Extract]) -> Result<Self, OptionError> {
        let mut stated = Vec::new();
        for text in maps {
            let (field, attribute) = text.split_once('=').unwrap_or((text, ""));
            if field.is_empty() || attribute.is_empty() {
                return Err(OptionError(format!(
                    "{text:?} is no mapping; write FIELD=ATTRIBUTE, such as tenant=tenant_id or ts=time"
                )));
            }
            stated.push((field.to_owned(), attribute.to_owned()));
        }
        if stated.len() + extracts.len() > MAX_MAPPED {
            return Err(OptionError(format!("at most {MAX_MAPPED} fields can be mapped")));
        }
        Ok(Self { stated, extracts: extracts.iter().cloned().map(Arc::new).collect() })
    }

    /// What the field of this name is used for.
    pub(crate) fn targets(&self, field: &str) -> Targets {
        let mut targets = Targets::new();
        for (_, attribute) in self.stated.iter().filter(|(stated, _)| stated == field) {
            targets.push(Target { role: stated_role(attribute), rank: STATED_RANK });
        }
        if targets.is_empty()
            && let Some(target) = default_target(field)
        {
            targets.push(target);
        }
        let extracts = self.extracts.iter().filter(|extract| extract.field == field);
        targets.extend(
            extracts.map(|extract| Target {
                role: Role::Extract(Arc::clone(extract)),
                rank: STATED_RANK,
            }),
        );
        targets
    }

    /// Whether one of these fields is the time.
    pub(crate) fn has_time<'f>(&self, mut fields: impl Iterator<Item = &'f str>) -> bool {
        let is_time = |target: &Target| matches!(target.role, Role::Time);
        fields.any(|field| self.targets(field).iter().any(is_time))
    }

    /// All fields of a format that names its fields in every line.
    pub(crate) fn fields(&self) -> Fields {
        let stated = self.stated.iter().map(|(field, _)| field.as_str());
        let extracted = self.extracts.iter().map(|extract| extract.field.as_str());
        let known = Known::ALL.into_iter().flat_map(|known| [known.name(), known.field()]);
        let names = DEFAULTS.iter().map(|(name, ..)| *name).chain(known);
        let mut fields = Fields::default();
        for name in names.chain(stated).chain(extracted) {
            fields.targets.insert(name.to_owned(), self.targets(name));
            for (dot, _) in name.match_indices('.') {
                fields.prefixes.insert(name.get(..dot).unwrap_or_default().to_owned());
            }
        }
        fields.prefixes.insert(ATTRIBUTES.to_owned());
        fields
    }
}

/// The object whose fields all are further attributes.
pub(crate) const ATTRIBUTES: &str = "attributes";

/// The fields that matter, by their name; nested ones by a path with dots.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    pub(crate) targets: HashMap<String, Targets, foldhash::fast::RandomState>,
    /// Objects that hold some of them.
    pub(crate) prefixes: HashSet<String, foldhash::fast::RandomState>,
}

fn stated_role(attribute: &str) -> Role {
    match attribute {
        "time" => Role::Time,
        "cost" => Role::Cost,
        "tokens" => Role::Tokens,
        "duration" => Role::Duration(SECOND as f64),
        "ip" => Role::PeerAddress,
        "endpoint" => Role::Uri,
        "domain" => Role::Host,
        name => Known::from_name(name).map_or_else(|| Role::Extra(name.into()), Role::Known),
    }
}

/// How a default is written in the table.
#[derive(Clone, Copy)]
enum Usual {
    Known(Known),
    PeerAddress,
    Time,
    Cost,
    Tokens,
    Seconds,
    Nanos,
    MixedDuration,
    Status,
    RequestLine,
    Uri,
    Host,
}

/// Names that nginx, Apache, Envoy, Caddy, Traefik and AWS use, with their rank. `X-Forwarded-For` is
/// not among them: what a client claims is no identity, unless somebody maps it.
const DEFAULTS: &[(&str, Usual, u8)] = &[
    ("remote_addr", Usual::PeerAddress, 20),
    ("remote_ip", Usual::PeerAddress, 20),
    ("client_ip", Usual::PeerAddress, 30),
    ("client", Usual::PeerAddress, 10),
    ("clientip", Usual::PeerAddress, 20),
    ("downstream_remote_address", Usual::PeerAddress, 20),
    ("downstream_direct_remote_address", Usual::PeerAddress, 10),
    ("request.remote_ip", Usual::PeerAddress, 20),
    ("request.client_ip", Usual::PeerAddress, 30),
    ("ClientHost", Usual::PeerAddress, 20),
    ("ClientAddr", Usual::PeerAddress, 10),
    ("remote_user", Usual::Known(Known::UserId), 10),
    ("ClientUsername", Usual::Known(Known::UserId), 10),
    ("user", Usual::Known(Known::UserId), 10),
    ("tenant", Usual::Known(Known::TenantId), 10),
    ("request_method", Usual::Known(Known::Method), 20),
    ("RequestMethod", Usual::Known(Known::Method), 20),
    ("request.method", Usual::Known(Known::Method), 20),
    ("request", Usual::RequestLine, 10),
    ("request_uri", Usual::Uri, 30),
    ("uri", Usual::Uri, 20),
    ("path", Usual::Uri, 20),
    ("url", Usual::Uri, 20),
    ("x_envoy_origin_path", Usual::Uri, 30),
    ("request.uri", Usual::Uri, 20),
    ("RequestPath", Usual::Uri, 20),
    ("host", Usual::Host, 20),
    ("http_host", Usual::Host, 20),
    ("server_name", Usual::Host, 10),
    ("domain_name", Usual::Host, 20),
    ("authority", Usual::Host, 20),
    ("request.host", Usual::Host, 20),
    ("RequestHost", Usual::Host, 20),
    ("RequestAddr", Usual::Host, 10),
    ("StartUTC", Usual::Time, 60),
    ("StartLocal", Usual::Time, 50),
    ("request_creation_time", Usual::Time, 60),
    ("start_time", Usual::Time, 60),
    ("msec", Usual::Time, 45),
    ("time_iso8601", Usual::Time, 40),
    ("ts", Usual::Time, 35),
    ("timestamp", Usual::Time, 35),
    ("@timestamp", Usual::Time, 30),
    ("time_local", Usual::Time, 25),
    ("time", Usual::Time, 20),
    ("date", Usual::Time, 10),
    ("cost", Usual::Cost, 10),
    ("tokens", Usual::Tokens, 10),
    ("request_time", Usual::Seconds, 10),
    ("duration", Usual::MixedDuration, 10),
    ("Duration", Usual::Nanos, 10),
    ("status", Usual::Status, 10),
    ("response_code", Usual::Status, 10),
    ("elb_status_code", Usual::Status, 10),
    ("DownstreamStatus", Usual::Status, 10),
];

fn default_target(field: &str) -> Option<Target> {
    let named =
        || Known::ALL.into_iter().find(|known| [known.name(), known.field()].contains(&field));
    if let Some((_, role, rank)) = DEFAULTS.iter().find(|(name, ..)| *name == field) {
        let role = match *role {
            Usual::Known(known) => Role::Known(known),
            Usual::PeerAddress => Role::PeerAddress,
            Usual::Time => Role::Time,
            Usual::Cost => Role::Cost,
            Usual::Tokens => Role::Tokens,
            Usual::Seconds => Role::Duration(SECOND as f64),
            Usual::Nanos => Role::Duration(1.0),
            Usual::MixedDuration => Role::MixedDuration,
            Usual::Status => Role::Status,
            Usual::RequestLine => Role::RequestLine,
            Usual::Uri => Role::Uri,
            Usual::Host => Role::Host,
        };
        return Some(Target { role, rank: *rank });
    }
    // Tollgate's own names.
    named().map(|known| Target {
        role: if known == Known::Endpoint { Role::Uri } else { Role::Known(known) },
        rank: 40,
    })
}

impl Target {
    /// Puts a value to its place.
    pub(crate) fn put(&self, value: &str, record: &mut Record) -> Result<(), Malformed> {
        let rank = self.rank;
        match &self.role {
            Role::Known(Known::Ip) => record.set_address(value, rank, false),
            Role::Known(known) => record.set(*known, value, rank),
            Role::PeerAddress => record.set_address(value, rank, true),
            Role::Extra(name) => record.set_extra(name, value),
            Role::Time => record.set_time(time::parse(value), rank),
            Role::Cost => record.set_cost(value),
            Role::Tokens => record.set_tokens(value),
            Role::Duration(nanos) => record.duration = duration(value, *nanos),
            Role::MixedDuration => {
                let nanos = if value.contains(['.', 'e']) { SECOND } else { SECOND / 1_000 };
                record.duration = duration(value, nanos as f64);
            }
            Role::Status => record.status = value.parse().ok(),
            Role::RequestLine => return record.set_request_line(value, rank),
            Role::Uri => record.set_uri(value, rank),
            Role::Host => record.set_host(value, rank),
            Role::Extract(extract) => {
                extract.apply(value, |name, value| record.set_named(name, value, rank));
            }
        }
        Ok(())
    }

    /// Puts a time that was parsed already to its place; `false` if this is no time.
    pub(crate) fn put_time(&self, at: Option<Nanos>, record: &mut Record) -> bool {
        let is_time = matches!(self.role, Role::Time);
        if is_time {
            record.set_time(at, self.rank);
        }
        is_time
    }
}

/// Puts a value to all its places.
pub(crate) fn put_all(
    targets: &Targets,
    value: &str,
    record: &mut Record,
) -> Result<(), Malformed> {
    targets.iter().try_for_each(|target| target.put(value, record))
}

fn duration(value: &str, nanos_per_unit: f64) -> Option<Nanos> {
    let units: f64 = value.parse().ok()?;
    let nanos = units * nanos_per_unit;
    let is_sane = (0.0..=MAX_DURATION_SECONDS * SECOND as f64).contains(&nanos);
    is_sane.then_some(nanos as Nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stated_field_replaces_the_known_one_of_its_name() {
        let mapping =
            Mapping::new(&["remote_user=tenant_id".to_owned(), "x=plan".to_owned()], &[]).unwrap();
        let mut record = Record::default();
        put_all(&mapping.targets("remote_user"), "acme", &mut record).unwrap();
        put_all(&mapping.targets("x"), "gold", &mut record).unwrap();
        put_all(&mapping.targets("unknown"), "value", &mut record).unwrap();
        assert_eq!((record.get(Known::TenantId), record.get(Known::UserId)), ("acme", ""));
        assert_eq!(record.attributes().by_name("plan"), Some("gold"));
        for wrong in ["a", "=a", "a="] {
            assert!(Mapping::new(&[wrong.to_owned()], &[]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_more_exact_time_counts_whatever_comes_first() {
        let mapping = Mapping::default();
        for order in [["msec", "time_local"], ["time_local", "msec"]] {
            let mut record = Record::default();
            for field in order {
                let value =
                    if field == "msec" { "971211336.250" } else { "10/Oct/2000:13:55:36 -0700" };
                put_all(&mapping.targets(field), value, &mut record).unwrap();
            }
            assert_eq!(record.at, 971_211_336_250_000_000);
        }
    }

    #[test]
    fn durations_are_in_the_unit_of_their_proxy() {
        for (field, value, nanos) in [
            ("request_time", "0.250", Some(250_000_000)),
            ("duration", "0.25", Some(250_000_000)),
            ("duration", "250", Some(250_000_000)),
            ("Duration", "250000000", Some(250_000_000)),
            ("request_time", "-1", None),
            ("request_time", "NaN", None),
            ("request_time", "1e300", None),
        ] {
            let mut record = Record::default();
            put_all(&Mapping::default().targets(field), value, &mut record).unwrap();
            assert_eq!(record.duration, nanos, "{field} {value}");
        }
    }
}
