//! How often a tenant's admins change anything: each change is checked with the whole set, written to the database and
//! sent to all nodes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Changes of one tenant within [`WINDOW`].
pub(crate) const MAX_TENANT_CHANGES: u32 = 120;
const WINDOW: Duration = Duration::from_secs(60);

/// The most tenants that are watched. There are as many as have admins: only those with a token come here.
const MAX_TENANTS: usize = 100_000;

/// Changes by tenant.
#[derive(Debug, Default)]
pub(crate) struct TenantChanges(Mutex<HashMap<String, (Instant, u32)>>);

impl TenantChanges {
    /// Counts a change of this tenant's; or how long it has to wait.
    pub(crate) fn admit(&self, tenant: &str, now: Instant) -> Result<(), Duration> {
        let mut tenants = self.0.lock();
        if tenants.len() >= MAX_TENANTS && !tenants.contains_key(tenant) {
            tenants.retain(|_, (since, _)| now.saturating_duration_since(*since) < WINDOW);
            if tenants.len() >= MAX_TENANTS {
                return Err(WINDOW);
            }
        }
        let (since, count) = tenants.entry(tenant.to_owned()).or_insert((now, 0));
        let age = now.saturating_duration_since(*since);
        if age >= WINDOW {
            (*since, *count) = (now, 0);
        }
        if *count >= MAX_TENANT_CHANGES {
            return Err(WINDOW.saturating_sub(age));
        }
        *count += 1;
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any instant will do")]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_changes_so_much_and_others_as_they_like() {
        let (changes, start) = (TenantChanges::default(), Instant::now());
        for _ in 0..MAX_TENANT_CHANGES {
            assert_eq!(changes.admit("acme", start), Ok(()));
        }
        let later = start + WINDOW / 3;
        assert_eq!(changes.admit("acme", later), Err(WINDOW / 3 * 2));
        assert_eq!(changes.admit("other", later), Ok(()));
        assert_eq!(changes.admit("acme", start + WINDOW), Ok(()));
    }
}
