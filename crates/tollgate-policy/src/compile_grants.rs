//! Grants, checked and put to the rules they belong to.

use std::net::IpAddr;

use hashbrown::{HashMap, HashSet};
use ipnet::IpNet;
use tollgate_core::Nanos;

use crate::check::{MAX_DESCRIPTION_BYTES, MAX_VALUE_BYTES, choice, instant, plain, require};
use crate::compile_limit::{MAX_QUOTA, most_of};
use crate::grants::{Grant, Named, RuleGrants, quotas_of, raise};
use crate::problem::Report;
use crate::raw::{At, RawGrant};
use crate::{ListKind, Quota, Rule, RuleLimit};

/// The most grants a file may have.
pub const MAX_GRANTS: usize = 100_000;
/// The most quotas that grants may raise: different amounts times limits and tiers of their rules.
pub const MAX_RAISED_QUOTAS: usize = 1_000_000;

/// Checks grants and puts them to their rules. `ids` are those of all rules, also of rules that
/// could not be compiled.
pub(crate) fn compile_grants<'r>(
    raw: &[RawGrant],
    ids: &HashSet<&str>,
    rules: impl Iterator<Item = &'r mut Rule>,
    report: &mut Report,
) -> Vec<Grant> {
    let Some(first) = raw.first() else { return Vec::new() };
    if raw.len() > MAX_GRANTS {
        let message = format!("must not have more than {MAX_GRANTS} entries");
        report.add(first.at, Some("grants"), message);
        return Vec::new();
    }
    let mut by_rule: HashMap<&str, Vec<(&RawGrant, Grant)>> = HashMap::new();
    for entry in raw {
        if let Some(grant) = check(entry, ids, report) {
            let id = entry.rule_id.as_ref().map_or("", |id| id.value.as_str());
            by_rule.entry(id).or_default().push((entry, grant));
        }
    }
    let (mut grants, mut room) = (Vec::with_capacity(raw.len()), MAX_RAISED_QUOTAS);
    for rule in rules {
        let own = by_rule.remove(rule.id.as_str()).unwrap_or_default();
        if own.is_empty() {
            continue;
        }
        rule.grants = Some(Box::new(attach(rule, &own, &mut room, report)));
        grants.extend(own.into_iter().map(|(_, grant)| grant));
    }
    grants
}

/// What can be said of a grant without its rule.
fn check(raw: &RawGrant, ids: &HashSet<&str>, report: &mut Report) -> Option<Grant> {
    let path = |name: &str| format!("{}.{name}", raw.path);
    let rule_id = require(raw.rule_id.as_ref(), raw.at, &path("rule_id"), report);
    let kind = require(raw.kind.as_ref(), raw.at, &path("type"), report);
    let kind = choice(kind, &path("type"), ListKind::ALL, ListKind::name, report);
    let value = require(raw.value.as_ref(), raw.at, &path("value"), report);
    let value = value.filter(|value| plain(value, &path("value"), MAX_VALUE_BYTES, report));
    let extra = extra(raw, &path("extra"), report);
    let expires_at = require(raw.expires_at.as_ref(), raw.at, &path("expires_at"), report);
    let expires_at: Option<Nanos> = instant(expires_at, &path("expires_at"), report);
    if let Some(reason) = &raw.reason {
        plain(reason, &path("reason"), MAX_DESCRIPTION_BYTES, report);
    }
    let rule_id = rule_id.filter(|id| {
        let known = ids.contains(id.value.as_str());
        if !known {
            let short: String = id.value.chars().take(64).collect();
            let message = format!("no rule has the id {short:?}; correct it or remove the grant");
            report.add(id.at, Some(&path("rule_id")), message);
        }
        known
    });
    let (kind, value) = (kind?, value?);
    let value = match kind {
        ListKind::Ip => address(value, &path("value"), report)?,
        _ => value.value.clone(),
    };
    Some(Grant {
        rule_id: rule_id?.value.clone(),
        kind,
        value,
        extra: extra?,
        expires_at: expires_at?,
        reason: raw.reason.as_ref().map(|reason| reason.value.clone()),
    })
}

fn extra(raw: &RawGrant, field: &str, report: &mut Report) -> Option<u64> {
    let Some(At { at, value }) = &raw.extra else {
        // A value of the wrong type has been reported.
        if !raw.has_extra {
            report.add(raw.at, Some(field), "is missing; say how much is granted");
        }
        return None;
    };
    if let Ok(extra @ 1..=MAX_QUOTA) = u64::try_from(*value) {
        return Some(extra);
    }
    report.add(*at, Some(field), format!("must be from 1 to {MAX_QUOTA}"));
    None
}

/// An address as requests carry it: in its one canonical form, IPv6 perhaps grouped by network.
fn address(value: &At<String>, field: &str, report: &mut Report) -> Option<String> {
    if let Ok(address) = value.value.parse::<IpAddr>() {
        return Some(address.to_canonical().to_string());
    }
    if let Ok(IpNet::V6(network)) = value.value.parse::<IpNet>() {
        return Some(network.trunc().to_string());
    }
    let message = "must be an address, or an IPv6 network such as 2001:db8::/64";
    report.add(value.at, Some(field), message);
    None
}

fn attach(
    rule: &Rule,
    own: &[(&RawGrant, Grant)],
    room: &mut usize,
    report: &mut Report,
) -> RuleGrants {
    let mut grants = RuleGrants::default();
    let mut raised: HashMap<u64, Result<u32, String>> = HashMap::new();
    for (raw, grant) in own {
        let add =
            |report: &mut Report, at: Option<crate::node::Spot>, name: &str, message: &str| {
                report.add(at.unwrap_or(raw.at), Some(&format!("{}.{name}", raw.path)), message);
            };
        let Some(named) = Named::by(rule, grant.kind) else {
            let message = format!(
                "rule {:?} does not count by {}; grant to what its key is made of",
                rule.id,
                grant.kind.name()
            );
            add(report, raw.kind.as_ref().map(|kind| kind.at), "type", &message);
            continue;
        };
        let made = raised.entry(grant.extra).or_insert_with(|| {
            let limits = raise_all(rule, grant.extra, room)?;
            Ok(grants.add_raised(limits))
        });
        match made {
            Ok(made) => {
                if !grants.add(grant, named, *made) {
                    let message = "has a grant on this rule already; remove one of them";
                    add(report, raw.value.as_ref().map(|value| value.at), "value", message);
                }
            }
            Err(message) => {
                add(report, raw.extra.as_ref().map(|extra| extra.at), "extra", message);
            }
        }
    }
    grants
}

/// The limits of a rule with so much more; the error says why they cannot be.
fn raise_all(rule: &Rule, extra: u64, room: &mut usize) -> Result<Vec<RuleLimit>, String> {
    let mut limits = rule.limits.clone();
    for limit in limits.iter_mut().flat_map(quotas_of) {
        *room = room.checked_sub(1).ok_or_else(|| {
            format!("raises more than {MAX_RAISED_QUOTAS} quotas in all; grant in rounder amounts")
        })?;
        let Quota::Limited(limit) = limit else { continue };
        let most = most_of(limit.algorithm());
        let highest = limit.quota().max(limit.capacity());
        if limit.quota() > 0 && highest.saturating_add(extra) > most {
            return Err(format!(
                "raises a limit of rule {:?} from {highest} above {most}, the most for {}",
                rule.id,
                limit.algorithm()
            ));
        }
        *limit = raise(limit, extra).map_err(|error| error.to_string())?;
    }
    Ok(limits)
}
