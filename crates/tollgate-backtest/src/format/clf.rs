//! nginx's and Apache's formats: common, and combined, which adds the referrer and the agent.

use tollgate_core::Nanos;

use super::{quoted, unescaped};
use crate::mapping::{Mapping, Targets, put_all};
use crate::record::{Malformed, Record};
use crate::time;

/// The fields in their order.
const FIELDS: [&str; 8] = [
    "remote_addr",
    "remote_user",
    "time_local",
    "request",
    "status",
    "body_bytes_sent",
    "http_referer",
    "http_user_agent",
];

pub(crate) struct Clf {
    targets: [Targets; FIELDS.len()],
    /// The time of the line before: most lines have the same.
    last_time: (Vec<u8>, Option<Nanos>),
    room: String,
}

/// Whether it is the combined format; `None` if it is neither.
pub(super) fn looks_like(line: &str) -> Option<bool> {
    let fields = split(line).ok()?;
    time::parse_clf(fields.time.as_bytes())?;
    Some(fields.agent.is_some())
}

struct Split<'l> {
    address: &'l str,
    user: &'l str,
    time: &'l str,
    request: &'l str,
    status: &'l str,
    bytes: &'l str,
    referrer: Option<&'l str>,
    agent: Option<&'l str>,
}

/// `ADDRESS IDENT USER [TIME] "REQUEST" STATUS BYTES "REFERRER" "AGENT"`. A user may hold spaces. What
/// comes after the agent is ignored: many append fields.
fn split(line: &str) -> Result<Split<'_>, Malformed> {
    let wrong = |what| move || Malformed::Form(what);
    let (address, rest) = line.split_once(' ').ok_or_else(wrong("it has one word only"))?;
    let (names, rest) = rest.split_once(" [").ok_or_else(wrong("it has no [time]"))?;
    let (_ident, user) = names.split_once(' ').unwrap_or(("", names));
    let (time, rest) = rest.split_once(']').ok_or_else(wrong("it has no [time]"))?;
    let rest = rest.trim_start().strip_prefix('"').ok_or_else(wrong("it has no \"request\""))?;
    let (request, rest) = quoted(rest).ok_or_else(wrong("its \"request\" does not end"))?;
    let mut words = rest.trim_start().splitn(3, ' ');
    let (status, bytes) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let mut more = words.next().unwrap_or("");
    let mut next_quoted = || {
        let (text, rest) = quoted(more.trim_start().strip_prefix('"')?)?;
        more = rest;
        Some(text)
    };
    let (referrer, agent) = (next_quoted(), next_quoted());
    Ok(Split { address, user, time, request, status, bytes, referrer, agent })
}

impl Clf {
    pub(super) fn new(mapping: &Mapping) -> Self {
        let targets = FIELDS.map(|field| mapping.targets(field));
        Self { targets, last_time: (Vec::new(), None), room: String::new() }
    }

    pub(super) fn parse(&mut self, line: &str, record: &mut Record) -> Result<(), Malformed> {
        let fields = split(line)?;
        let at = self.time(fields.time.as_bytes());
        let [address, user, time, request, status, bytes, referrer, agent] = &self.targets;
        for target in time {
            if !target.put_time(at, record) {
                target.put(fields.time, record)?;
            }
        }
        for (targets, value) in [
            (address, fields.address),
            (user, fields.user),
            (status, fields.status),
            (bytes, fields.bytes),
        ] {
            put_all(targets, value, record)?;
        }
        put_all(request, unescaped(fields.request, &mut self.room), record)?;
        for (targets, value) in [(referrer, fields.referrer), (agent, fields.agent)] {
            if !targets.is_empty()
                && let Some(value) = value
            {
                put_all(targets, unescaped(value, &mut self.room), record)?;
            }
        }
        Ok(())
    }

    fn time(&mut self, text: &[u8]) -> Option<Nanos> {
        if self.last_time.0 != text {
            self.last_time.0.clear();
            self.last_time.0.extend_from_slice(text);
            self.last_time.1 = time::parse_clf(text);
        }
        self.last_time.1
    }
}
