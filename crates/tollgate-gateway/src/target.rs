//! One target of a pool: where it is, and how it has been doing. Shared by all workers.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderValue;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use tokio::time::Instant;

use crate::connect::Connector;
use crate::options::{MAX_WEIGHT, PassiveOptions, TargetOptions};

/// Warnings about one target are at least this far apart.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// A back-off doubles at most so many times.
const MAX_DOUBLINGS: u32 = 16;

/// Where a target is.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    /// The authority as a `Host`.
    pub(crate) host: HeaderValue,
    /// Without brackets, for the resolver.
    pub(crate) host_name: String,
    pub(crate) port: u16,
    /// Goes before all paths; no slash at its end.
    pub(crate) base_path: String,
}

impl Origin {
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{url:?} is not a URL: {error}"))?;
        let parts = uri.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(format!("{url:?} must start with http:// or https:// and name a host"));
        };
        let default_port = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            _ => return Err(format!("{url:?} must start with http:// or https://")),
        };
        if authority.as_str().contains('@') {
            return Err("a target's URL must not hold a user or password".to_owned());
        }
        let path = parts.path_and_query.as_ref().map_or("/", PathAndQuery::path);
        if parts.path_and_query.as_ref().is_some_and(|path| path.query().is_some()) {
            return Err(format!("{url:?} must not have a query"));
        }
        let host = HeaderValue::from_str(authority.as_str())
            .map_err(|error| format!("{url:?} names a host that cannot be sent: {error}"))?;
        let host_name = authority.host().trim_matches(['[', ']']).to_owned();
        let port = authority.port_u16().unwrap_or(default_port);
        let base_path = path.trim_end_matches('/').to_owned();
        Ok(Self { scheme, authority, host, host_name, port, base_path })
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }
}

/// One target of a pool.
pub(crate) struct Target {
    /// As configured; for status and logs.
    pub(crate) url: String,
    pub(crate) weight: u32,
    pub(crate) connector: Connector,
    passive: PassiveOptions,
    /// Instants below are milliseconds since this one.
    epoch: Instant,
    /// What active checks found last.
    probed_well: AtomicBool,
    failures_in_a_row: AtomicU32,
    ejections_in_a_row: AtomicU32,
    /// 0 if it is not ejected.
    ejected_until_ms: AtomicU64,
    active: AtomicU64,
    failures: AtomicU64,
    next_warning_ms: AtomicU64,
}

impl Target {
    pub(crate) fn new(
        options: &TargetOptions,
        passive: PassiveOptions,
        connector: Connector,
    ) -> Result<Self, String> {
        if options.weight == 0 || options.weight > MAX_WEIGHT {
            return Err(format!("{:?} must weigh 1 to {MAX_WEIGHT}", options.url));
        }
        Ok(Self {
            url: options.url.clone(),
            weight: options.weight,
            connector,
            passive,
            epoch: Instant::now(),
            probed_well: AtomicBool::new(true),
            failures_in_a_row: AtomicU32::new(0),
            ejections_in_a_row: AtomicU32::new(0),
            ejected_until_ms: AtomicU64::new(0),
            active: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            next_warning_ms: AtomicU64::new(0),
        })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether requests should go there.
    pub(crate) fn is_available(&self) -> bool {
        self.probed_well.load(Ordering::Relaxed) && !self.is_ejected()
    }

    pub(crate) fn is_ejected(&self) -> bool {
        let until = self.ejected_until_ms.load(Ordering::Relaxed);
        until != 0 && self.now_ms() < until
    }

    /// A request was answered.
    pub(crate) fn succeeded(&self) {
        // Read first: the usual case must not take the cache line from other workers.
        if self.failures_in_a_row.load(Ordering::Relaxed) != 0 {
            self.failures_in_a_row.store(0, Ordering::Relaxed);
            self.ejections_in_a_row.store(0, Ordering::Relaxed);
            self.ejected_until_ms.store(0, Ordering::Relaxed);
        }
    }

    /// A request was not answered as it should have been. After an ejection one more failure is
    /// enough for the next.
    pub(crate) fn failed(&self, why: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let in_a_row = self.failures_in_a_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let now_ms = self.now_ms();
        let max = self.passive.max_failures;
        if max != 0 && in_a_row >= max && !self.is_ejected() {
            let doublings = self.ejections_in_a_row.fetch_add(1, Ordering::Relaxed);
            let factor = 1_u32 << doublings.min(MAX_DOUBLINGS);
            let back_off =
                self.passive.back_off.saturating_mul(factor).min(self.passive.max_back_off);
            let back_off_ms = u64::try_from(back_off.as_millis()).unwrap_or(u64::MAX).max(1);
            self.ejected_until_ms.store(now_ms.saturating_add(back_off_ms), Ordering::Relaxed);
            tracing::warn!(target_url = %self.url, why, back_off_ms, "an upstream target is left alone for a while");
        } else if self.may_warn(now_ms) {
            tracing::warn!(target_url = %self.url, why, "an upstream target failed a request");
        }
    }

    fn may_warn(&self, now_ms: u64) -> bool {
        let next = self.next_warning_ms.load(Ordering::Relaxed);
        let interval_ms = WARNING_INTERVAL.as_secs() * 1_000;
        now_ms >= next
            && self
                .next_warning_ms
                .compare_exchange(next, now_ms + interval_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// What active checks say. True if that is new.
    pub(crate) fn probed(&self, is_well: bool) -> bool {
        self.probed_well.swap(is_well, Ordering::Relaxed) != is_well
    }

    pub(crate) fn is_probed_well(&self) -> bool {
        self.probed_well.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn active(&self) -> u64 {
        self.active.load(Ordering::Relaxed)
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_targets() {
        let origin = Origin::parse("https://[::1]:8443/base/").unwrap();
        assert!(origin.is_tls());
        assert_eq!((origin.host_name.as_str(), origin.port), ("::1", 8443));
        assert_eq!(origin.base_path, "/base");
        let origin = Origin::parse("http://example.com").unwrap();
        assert_eq!((origin.port, origin.base_path.as_str()), (80, ""));
        for url in ["", "example.com", "ftp://a", "http://", "http://u:p@h", "http://h/?q", "/a"] {
            assert!(Origin::parse(url).is_err(), "{url:?}");
        }
    }

    fn target(passive: PassiveOptions) -> Target {
        let connector = Connector::plain("http://127.0.0.1:1");
        Target::new(&TargetOptions::new("http://127.0.0.1:1"), passive, connector).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_eject_for_longer_and_longer() {
        let target = target(PassiveOptions {
            max_failures: 3,
            back_off: Duration::from_secs(1),
            max_back_off: Duration::from_secs(3),
        });
        target.failed("test");
        target.failed("test");
        target.succeeded();
        target.failed("test");
        target.failed("test");
        assert!(target.is_available());
        for seconds in [1, 2, 3, 3] {
            target.failed("test");
            assert!(!target.is_available());
            tokio::time::advance(Duration::from_millis(seconds * 1_000 - 1)).await;
            assert!(!target.is_available(), "{seconds}");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(target.is_available(), "{seconds}");
        }
        target.succeeded();
        target.failed("test");
        assert!(target.is_available());
        assert_eq!(target.failures(), 9);
    }

    #[tokio::test(start_paused = true)]
    async fn probes_count_too_and_zero_never_ejects() {
        let target = target(PassiveOptions { max_failures: 0, ..PassiveOptions::default() });
        for _ in 0..100 {
            target.failed("test");
        }
        assert!(target.is_available());
        assert!(target.probed(false));
        assert!(!target.probed(false));
        assert!(!target.is_available());
    }
}
