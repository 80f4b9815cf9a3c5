//! Access logs of AWS application load balancers.

use super::{quoted, unescaped};
use crate::mapping::{Mapping, Targets, put_all};
use crate::record::{Malformed, Record};
use crate::time;

/// The fields in their order; further ones are ignored, since AWS appends some now and then.
const FIELDS: [&str; 22] = [
    "type",
    "time",
    "elb",
    "client",
    "target",
    "request_processing_time",
    "target_processing_time",
    "response_processing_time",
    "elb_status_code",
    "target_status_code",
    "received_bytes",
    "sent_bytes",
    "request",
    "user_agent",
    "ssl_cipher",
    "ssl_protocol",
    "target_group_arn",
    "trace_id",
    "domain_name",
    "chosen_cert_arn",
    "matched_rule_priority",
    "request_creation_time",
];

/// A line has at least so many; older logs have no more.
const LEAST_FIELDS: usize = 13;

/// The places of the three times that make up how long a request took.
const PROCESSING_TIMES: std::ops::Range<usize> = 5..8;

const TYPES: [&str; 7] = ["http", "https", "h2", "grpcs", "ws", "wss", "grpc"];

pub(crate) struct Alb {
    targets: [Targets; FIELDS.len()],
    room: String,
}

pub(super) fn looks_like(line: &str) -> bool {
    let mut words = line.split(' ');
    words.next().is_some_and(|word| TYPES.contains(&word))
        && words.next().is_some_and(|word| time::parse(word).is_some())
}

impl Alb {
    pub(super) fn new(mapping: &Mapping) -> Self {
        Self { targets: FIELDS.map(|field| mapping.targets(field)), room: String::new() }
    }

    pub(super) fn parse(&mut self, line: &str, record: &mut Record) -> Result<(), Malformed> {
        let mut rest = line;
        let mut seconds = 0.0;
        for (place, targets) in self.targets.iter().enumerate() {
            let Some((value, after)) = next_field(rest) else {
                if place < LEAST_FIELDS {
                    return Err(Malformed::Form("it has too few fields for a load balancer's log"));
                }
                break;
            };
            rest = after;
            if PROCESSING_TIMES.contains(&place) {
                // -1: it was not sent to a target, or that closed the connection.
                let part: f64 = value.parse().unwrap_or(-1.0);
                seconds = if part < 0.0 { f64::NAN } else { seconds + part };
            }
            if !targets.is_empty() {
                put_all(targets, unescaped(value, &mut self.room), record)?;
            }
        }
        if record.duration.is_none() && (0.0..86_400.0).contains(&seconds) {
            record.duration = Some((seconds * 1e9) as u64);
        }
        Ok(())
    }
}

/// The next field, quoted or not, and what comes after it.
fn next_field(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches(' ');
    if text.is_empty() {
        return None;
    }
    match text.strip_prefix('"') {
        Some(inner) => quoted(inner),
        None => Some(text.split_once(' ').unwrap_or((text, ""))),
    }
}
