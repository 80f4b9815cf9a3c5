//! A rule set: everything compiled from one rule file.

use std::sync::Arc;

use hashbrown::HashMap;
use tollgate_core::Nanos;

use crate::compile_rule::RULE_PREFIX;
use crate::index::Index;
use crate::lists::{List, parse_address};
use crate::missing::KeyNeeds;
use crate::model::STANDARD_SCOPES;
use crate::raw::RuleFile;
use crate::resolve::Rank;
use crate::tiers::Tiers;
use crate::virtual_keys::VirtualKeys;
use crate::{
    Attributes, ClientTiers, EnvoyOptions, Grant, Known, ListEntry, ListMatch, NoMatch, Problems,
    Rule,
};

/// Everything compiled from one rule file: immutable, to be swapped as a whole.
#[derive(Debug, Clone, Default)]
pub struct RuleSet {
    pub(crate) rules: Vec<Rule>,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) index: Index,
    pub(crate) default_rule: Option<Rule>,
    by_id: HashMap<Box<str>, u32>,
    deny: List,
    allow: List,
    pub(crate) tiers: Tiers,
    client_tiers: Arc<ClientTiers>,
    pub(crate) virtual_keys: Arc<VirtualKeys>,
    grants: Vec<Grant>,
    no_match: NoMatch,
    digest: u64,
    pub(crate) key_needs: KeyNeeds,
    has_hard_budgets: bool,
}

/// The parts of a rule set, checked one by one.
pub(crate) struct Parts {
    pub(crate) rules: Vec<Rule>,
    pub(crate) default_rule: Option<Rule>,
    pub(crate) deny: List,
    pub(crate) allow: List,
    pub(crate) tiers: Tiers,
    pub(crate) grants: Vec<Grant>,
    pub(crate) no_match: NoMatch,
    pub(crate) digest: u64,
}

impl RuleSet {
    /// Checks a rule file and prepares it; reports everything that is wrong with it.
    pub fn compile(file: &RuleFile) -> Result<Self, Problems> {
        crate::compile::compile(file).map(Self::assemble)
    }

    /// Both stages: reads the text (YAML or JSON) and compiles it. `source` names it in problems.
    pub fn from_yaml(text: &str, source: &str) -> Result<Self, Problems> {
        crate::compile::read_and_compile(text, source).map(Self::assemble)
    }

    /// The set of an empty rule file: the default rule alone.
    pub fn builtin() -> Self {
        Self::from_yaml("", "built-in").unwrap_or_default()
    }

    pub(crate) fn assemble(parts: Parts) -> Self {
        let Parts { rules, default_rule, deny, allow, tiers, grants, no_match, digest } = parts;
        let ranks = ranks(&rules);
        let by_id = |(place, rule): (usize, &Rule)| (rule.id.as_str().into(), place as u32);
        let by_id = rules.iter().enumerate().map(by_id).collect();
        let index = Index::new(&rules);
        let key_needs = KeyNeeds::of(&rules);
        let has_hard_budgets = rules.iter().chain(&default_rule).any(Rule::is_hard_budget);
        let client_tiers = Arc::default();
        Self {
            rules,
            ranks,
            index,
            default_rule,
            by_id,
            deny,
            allow,
            tiers,
            client_tiers,
            virtual_keys: Arc::default(),
            grants,
            no_match,
            digest,
            key_needs,
            has_hard_budgets,
        }
    }

    /// Continues the figures of candidates that are still tried.
    pub fn continue_agreements(&mut self, before: &Self) {
        for rule in &mut self.rules {
            let Some(candidate) = &mut rule.candidate else { continue };
            let same = before.rule(&rule.id).and_then(|rule| rule.candidate.as_ref());
            if let Some(same) = same.filter(|same| same.is_same(candidate)) {
                candidate.agreement = Arc::clone(&same.agreement);
            }
        }
    }

    /// Whether a request with these attributes may meet a hard budget: of the file, or of its virtual key.
    #[inline]
    pub fn may_meet_hard_budget(&self, request: &Attributes<'_>) -> bool {
        let key = || self.virtual_keys.get(request.get(Known::ApiKey)?);
        self.has_hard_budgets
            || key().is_some_and(|key| key.rules().iter().any(Rule::is_hard_budget))
    }

    /// Where the request is listed: the deny list comes first.
    pub fn listed(&self, request: &Attributes<'_>, now: Nanos) -> Option<ListMatch<'_>> {
        if self.deny.entries().is_empty() && self.allow.entries().is_empty() {
            return None;
        }
        let wants_address = self.deny.has_networks() || self.allow.has_networks();
        let address = request.get(Known::Ip).filter(|_| wants_address).and_then(parse_address);
        let denied = self.deny.find(request, address, now).map(ListMatch::Denied);
        denied.or_else(|| self.allow.find(request, address, now).map(ListMatch::Allowed))
    }

    /// The tier of a request: the stated one, else that of its key, user or tenant by the file, else
    /// by [`RuleSet::client_tiers`], else the default tier.
    pub fn tier_of<'a>(&'a self, request: &Attributes<'a>) -> Option<&'a str> {
        let stated = request.get(Known::Tier);
        let found = stated.or_else(|| self.tiers.of(request).map(|(_, tier)| tier));
        let found = found.or_else(|| self.client_tiers.of(request).map(|(_, tier)| tier));
        found.or(self.tiers.default.as_deref())
    }

    /// The tiers of clients that are kept beside the file.
    pub fn client_tiers(&self) -> &Arc<ClientTiers> {
        &self.client_tiers
    }

    /// Puts tiers of clients beside the file.
    pub fn set_client_tiers(&mut self, tiers: Arc<ClientTiers>) {
        self.client_tiers = tiers;
    }

    /// The active rules, in the order of the file, without the default rule.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The active rule of this id; the default rule too.
    pub fn rule(&self, id: &str) -> Option<&Rule> {
        let found = self.by_id.get(id).and_then(|place| self.rules.get(*place as usize));
        found.or_else(|| self.default_rule.as_ref().filter(|rule| rule.id == id))
    }

    /// What happens to a request that nothing applies to.
    pub fn no_match(&self) -> NoMatch {
        self.no_match
    }

    /// The system default, unless the file switched it off.
    pub fn default_rule(&self) -> Option<&Rule> {
        self.default_rule.as_ref()
    }

    /// The entries of the deny list.
    pub fn deny_list(&self) -> &[ListEntry] {
        self.deny.entries()
    }

    /// The entries of the allow list.
    pub fn allow_list(&self) -> &[ListEntry] {
        self.allow.entries()
    }

    /// The grants, those that have expired included.
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Whether some rule names this domain.
    pub fn knows_domain(&self, domain: &str) -> bool {
        self.rules_of_domain(domain).next().is_some()
    }

    /// How imported rules that name this domain answer Envoy; none if no imported rule names it.
    pub fn envoy_options(&self, domain: &str) -> Option<&EnvoyOptions> {
        self.rules_of_domain(domain).find_map(|rule| rule.envoy.as_deref())
    }

    fn rules_of_domain(&self, domain: &str) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| {
            let mut lists = rule.matcher.known.iter();
            lists.any(|(known, values)| {
                *known == Known::Domain && values.iter().any(|value| **value == *domain)
            })
        })
    }

    /// A hash of the content: the same for files that differ in comments, layout or the order of
    /// fields only.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

/// The place of each rule in every order that resolution needs.
fn ranks(rules: &[Rule]) -> Vec<Rank> {
    let mut ids: Vec<&str> = rules.iter().map(|rule| rule.id.as_str()).collect();
    ids.sort_unstable();
    let order =
        |scope: &str| STANDARD_SCOPES.iter().position(|s| *s == scope).unwrap_or(usize::MAX);
    let mut scopes: Vec<&str> = rules.iter().map(|rule| rule.scope.as_str()).collect();
    scopes.sort_unstable_by_key(|scope| (order(scope), *scope));
    scopes.dedup();
    let places: HashMap<&str, u32> =
        scopes.iter().enumerate().map(|(place, scope)| (*scope, place as u32)).collect();
    let place_of = |scope: &str| places.get(scope).copied();
    let contest = |rule: &Rule| {
        let scope = place_of(&rule.scope).unwrap_or(u32::MAX);
        u64::from(rule.is_log_only()) << u32::BITS | u64::from(scope)
    };
    let rank = |rule: &Rule| Rank {
        scope: place_of(&rule.scope).unwrap_or(u32::MAX),
        contest: contest(rule),
        constrained_fields: rule.matcher.constrained_fields(),
        priority: rule.priority,
        id: ids.binary_search(&rule.id.as_str()).unwrap_or(0) as u32,
        is_log_only: rule.is_log_only(),
        overrides: rule.overrides.iter().filter_map(|scope| place_of(scope)).collect(),
        replaced_rules: rule
            .overrides
            .iter()
            .filter_map(|named| named.strip_prefix(RULE_PREFIX))
            .filter_map(|id| ids.binary_search(&id).ok())
            .map(|place| place as u32)
            .collect(),
    };
    rules.iter().map(rank).collect()
}
