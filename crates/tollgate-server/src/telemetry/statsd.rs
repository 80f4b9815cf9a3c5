//! The same figures as `/metrics`, sent to a StatsD server by UDP: counters as what was added since the
//! last time, gauges as they are, with labels as tags (the form of Datadog and Telegraf).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use tollgate_core::Nanos;

use super::Telemetry;
use super::descriptors::{METRIC_PREFIX, statsd_figures};
use crate::config::StatsdConfig;

/// What fits a packet on any network.
const MAX_PACKET_BYTES: usize = 1_432;

/// Sends figures now and then.
pub(crate) struct Statsd {
    telemetry: Arc<Telemetry>,
    socket: UdpSocket,
    prefix: String,
    interval: Nanos,
    /// Whether figures of imported limits are sent under the names of envoyproxy/ratelimit.
    has_envoy_names: bool,
    last: Nanos,
    /// What each counter said the last time.
    counters: HashMap<String, f64>,
    /// What each figure of imported limits was the last time.
    envoy_counters: HashMap<String, u64>,
}

impl Statsd {
    /// One that sends where the configuration says; `None` if it says nowhere.
    pub(crate) fn new(
        config: &StatsdConfig,
        telemetry: &Arc<Telemetry>,
        now: Nanos,
    ) -> std::io::Result<Option<Self>> {
        let Some(address) = config.address else { return Ok(None) };
        let any: SocketAddr = if address.is_ipv4() {
            (Ipv4Addr::UNSPECIFIED, 0).into()
        } else {
            (Ipv6Addr::UNSPECIFIED, 0).into()
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        Ok(Some(Self {
            telemetry: Arc::clone(telemetry),
            socket,
            prefix: config.prefix.clone(),
            interval: u64::try_from(config.interval.as_nanos()).unwrap_or(u64::MAX),
            has_envoy_names: config.envoy_names,
            last: now,
            counters: HashMap::new(),
            envoy_counters: HashMap::new(),
        }))
    }

    /// Sends if it is time, or if there is no other.
    pub(crate) fn report(&mut self, now: Nanos, is_last: bool) {
        if !is_last && now.saturating_sub(self.last) < self.interval {
            return;
        }
        self.last = now;
        let text = self.telemetry.text();
        let mut lines = self.lines(&text);
        if self.has_envoy_names {
            self.add_envoy_lines(&mut lines);
        }
        let mut packet = String::with_capacity(MAX_PACKET_BYTES);
        for line in lines {
            if !packet.is_empty() && packet.len() + 1 + line.len() > MAX_PACKET_BYTES {
                self.send(&packet);
                packet.clear();
            }
            if !packet.is_empty() {
                packet.push('\n');
            }
            packet.push_str(&line);
        }
        self.send(&packet);
    }

    fn send(&self, packet: &str) {
        if !packet.is_empty() {
            // Nobody listens: figures of now are worth nothing later.
            let _ = self.socket.send(packet.as_bytes());
        }
    }

    /// Adds what was counted for imported limits since the last time.
    fn add_envoy_lines(&mut self, lines: &mut Vec<String>) {
        for (name, value) in statsd_figures(self.telemetry.descriptor_stats()) {
            let last = self.envoy_counters.insert(name.clone(), value).unwrap_or(0);
            let added = value.saturating_sub(last);
            if added > 0 {
                lines.push(format!("{name}:{added}|c"));
            }
        }
    }

    /// The lines to send for what `/metrics` says.
    fn lines(&mut self, text: &str) -> Vec<String> {
        let before = std::mem::take(&mut self.counters);
        let mut kinds: HashMap<&str, &str> = HashMap::new();
        let mut lines = Vec::new();
        for line in text.lines() {
            if let Some(said) = line.strip_prefix("# TYPE ") {
                if let Some((name, kind)) = said.split_once(' ') {
                    kinds.insert(name, kind);
                }
                continue;
            }
            if line.starts_with('#') {
                continue;
            }
            let Some(sample) = Sample::read(line) else { continue };
            // Buckets are many, and what StatsD servers make of times they make themselves.
            let is_envoy = sample.name.starts_with(METRIC_PREFIX);
            if sample.name.ends_with("_bucket") || (is_envoy && self.has_envoy_names) {
                continue;
            }
            let is_counter = is_envoy
                || ["_total", "_count", "_sum"].iter().any(|end| {
                    let family = sample.name.strip_suffix(end);
                    family.is_some_and(|family| {
                        matches!(kinds.get(family), Some(&("counter" | "histogram")))
                    })
                });
            let value = if is_counter {
                let series = line.rsplit_once(' ').map_or(line, |(series, _)| series);
                self.counters.insert(series.to_owned(), sample.value);
                // One that is lower than it was began anew.
                let last = before.get(series).copied().filter(|last| *last <= sample.value);
                sample.value - last.unwrap_or(0.0)
            } else {
                sample.value
            };
            if !value.is_finite() || (is_counter && value <= 0.0) {
                continue;
            }
            let kind = if is_counter { 'c' } else { 'g' };
            let (prefix, name) = (&self.prefix, sample.name);
            let dot = if prefix.is_empty() { "" } else { "." };
            let mut line = String::new();
            if !is_counter && value < 0.0 {
                // A sign means a change: from nothing it is the value itself.
                let _ = write!(line, "{prefix}{dot}{name}:0|g");
                push_tags(&mut line, &sample.labels);
                line.push('\n');
            }
            // Writing to memory does not fail.
            let _ = write!(line, "{prefix}{dot}{name}:{value}|{kind}");
            push_tags(&mut line, &sample.labels);
            lines.push(line);
        }
        lines
    }
}

fn push_tags(line: &mut String, labels: &[(&str, String)]) {
    for (index, (label, value)) in labels.iter().enumerate() {
        let separator = if index == 0 { "|#" } else { "," };
        // Writing to memory does not fail.
        let _ = write!(line, "{separator}{label}:{}", tag(value));
    }
}

/// A value as a tag can hold it.
fn tag(value: &str) -> String {
    let plain = |one: char| if matches!(one, ',' | '|' | '#' | ':' | '\n') { '_' } else { one };
    value.chars().map(plain).collect()
}

/// One line of `/metrics`.
struct Sample<'t> {
    name: &'t str,
    labels: Vec<(&'t str, String)>,
    value: f64,
}

impl<'t> Sample<'t> {
    fn read(line: &'t str) -> Option<Self> {
        let end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(end);
        let mut labels = Vec::new();
        let mut rest = rest;
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            while !rest.starts_with('}') {
                let (label, value) = rest.strip_prefix(',').unwrap_or(rest).split_once("=\"")?;
                let (value, after) = quoted(value)?;
                labels.push((label, value));
                rest = after;
            }
            rest = rest.strip_prefix('}')?;
        }
        let value = rest.split_whitespace().next()?.parse().ok()?;
        Some(Self { name, labels, value })
    }
}

/// A quoted value without its escapes, and what follows its end.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, one)) = characters.next() {
        match one {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::Sample;

    #[test]
    fn a_line_is_read_whatever_its_labels_hold() {
        let line = r#"x_total{a="1, {b}",c="say \"so\" \\ \n"} 42"#;
        let sample = Sample::read(line).unwrap();
        assert_eq!(sample.name, "x_total");
        let labels: Vec<_> =
            sample.labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(labels, [("a", "1, {b}"), ("c", "say \"so\" \\ \n")]);
        assert!((sample.value - 42.0).abs() < f64::EPSILON);
        assert!(Sample::read("y 1.5").is_some_and(|sample| sample.labels.is_empty()));
        assert!(Sample::read("z{a=\"unended} 1").is_none());
    }
}
