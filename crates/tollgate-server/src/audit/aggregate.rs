//! Repeated decisions become one record: a flood of refusals must not fill the disk.
//!
//! Of each rule, client and reason the first few decisions of an interval are kept in full. The others are counted,
//! and kept as one record with the first, the last and the count when the interval ends.

use std::collections::HashMap;

use tollgate_control::{DecisionRecord, Millis};
use tollgate_gateway::{Party, Places};

use crate::callers::{CallerId, CallerShares};

/// So many decisions of a rule, client and reason are kept in full in an interval.
pub(crate) const KEPT_IN_FULL: i64 = 5;

/// The most groups of an interval. Tenants have shares of them: one alone a third, and each further one less, so that
/// there is room for the next; all clients without a tenant together have a quarter. Beyond its share, clients are
/// counted together for their rule, reason and tenant. Callers have shares as well, because they can invent tenants;
/// beyond those, tenants are counted together, too.
const MAX_GROUPS: usize = 4_096;

/// The most records of groups that clients share, beyond [`MAX_GROUPS`]. What is even beyond that has one of its own.
const MAX_SHARED_GROUPS: usize = 1_024;

/// The client of a group that several share.
const SEVERAL_CLIENTS: &str = "(several)";

/// What makes decisions repeats of each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct GroupKey {
    action: String,
    reason: String,
    rule_id: Option<String>,
    tenant_id: Option<String>,
    client_id: String,
}

#[derive(Debug)]
struct Group {
    count: i64,
    kept: i64,
    first_at: Millis,
    last_at: Millis,
    /// The first decision that was not kept in full. Its event id is that of the group's record.
    sample: Option<DecisionRecord>,
}

/// Decisions of this node in the interval that has not ended.
#[derive(Debug)]
pub(crate) struct Aggregator {
    interval_ms: Millis,
    /// The interval that the groups belong to, counted from 1970.
    interval: Millis,
    groups: HashMap<GroupKey, Group>,
    /// How many groups each tenant and each caller has, those that clients share not counted.
    by_tenant: Places,
    by_caller: CallerShares,
}

impl Aggregator {
    pub(crate) fn new(interval_ms: Millis) -> Self {
        Self {
            interval_ms: interval_ms.max(1),
            interval: 0,
            groups: HashMap::new(),
            by_tenant: Places::new(MAX_GROUPS),
            by_caller: CallerShares::new(MAX_GROUPS),
        }
    }

    /// Takes decisions in. Returns those that are kept in full, with the records of intervals that ended before them.
    pub(crate) fn take(&mut self, records: Vec<DecisionRecord>) -> Vec<DecisionRecord> {
        let mut kept = Vec::new();
        for record in records {
            // Allowed ones are a sample already.
            if record.action == "allowed" {
                kept.push(record);
                continue;
            }
            if record.at.div_euclid(self.interval_ms) > self.interval {
                kept.append(&mut self.end(record.at));
            }
            kept.extend(self.add(record));
        }
        kept
    }

    /// The records of the interval that has ended by now, if it has.
    pub(crate) fn end(&mut self, now: Millis) -> Vec<DecisionRecord> {
        let interval = now.div_euclid(self.interval_ms);
        if interval <= self.interval {
            return Vec::new();
        }
        self.interval = interval;
        self.finish()
    }

    /// The records of all groups, because the node ends.
    pub(crate) fn finish(&mut self) -> Vec<DecisionRecord> {
        self.by_tenant = Places::new(MAX_GROUPS);
        self.by_caller = CallerShares::new(MAX_GROUPS);
        let groups = std::mem::take(&mut self.groups);
        groups.into_iter().filter_map(|(key, group)| record_of(key, group)).collect()
    }

    /// Counts a decision, and gives it back if it is kept in full.
    fn add(&mut self, record: DecisionRecord) -> Option<DecisionRecord> {
        let key = self.key_of(&record);
        let is_shared = key.client_id == SEVERAL_CLIENTS;
        let group = self.groups.entry(key).or_insert_with(|| Group {
            count: 0,
            kept: 0,
            first_at: record.at,
            last_at: record.at,
            sample: None,
        });
        group.count += 1;
        group.first_at = group.first_at.min(record.at);
        group.last_at = group.last_at.max(record.at);
        if group.kept < KEPT_IN_FULL && !is_shared {
            group.kept += 1;
            return Some(record);
        }
        group.sample.get_or_insert(record);
        None
    }

    fn key_of(&mut self, record: &DecisionRecord) -> GroupKey {
        let mut key = GroupKey {
            action: record.action.clone(),
            reason: record.reason.clone(),
            rule_id: record.rule_id.clone(),
            tenant_id: record.tenant_id.clone(),
            client_id: record.client_id.clone(),
        };
        if self.groups.contains_key(&key) {
            return key;
        }
        // Names of clients without a tenant cost nothing: they are one party.
        let party = Party::new(key.tenant_id.as_deref(), None, None, None);
        let caller = self.by_caller.key(CallerId::from_label(&record.caller));
        let is_within_caller = self.by_caller.has_room(caller);
        if is_within_caller && self.by_tenant.has_room(&party) {
            self.by_tenant.take(party);
            self.by_caller.take(caller);
            return key;
        }
        SEVERAL_CLIENTS.clone_into(&mut key.client_id);
        if !is_within_caller {
            key.tenant_id = None;
        }
        if self.groups.len() >= MAX_GROUPS + MAX_SHARED_GROUPS && !self.groups.contains_key(&key) {
            key.rule_id = None;
            key.tenant_id = None;
            "SEVERAL".clone_into(&mut key.reason);
        }
        key
    }
}

/// The record of a group, where some of it was not kept in full.
fn record_of(key: GroupKey, group: Group) -> Option<DecisionRecord> {
    let sample = group.sample?;
    let is_shared = key.client_id == SEVERAL_CLIENTS;
    let own = |value: Option<String>| value.filter(|_| !is_shared);
    Some(DecisionRecord {
        event_id: sample.event_id,
        at: group.last_at,
        action: key.action,
        reason: key.reason,
        client_id: key.client_id,
        rule_id: key.rule_id,
        tenant_id: key.tenant_id,
        scope: sample.scope,
        request_count: sample.request_count,
        limit_count: sample.limit_count,
        window_seconds: sample.window_seconds,
        would_deny: sample.would_deny,
        user_id: own(sample.user_id),
        api_key_id: own(sample.api_key_id),
        ip_address: own(sample.ip_address),
        model_id: own(sample.model_id),
        cost: sample.cost,
        node: sample.node,
        revision: sample.revision,
        repeat_count: Some(group.count),
        kept_count: Some(group.kept),
        first_at: Some(group.first_at),
        caller: sample.caller,
        ..DecisionRecord::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(number: i64, tenant: Option<&str>, client: &str) -> DecisionRecord {
        DecisionRecord {
            event_id: format!("{number:032x}"),
            at: number,
            action: "rejected".to_owned(),
            reason: "HIT_USER_LIMIT".to_owned(),
            rule_id: Some("r".to_owned()),
            client_id: client.to_owned(),
            user_id: Some(client.to_owned()),
            tenant_id: tenant.map(str::to_owned),
            endpoint: Some("/secret".to_owned()),
            ..DecisionRecord::default()
        }
    }

    #[test]
    fn repeats_are_one_record_and_the_first_are_kept_in_full() {
        let mut aggregator = Aggregator::new(1_000);
        assert_eq!(aggregator.end(5_000), []);
        let flood = (5_000..5_900).map(|number| refusal(number, None, "ann")).collect();
        let kept = aggregator.take(flood);
        assert_eq!(kept.len(), 5);
        assert!(kept.iter().all(|one| one.repeat_count.is_none() && one.endpoint.is_some()));
        assert_eq!(aggregator.take(vec![refusal(5_950, None, "bob")]).len(), 1);
        assert_eq!(aggregator.end(5_999), [], "the interval has not ended");
        let records = aggregator.end(6_000);
        let [record] = records.as_slice() else { panic!("{records:?}") };
        assert_eq!((record.repeat_count, record.kept_count), (Some(900), Some(5)));
        assert_eq!((record.first_at, record.at), (Some(5_000), 5_899));
        assert_eq!((record.client_id.as_str(), record.endpoint.as_deref()), ("ann", None));
        assert_eq!(aggregator.end(7_000), [], "it is written once");
        // A decision of a later interval ends the one before.
        let flood = (8_000..8_010).chain(9_000..9_001);
        let kept = aggregator.take(flood.map(|number| refusal(number, None, "ann")).collect());
        assert_eq!(kept.iter().filter(|one| one.repeat_count == Some(10)).count(), 1);
        assert_eq!(kept.len(), 5 + 1 + 1);
    }

    #[test]
    fn allowed_decisions_are_kept_as_they_are() {
        let mut aggregator = Aggregator::new(1_000);
        let allowed =
            |number| DecisionRecord { action: "allowed".to_owned(), ..refusal(number, None, "a") };
        assert_eq!(aggregator.take((0..100).map(allowed).collect()).len(), 100);
        assert_eq!(aggregator.finish(), []);
    }

    /// However many names a flood has, an interval has a bounded number of records, and others theirs.
    #[test]
    fn a_flood_of_several_tenants_leaves_room_for_the_evidence_of_others() {
        let mut aggregator = Aggregator::new(1_000_000);
        let loud = [None, Some("loud-1"), Some("loud-2"), Some("loud-3"), Some("loud-4")];
        for number in 0..50_000 {
            for tenant in loud {
                let client = format!("made-up-{number}");
                aggregator.take(vec![refusal(number, tenant, &client)]);
            }
        }
        assert!(aggregator.groups.len() <= MAX_GROUPS + loud.len());
        for tenant in 0..50 {
            let tenant = format!("quiet-{tenant}");
            let flood = (0..10).map(|number| refusal(60_000 + number, Some(&tenant), "ann"));
            let kept = aggregator.take(flood.collect());
            assert_eq!(kept.len(), 5, "the first refusals of {tenant} are kept in full");
            assert!(kept.iter().all(|one| one.endpoint.is_some()));
        }
    }

    /// A tenant is a name in the request: one caller can invent thousands of them.
    #[test]
    fn a_caller_with_invented_tenants_leaves_room_for_the_evidence_of_other_callers() {
        for loud in ["0123456789abcdef", "127.0.0.1", "192.0.2.1", "2001:db8::"] {
            let mut aggregator = Aggregator::new(1_000_000);
            for number in 0..50_000 {
                let tenant = format!("invented-{number}");
                let caller = loud.to_owned();
                let record = DecisionRecord { caller, ..refusal(number, Some(&tenant), "x") };
                aggregator.take(vec![record]);
            }
            for quiet in ["fedcba9876543210", "00000000000000aa", ""] {
                let tenant = format!("real-{quiet}");
                let flood = (0..10).map(|number| DecisionRecord {
                    caller: quiet.to_owned(),
                    ..refusal(60_000 + number, Some(&tenant), "ann")
                });
                let kept = aggregator.take(flood.collect());
                assert_eq!(kept.len(), 5, "{loud} has taken what {quiet} needs");
            }
            let records = aggregator.finish();
            assert!(records.len() <= 8, "the rest of the flood is one record: {}", records.len());
        }
    }

    /// What a tenant alone has: a third.
    const LOUD_GROUPS: usize = MAX_GROUPS.div_ceil(3);

    #[test]
    fn made_up_names_are_counted_together_and_other_tenants_have_room() {
        let mut aggregator = Aggregator::new(1_000_000);
        let mut full = 0;
        for number in 0..20_000 {
            let client = format!("made-up-{number}");
            full += aggregator.take(vec![refusal(number, Some("loud"), &client)]).len();
        }
        assert_eq!(full, LOUD_GROUPS);
        let quiet = (0..10).map(|number| refusal(30_000 + number, Some("quiet"), "ann")).collect();
        assert_eq!(aggregator.take(quiet).len(), 5);
        let records = aggregator.finish();
        assert_eq!(records.len(), 2, "{records:?}");
        let loud = records.iter().find(|one| one.tenant_id.as_deref() == Some("loud")).unwrap();
        assert_eq!(loud.client_id, SEVERAL_CLIENTS);
        assert_eq!(loud.repeat_count, Some(20_000 - i64::try_from(LOUD_GROUPS).unwrap()));
        assert_eq!(loud.user_id, None);
        // Tenants can be made up as well.
        for number in 0..50_000 {
            let tenant = format!("tenant-{number}");
            aggregator.take(vec![refusal(number, Some(&tenant), "x")]);
        }
        assert!(aggregator.groups.len() <= MAX_GROUPS + MAX_SHARED_GROUPS + 8);
    }
}
