//! Callers that send wrong tokens are answered 429 for a while. Only wrong tokens are: a right one is checked
//! whatever else came from its address, because others may share it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A wrong token is forgotten after this long.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Outdated tokens of browsers that do not count as wrong ones, of all callers together.
const KEPT_FORGIVEN_PER_SECOND: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);
/// So many callers are watched; then those whose last mistake is longest ago are forgotten.
const MAX_CALLERS: usize = 10_000;

#[derive(Debug, Clone, Copy)]
struct Mistakes {
    count: u32,
    last: Instant,
    /// Attempts whose token is being checked. Each may turn out wrong, so they count until they are known to be right.
    in_flight: u32,
}

/// Callers that sent wrong tokens.
#[derive(Debug)]
pub(crate) struct Damping {
    /// So many wrong tokens are forgiven.
    forgiven: u32,
    callers: Mutex<HashMap<IpAddr, Mistakes>>,
    /// Outdated tokens of browsers that were forgiven in this second, of all callers together.
    kept_forgiven: Mutex<(Option<Instant>, u32)>,
}

/// A token on its way through the check. It counts as a wrong one until it ends; dropping it without a result, because
/// the check failed, gives it back.
#[derive(Debug)]
pub(crate) struct Attempt {
    damping: Arc<Damping>,
    caller: IpAddr,
    /// How long the caller has to wait before a wrong token is answered with 401 again.
    pub(crate) wait: Option<Duration>,
    /// Whether the caller has sent too many wrong tokens already: a wrong one must not cost a query then.
    pub(crate) is_known_for_mistakes: bool,
}

impl Attempt {
    /// The token was wrong.
    pub(crate) fn fail(self, now: Instant) {
        self.damping.mistake(self.caller, now);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut callers = self.damping.callers.lock();
        let Some(mistakes) = callers.get_mut(&self.caller) else { return };
        mistakes.in_flight = mistakes.in_flight.saturating_sub(1);
        if mistakes.in_flight == 0 && mistakes.count == 0 {
            callers.remove(&self.caller);
        }
    }
}

impl Damping {
    pub(crate) fn new(forgiven: u32) -> Self {
        Self { forgiven, callers: Mutex::default(), kept_forgiven: Mutex::default() }
    }

    /// How long this caller has to wait before it may try again.
    pub(crate) fn wait(&self, caller: IpAddr, now: Instant) -> Option<Duration> {
        let callers = self.callers.lock();
        self.remaining(callers.get(&group(caller))?, now)
    }

    fn remaining(&self, mistakes: &Mistakes, now: Instant) -> Option<Duration> {
        let since = now.saturating_duration_since(mistakes.last);
        (mistakes.count >= self.forgiven).then(|| FORGOTTEN.checked_sub(since)).flatten()
    }

    /// Counts an attempt before its token is checked: of tokens that arrive at the same time, only as many are answered
    /// with 401 as are forgiven.
    pub(crate) fn begin(self: &Arc<Self>, caller: IpAddr, now: Instant) -> Attempt {
        let caller = group(caller);
        let mut callers = self.callers.lock();
        let mistakes = entry(&mut callers, caller, now);
        let known = self.remaining(mistakes, now);
        let attempts = mistakes.count.saturating_add(mistakes.in_flight);
        let wait = known.or_else(|| (attempts >= self.forgiven).then_some(FORGOTTEN));
        mistakes.in_flight = mistakes.in_flight.saturating_add(1);
        drop(callers);
        let damping = Arc::clone(self);
        Attempt { damping, caller, wait, is_known_for_mistakes: known.is_some() }
    }

    /// Whether a wrong token that a browser kept and sent by itself is no mistake: a few are not, every second.
    pub(crate) fn is_kept_forgiven(&self, now: Instant) -> bool {
        let mut forgiven = self.kept_forgiven.lock();
        let (since, count) = &mut *forgiven;
        if since.is_none_or(|since| now.saturating_duration_since(since) >= SECOND) {
            (*since, *count) = (Some(now), 0);
        }
        *count += 1;
        *count <= KEPT_FORGIVEN_PER_SECOND
    }

    /// The caller sent a wrong token.
    fn mistake(&self, caller: IpAddr, now: Instant) {
        let mut callers = self.callers.lock();
        let mistakes = entry(&mut callers, caller, now);
        mistakes.count = mistakes.count.saturating_add(1);
        mistakes.last = now;
    }
}

/// What is known of a caller, without mistakes that are forgotten by now.
fn entry(callers: &mut HashMap<IpAddr, Mistakes>, caller: IpAddr, now: Instant) -> &mut Mistakes {
    if callers.len() >= MAX_CALLERS && !callers.contains_key(&caller) {
        let is_recent = |one: &Mistakes| now.saturating_duration_since(one.last) < FORGOTTEN;
        callers.retain(|_, mistakes| mistakes.in_flight > 0 || is_recent(mistakes));
        let oldest = callers.iter().min_by_key(|(_, one)| one.last).map(|(who, _)| *who);
        if let Some(oldest) = oldest.filter(|_| callers.len() >= MAX_CALLERS) {
            callers.remove(&oldest);
        }
    }
    let fresh = Mistakes { count: 0, last: now, in_flight: 0 };
    let mistakes = callers.entry(caller).or_insert(fresh);
    if now.saturating_duration_since(mistakes.last) >= FORGOTTEN {
        mistakes.count = 0;
    }
    mistakes
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
        let (damping, start) = (Arc::new(Damping::new(FORGIVEN)), Instant::now());
        let caller: IpAddr = "2001:db8::1".parse().unwrap();
        let neighbour: IpAddr = "2001:db8::2".parse().unwrap();
        let other: IpAddr = "192.0.2.1".parse().unwrap();
        for _ in 0..FORGIVEN {
            let attempt = damping.begin(caller, start);
            assert_eq!((attempt.wait, attempt.is_known_for_mistakes), (None, false));
            attempt.fail(start);
        }
        let attempt = damping.begin(caller, start);
        assert_eq!((attempt.wait, attempt.is_known_for_mistakes), (Some(FORGOTTEN), true));
        drop(attempt);
        assert_eq!(damping.wait(neighbour, start), Some(FORGOTTEN));
        assert_eq!(damping.wait(other, start), None);
        assert_eq!(damping.wait(caller, start + FORGOTTEN * 2), None);
        damping.begin(caller, start + FORGOTTEN * 2).fail(start + FORGOTTEN * 2);
        assert_eq!(damping.wait(caller, start + FORGOTTEN * 2), None);
        for number in 0..25 {
            let is_early = number < KEPT_FORGIVEN_PER_SECOND;
            assert_eq!(damping.is_kept_forgiven(start), is_early, "{number}");
        }
        assert!(damping.is_kept_forgiven(start + SECOND));
    }

    #[test]
    fn attempts_count_while_their_tokens_are_checked() {
        let (damping, start) = (Arc::new(Damping::new(FORGIVEN)), Instant::now());
        let caller: IpAddr = "192.0.2.1".parse().unwrap();
        let attempts: Vec<_> = (0..60).map(|_| damping.begin(caller, start)).collect();
        let damped = attempts.iter().filter(|attempt| attempt.wait.is_some()).count();
        assert_eq!(damped, 60 - FORGIVEN as usize);
        assert!(attempts.iter().all(|attempt| !attempt.is_known_for_mistakes));
        // All were right: nothing is remembered of them.
        drop(attempts);
        assert!(damping.callers.lock().is_empty());
        let attempts: Vec<_> = (0..60).map(|_| damping.begin(caller, start)).collect();
        for attempt in attempts {
            attempt.fail(start);
        }
        assert!(damping.begin(caller, start).is_known_for_mistakes);
        assert_eq!(damping.callers.lock().values().map(|one| one.in_flight).sum::<u32>(), 0);
    }

    #[test]
    fn callers_are_bounded() {
        let (damping, start) = (Arc::new(Damping::new(FORGIVEN)), Instant::now());
        for number in 0..MAX_CALLERS as u32 + 100 {
            let caller = IpAddr::V4(std::net::Ipv4Addr::from_bits(number));
            let now = start + Duration::from_millis(u64::from(number));
            damping.begin(caller, now).fail(now);
        }
        assert_eq!(damping.callers.lock().len(), MAX_CALLERS);
    }
}
