//! Metrics of the process, under the names that every Prometheus client gives them.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Reads `/proc` at every scrape; what cannot be read is left out.
#[derive(Debug)]
pub(super) struct ProcessCollector {
    /// When the process started, in seconds since the epoch.
    pub(super) started: f64,
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut gauge = |name: &str, help: &str, value: f64| {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
        };
        gauge("start_time_seconds", "When the process started", self.started)?;
        if let Some(bytes) = resident_bytes() {
            gauge("resident_memory_bytes", "Memory that the process has in use", bytes)?;
        }
        if let Some(open) = open_files() {
            gauge("open_fds", "Open files and sockets", open)?;
        }
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        gauge("max_fds", "How many may be open", most.map_or(f64::INFINITY, number))?;
        let help = "Time that the process spent on processors";
        encoder
            .encode_descriptor("cpu_seconds", help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(&cpu_seconds(), None)
    }
}

fn resident_bytes() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(number(pages * rustix::param::page_size() as u64))
}

fn open_files() -> Option<f64> {
    Some(number(fs::read_dir("/proc/self/fd").ok()?.count() as u64))
}

pub(crate) fn cpu_seconds() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    #[expect(clippy::cast_precision_loss, reason = "a metric")]
    let seconds = spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9;
    seconds
}

fn number(value: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a metric; exact up to 2^53")]
    let value = value as f64;
    value
}
