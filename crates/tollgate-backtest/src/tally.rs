//! What the decisions add up to.

use hashbrown::HashMap;
use tollgate_core::Nanos;
use tollgate_engine::{Decision, Reason, Scope, Verdict};
use tollgate_policy::{Attributes, Known};

use crate::series::{Busiest, Series};
use crate::table::Table;

/// The most clients that are counted one by one.
const MAX_CLIENTS: usize = 200_000;

/// The most tenants that are counted one by one.
const MAX_TENANTS: usize = 20_000;

/// The most endpoints that are counted one by one.
const MAX_ENDPOINTS: usize = 5_000;

/// Segments of a path from this length on may be ids.
const LEAST_ID_CHARS: usize = 16;

/// The name of a request that has no client attribute.
pub(crate) const NO_CLIENT: &str = "(no identity)";

/// The place of the baseline, and of the rules to test, in pairs of figures.
pub(crate) const BEFORE: usize = 0;
pub(crate) const AFTER: usize = 1;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) is_refused: bool,
    /// The number of the rule that refused it.
    pub(crate) rule: u32,
}

/// Requests, and how many were refused before and after.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) refused: [u64; 2],
}

impl Counts {
    fn add(&mut self, refused: [bool; 2]) {
        self.requests += 1;
        for (count, is_refused) in self.refused.iter_mut().zip(refused) {
            *count += u64::from(is_refused);
        }
    }
}

/// What one client would notice.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClientStats {
    pub(crate) counts: Counts,
    /// Refusals in a row by the rules to test, now and at most.
    run: u32,
    pub(crate) longest_run: u32,
    run_began: Nanos,
    /// From the first refusal of a row to the request after it.
    pub(crate) longest_outage: Nanos,
    /// The rule that refuses it most, by majority vote.
    pub(crate) rule: u32,
    votes: u32,
}

impl ClientStats {
    fn add(&mut self, at: Nanos, refused: [bool; 2], rule: u32) {
        self.counts.add(refused);
        if self.run > 0 {
            self.longest_outage = self.longest_outage.max(at.saturating_sub(self.run_began));
        }
        let [_, is_refused] = refused;
        if !is_refused {
            self.run = 0;
            return;
        }
        if self.run == 0 {
            self.run_began = at;
        }
        self.run = self.run.saturating_add(1);
        self.longest_run = self.longest_run.max(self.run);
        if self.votes == 0 {
            self.rule = rule;
        }
        self.votes = if self.rule == rule { self.votes.saturating_add(1) } else { self.votes - 1 };
    }
}

/// What one rule did.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuleStats {
    pub(crate) id: String,
    /// Requests that it applied to.
    pub(crate) requests: u64,
    /// Requests that it refused, as the deciding rule.
    pub(crate) refused: u64,
    /// Requests that it would have refused, had it been enforced.
    pub(crate) would_deny: u64,
    pub(crate) throttled: u64,
    /// The most of it that was used, of how much, and when.
    pub(crate) peak: Option<(u64, u64, Nanos)>,
    /// The request that was counted last: a rule with several limits counts once.
    last: u64,
}

/// Everything that one rule set did.
#[derive(Debug, Default)]
pub(crate) struct SideTally {
    places: HashMap<usize, u32, foldhash::fast::RandomState>,
    reasons: HashMap<&'static str, u32, foldhash::fast::RandomState>,
    pub(crate) rules: Vec<RuleStats>,
    pub(crate) refused: u64,
    pub(crate) throttled: u64,
    pub(crate) queued: u64,
    pub(crate) would_deny: u64,
    /// Requests that could not be decided.
    pub(crate) undecided: u64,
    requests: u64,
}

impl SideTally {
    /// Counts a decision.
    pub(crate) fn add(&mut self, decision: &Decision<'_>) -> Fate {
        self.requests += 1;
        let mut would_deny = false;
        for scope in decision.scopes() {
            self.add_scope(scope, decision.now);
        }
        for scope in decision.observed() {
            let place = self.add_scope(scope, decision.now);
            if scope.refuses() {
                would_deny = true;
                if let Some(rule) = self.rules.get_mut(place as usize) {
                    rule.would_deny += 1;
                }
            }
        }
        let is_refused = decision.verdict == Verdict::Denied;
        let is_throttled = decision.verdict == Verdict::Throttled;
        let is_queued = decision.verdict == Verdict::Queued;
        let mut rule = u32::MAX;
        if is_refused || is_queued || is_throttled {
            rule = match decision.deciding() {
                Some(scope) => self.place(scope),
                None => self.place_of_reason(decision.reason),
            };
            if let Some(stats) = self.rules.get_mut(rule as usize) {
                stats.refused += u64::from(is_refused);
                stats.throttled += u64::from(is_throttled || is_queued);
                stats.requests += u64::from(decision.deciding().is_none());
            }
        }
        self.refused += u64::from(is_refused);
        self.throttled += u64::from(is_throttled);
        self.queued += u64::from(is_queued);
        self.would_deny += u64::from(would_deny);
        Fate { is_refused, rule }
    }

    fn add_scope(&mut self, scope: &Scope<'_>, now: Nanos) -> u32 {
        let place = self.place(scope);
        let number = self.requests;
        if let Some(rule) = self.rules.get_mut(place as usize) {
            if rule.last != number {
                rule.last = number;
                rule.requests += 1;
            }
            let (used, capacity) = (scope.outcome.status.used, scope.capacity);
            let is_higher = rule.peak.is_none_or(|(most, of, _)| {
                u128::from(used) * u128::from(of.max(1))
                    > u128::from(most) * u128::from(capacity.max(1))
            });
            if is_higher {
                rule.peak = Some((used, capacity, now));
            }
        }
        place
    }

    /// The number of a rule: rules stay where they are while traffic is replayed.
    fn place(&mut self, scope: &Scope<'_>) -> u32 {
        let address = std::ptr::from_ref(scope.rule).addr();
        let next = self.rules.len() as u32;
        let rules = &mut self.rules;
        *self.places.entry(address).or_insert_with(|| {
            // A rule that changed while it was recorded has one line in the report.
            if let Some(place) = rules.iter().position(|rule| rule.id == scope.rule.id) {
                return place as u32;
            }
            rules.push(RuleStats { id: scope.rule.id.clone(), ..RuleStats::default() });
            next
        })
    }

    /// Other rules are in force: addresses of the old ones may be used again.
    pub(crate) fn forget_places(&mut self) {
        self.places.clear();
    }

    /// The number of what refuses without a rule.
    fn place_of_reason(&mut self, reason: Reason) -> u32 {
        let name = match reason {
            Reason::DenyListed => "(deny list)",
            Reason::NoMatch => "(no rule applies)",
            _ => "(other)",
        };
        let next = self.rules.len() as u32;
        let rules = &mut self.rules;
        *self.reasons.entry(name).or_insert_with(|| {
            rules.push(RuleStats { id: name.to_owned(), ..RuleStats::default() });
            next
        })
    }
}

/// Everything that both rule sets did.
pub(crate) struct Tally {
    pub(crate) requests: u64,
    /// Requests that were answered with 429 when they were logged.
    pub(crate) logged_429: u64,
    /// Decisions that a node has recorded.
    pub(crate) recorded: u64,
    /// Those of them that the replay decides differently.
    pub(crate) recorded_differently: u64,
    pub(crate) first: Option<Nanos>,
    pub(crate) last: Nanos,
    pub(crate) clients: Table<ClientStats>,
    pub(crate) tenants: Table<Counts>,
    pub(crate) endpoints: Table<Counts>,
    pub(crate) series: Series,
    pub(crate) busiest_second: Busiest,
    pub(crate) busiest_minute: Busiest,
    label: String,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            requests: 0,
            logged_429: 0,
            recorded: 0,
            recorded_differently: 0,
            first: None,
            last: 0,
            clients: Table::new(MAX_CLIENTS),
            tenants: Table::new(MAX_TENANTS),
            endpoints: Table::new(MAX_ENDPOINTS),
            series: Series::default(),
            busiest_second: Busiest::default(),
            busiest_minute: Busiest::default(),
            label: String::new(),
        }
    }

    /// The number of the client of a request; `None` beyond the most that are counted.
    pub(crate) fn client(&mut self, attributes: &Attributes<'_>) -> Option<u32> {
        let tenant =
            || attributes.get(Known::TenantId).map(|tenant| (Known::TenantId.name(), tenant));
        let label = &mut self.label;
        label.clear();
        match attributes.client().or_else(tenant) {
            Some((kind, value)) => {
                label.push_str(kind);
                label.push(' ');
                label.push_str(value);
            }
            None => label.push_str(NO_CLIENT),
        }
        self.clients.place(label)
    }

    /// Counts what became of a request.
    pub(crate) fn add(
        &mut self,
        at: Nanos,
        attributes: &Attributes<'_>,
        client: Option<u32>,
        refused: [bool; 2],
        rule: u32,
    ) {
        self.requests += 1;
        self.first.get_or_insert(at);
        self.last = at;
        self.clients.at(client).add(at, refused, rule);
        if let Some(tenant) = attributes.get(Known::TenantId) {
            let place = self.tenants.place(tenant);
            self.tenants.at(place).add(refused);
        }
        if let Some(endpoint) = attributes.get(Known::Endpoint) {
            write_endpoint(attributes.get(Known::Method), endpoint, &mut self.label);
            let place = self.endpoints.place(&self.label);
            self.endpoints.at(place).add(refused);
        }
        self.series.add(at, refused);
        self.busiest_second.add(at, 1);
        self.busiest_minute.add(at, 60);
    }
}

/// Method and path, with ids in the path replaced, so that one endpoint has one name.
fn write_endpoint(method: Option<&str>, path: &str, label: &mut String) {
    label.clear();
    if let Some(method) = method {
        label.push_str(method);
        label.push(' ');
    }
    for segment in path.split('/').skip(1) {
        label.push('/');
        label.push_str(if is_id(segment) { "{id}" } else { segment });
    }
}

fn is_id(segment: &str) -> bool {
    let bytes = segment.as_bytes();
    let has_digit = bytes.iter().any(u8::is_ascii_digit);
    has_digit
        && (bytes.iter().all(u8::is_ascii_digit)
            || (bytes.len() >= LEAST_ID_CHARS
                && bytes.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_do_not_make_endpoints() {
        let mut label = String::new();
        for (path, name) in [
            ("/", "GET /"),
            ("/users/17/items", "GET /users/{id}/items"),
            ("/o/550e8400-e29b-41d4-a716-446655440000", "GET /o/{id}"),
            ("/v1/added", "GET /v1/added"),
        ] {
            write_endpoint(Some("GET"), path, &mut label);
            assert_eq!(label, name);
        }
    }

    #[test]
    fn a_run_ends_with_the_first_request_that_passes() {
        let mut client = ClientStats::default();
        for (at, is_refused) in [(0, false), (1, true), (2, true), (7, false), (8, true)] {
            client.add(at, [false, is_refused], 3);
        }
        assert_eq!((client.longest_run, client.longest_outage, client.rule), (2, 6, 3));
        assert_eq!(client.counts.refused, [0, 3]);
    }
}
