//! Guessing tokens is made slow: who sends wrong ones has to wait.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A wrong token is forgotten after this long.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Tokens of callers that have to wait that are looked at all the same, of all together.
const LOOKED_AT_PER_SECOND: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);
/// So many callers are watched; then those whose last mistake is longest ago are forgotten.
const MOST_CALLERS: usize = 10_000;

#[derive(Debug, Clone, Copy)]
struct Mistakes {
    count: u32,
    last: Instant,
}

/// Callers that sent wrong tokens.
#[derive(Debug)]
pub(crate) struct Damping {
    /// So many wrong tokens are forgiven.
    forgiven: u32,
    callers: Mutex<HashMap<IpAddr, Mistakes>>,
    /// Tokens of those who have to wait that were looked at in this second, of all callers together.
    looked_at: Mutex<(Option<Instant>, u32)>,
}

impl Damping {
    pub(crate) fn new(forgiven: u32) -> Self {
        Self { forgiven, callers: Mutex::default(), looked_at: Mutex::default() }
    }

    /// How long this caller has to wait before it may try again.
    pub(crate) fn wait(&self, caller: IpAddr, now: Instant) -> Option<Duration> {
        let callers = self.callers.lock();
        let mistakes = callers.get(&group(caller))?;
        let since = now.saturating_duration_since(mistakes.last);
        (mistakes.count >= self.forgiven).then(|| FORGOTTEN.checked_sub(since)).flatten()
    }

    /// Whether the token of a caller that has to wait is looked at all the same: a few are every second,
    /// so that those who guess behind an address do not lock out others behind it.
    pub(crate) fn is_looked_at(&self, now: Instant) -> bool {
        let mut looked_at = self.looked_at.lock();
        let (since, count) = &mut *looked_at;
        if since.is_none_or(|since| now.saturating_duration_since(since) >= SECOND) {
            (*since, *count) = (Some(now), 0);
        }
        *count += 1;
        *count <= LOOKED_AT_PER_SECOND
    }

    /// The caller sent a wrong token.
    pub(crate) fn mistake(&self, caller: IpAddr, now: Instant) {
        let mut callers = self.callers.lock();
        if callers.len() >= MOST_CALLERS && !callers.contains_key(&group(caller)) {
            let is_recent = |one: &Mistakes| now.saturating_duration_since(one.last) < FORGOTTEN;
            callers.retain(|_, mistakes| is_recent(mistakes));
            let oldest = callers.iter().min_by_key(|(_, one)| one.last).map(|(who, _)| *who);
            if let Some(oldest) = oldest.filter(|_| callers.len() >= MOST_CALLERS) {
                callers.remove(&oldest);
            }
        }
        let mistakes = callers.entry(group(caller)).or_insert(Mistakes { count: 0, last: now });
        if now.saturating_duration_since(mistakes.last) >= FORGOTTEN {
            mistakes.count = 0;
        }
        mistakes.count = mistakes.count.saturating_add(1);
        mistakes.last = now;
    }

    /// The caller sent a right one.
    pub(crate) fn success(&self, caller: IpAddr) {
        self.callers.lock().remove(&group(caller));
    }
}

/// A household of IPv6 is one caller.
fn group(caller: IpAddr) -> IpAddr {
    match caller.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !(u128::from(u64::MAX))))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do")]
mod tests {
    use super::*;

    const FORGIVEN: u32 = 10;

    #[test]
    fn guessing_is_slow_and_mistakes_are_forgotten() {
        let (damping, start) = (Damping::new(FORGIVEN), Instant::now());
        let caller: IpAddr = "2001:db8::1".parse().unwrap();
        let neighbour: IpAddr = "2001:db8::2".parse().unwrap();
        let other: IpAddr = "192.0.2.1".parse().unwrap();
        for _ in 0..FORGIVEN {
            assert_eq!(damping.wait(caller, start), None);
            damping.mistake(caller, start);
        }
        assert_eq!(damping.wait(caller, start), Some(FORGOTTEN));
        assert_eq!(damping.wait(neighbour, start), Some(FORGOTTEN));
        assert_eq!(damping.wait(other, start), None);
        assert_eq!(damping.wait(caller, start + FORGOTTEN * 2), None);
        damping.mistake(caller, start + FORGOTTEN * 2);
        assert_eq!(damping.wait(caller, start + FORGOTTEN * 2), None);
        for number in 0..25 {
            let is_early = number < LOOKED_AT_PER_SECOND;
            assert_eq!(damping.is_looked_at(start), is_early, "{number}");
        }
        assert!(damping.is_looked_at(start + SECOND));
        damping.success(caller);
        assert!(damping.callers.lock().is_empty());
    }

    #[test]
    fn callers_are_bounded() {
        let (damping, start) = (Damping::new(FORGIVEN), Instant::now());
        for number in 0..MOST_CALLERS as u32 + 100 {
            let caller = IpAddr::V4(std::net::Ipv4Addr::from_bits(number));
            damping.mistake(caller, start + Duration::from_millis(u64::from(number)));
        }
        assert_eq!(damping.callers.lock().len(), MOST_CALLERS);
    }
}
