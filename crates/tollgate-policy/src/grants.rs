//! Grants: a client's extra quota on one rule until a date.

use hashbrown::HashMap;
use smallvec::SmallVec;
use tollgate_core::{Limit, LimitError, LimitSpec, Nanos};

use crate::lists::ExactKey;
use crate::{Attributes, KeyPart, Known, ListKind, Quota, Rule, RuleLimit};

/// Extra quota for one client on one rule, until a date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The rule.
    pub rule_id: String,
    /// What names the client.
    pub kind: ListKind,
    /// Its name.
    pub value: String,
    /// How much more every limit of the rule gives it.
    pub extra: u64,
    /// From this instant on it is as if absent.
    pub expires_at: Nanos,
    /// Why it was given.
    pub reason: Option<String>,
}

/// The grants on one rule. Raised limits are made once for each amount, not for each client.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuleGrants {
    /// The kinds of clients that have a grant, and how a request says who it is.
    kinds: SmallVec<[(ListKind, Named); 1]>,
    clients: HashMap<(Known, Box<str>), Given>,
    raised: Vec<Vec<RuleLimit>>,
}

#[derive(Debug, Clone, Copy)]
struct Given {
    extra: u64,
    expires_at: Nanos,
    raised: u32,
}

/// How a rule's key names a client of some kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    /// The attribute is a part of the key.
    Itself,
    /// It is, where it is what the request's client is taken from. Another attribute of the same
    /// request would raise a counter that belongs to someone else.
    AsClient,
}

impl Named {
    /// How this rule's key names clients of the kind, if it does.
    pub(crate) fn by(rule: &Rule, kind: ListKind) -> Option<Self> {
        if rule.key.contains(&KeyPart::Known(kind.attribute())) {
            return Some(Self::Itself);
        }
        let can_be_client = kind != ListKind::TenantId;
        (can_be_client && rule.key.contains(&KeyPart::Client)).then_some(Self::AsClient)
    }
}

impl RuleGrants {
    /// Adds limits that a grant may refer to by the number that is returned.
    pub(crate) fn add_raised(&mut self, limits: Vec<RuleLimit>) -> u32 {
        self.raised.push(limits);
        self.raised.len() as u32 - 1
    }

    /// Adds a grant; false if the client has one already.
    pub(crate) fn add(&mut self, grant: &Grant, named: Named, raised: u32) -> bool {
        if !self.kinds.contains(&(grant.kind, named)) {
            self.kinds.push((grant.kind, named));
        }
        let key = (grant.kind.attribute(), grant.value.as_str().into());
        let given = Given { extra: grant.extra, expires_at: grant.expires_at, raised };
        self.clients.insert(key, given).is_none()
    }

    /// The raised limits of this request. Where several clients that it names have a grant, the
    /// largest counts.
    fn limits(&self, request: &Attributes<'_>, now: Nanos) -> Option<&[RuleLimit]> {
        let mut best: Option<Given> = None;
        for (kind, named) in &self.kinds {
            let value = match named {
                Named::Itself => request.get(kind.attribute()),
                Named::AsClient => request
                    .client()
                    .filter(|(name, _)| *name == kind.name())
                    .map(|(_, value)| value),
            };
            let given = value.and_then(|v| self.clients.get(&ExactKey(kind.attribute(), v)));
            if let Some(given) = given
                && now < given.expires_at
                && best.is_none_or(|best| given.extra > best.extra)
            {
                best = Some(*given);
            }
        }
        self.raised.get(best?.raised as usize).map(Vec::as_slice)
    }
}

impl Rule {
    /// Whether some client has extra quota on it.
    pub const fn has_grants(&self) -> bool {
        self.grants.is_some()
    }

    /// The limits of a request that this rule applies to: with what is granted to its client, if
    /// anything is. They name the same counters either way.
    #[inline]
    pub fn limits_for(&self, request: &Attributes<'_>, now: Nanos) -> &[RuleLimit] {
        match &self.grants {
            None => &self.limits,
            Some(grants) => grants.limits(request, now).unwrap_or(&self.limits),
        }
    }
}

/// The limit with so much more; a bucket holds as much more. A limit of 0 stays: it suspends.
pub(crate) fn raise(limit: &Limit, extra: u64) -> Result<Limit, LimitError> {
    if limit.quota() == 0 {
        return Ok(limit.clone());
    }
    let algorithm = limit.algorithm();
    Limit::new(LimitSpec {
        algorithm,
        quota: limit.quota().saturating_add(extra),
        window: limit.window().clone(),
        burst: algorithm.is_bucket().then(|| limit.capacity().saturating_add(extra)),
        slot_ttl: limit.slot_ttl(),
    })
}

/// Every quota of a limit.
pub(crate) fn quotas_of(limit: &mut RuleLimit) -> impl Iterator<Item = &mut Quota> {
    limit.base.iter_mut().chain(limit.tiers.iter_mut().map(|(_, quota)| quota))
}
