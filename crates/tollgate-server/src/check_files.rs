//! What a configuration names, looked at as `tollgate config check` does: every file is opened and read as a start would
//! read it, nothing is connected to. Passwords, tokens and certificates of Redis are read with the configuration itself.

use tollgate_gateway::{Gateway, GatewayOptions};
use tollgate_policy::{Action, KeyPart, Known, RuleSet};
use tollgate_tower::identity::ApiKeys;
use tollgate_tower::{Decide, EdgeRequest, Rejection, Ruling};

use crate::config::{Config, ConfigProblem, IdentityConfig, Origin};
use crate::edge::{Callers, EdgeError, check_pool, gateway_options, read_api_keys};
use crate::reload;
use crate::tls::Tls;

/// The most rules that a warning names.
const MAX_NAMED_RULES: usize = 5;

/// What is wrong with the files that a configuration names, and what is odd about them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileReport {
    /// A start would fail.
    pub problems: Vec<ConfigProblem>,
    /// A start would succeed, and do something that is most likely not meant.
    pub warnings: Vec<String>,
}

impl FileReport {
    fn add(&mut self, key: &str, message: &impl ToString) {
        let (name, message) = (key.to_owned(), message.to_string());
        // Many messages begin with the key already.
        let message =
            message.strip_prefix(&format!("{key}: ")).map_or(message.clone(), str::to_owned);
        let origin = Origin::File { name, line: 0, column: 0 };
        self.problems.push(ConfigProblem { origin, key: None, message });
    }
}

/// Opens the files that a configuration names.
pub fn check_files(config: &Config) -> FileReport {
    let mut report = FileReport::default();
    let stores: Vec<String> = config.shared_stores().map(|store| store.name.clone()).collect();
    let mut rules = None;
    if let Some(path) = &config.rules {
        match reload::load(path, &stores) {
            Ok(loaded) => rules = Some(loaded.split().0),
            Err(error) => report.add("rules", &error),
        }
    }
    if let Err(error) = Tls::load(&config.tls) {
        report.add("tls", &error);
    }
    let keys = check_identity(&config.identity, &mut report);
    check_gateway(config, &mut report);
    if let (Some(keys), Some(rules)) = (keys, rules) {
        report.warnings.extend(keys_without_tenant(&keys, &rules));
    }
    report
}

/// Checks the keys of callers and of tokens, each whatever is wrong with the other.
fn check_identity(identity: &IdentityConfig, report: &mut FileReport) -> Option<ApiKeys> {
    let keys = read_api_keys(identity);
    if let Err(error) = &keys {
        report.add("identity.api_keys_file", error);
    }
    let without_keys = IdentityConfig { api_keys_file: None, ..identity.clone() };
    if let Err(error) = Callers::new(&without_keys) {
        report.add("identity", &error);
    }
    keys.ok()
}

/// Checks pools and routes, where there are any: the same configuration may be a decision service's.
fn check_gateway(config: &Config, report: &mut FileReport) {
    if config.gateway.upstream.is_none() && config.gateway.pools.is_empty() {
        return;
    }
    let mut is_readable = true;
    for (name, pool) in &config.gateway.pools {
        if let Err(error) = check_pool(name, pool) {
            report.add(&format!("gateway.pools.{name}"), &error);
            is_readable = false;
        }
    }
    if !is_readable {
        return;
    }
    if let Err(error) = gateway_options(config).and_then(check_options) {
        report.add("gateway", &error);
    }
}

fn check_options(options: GatewayOptions) -> Result<(), EdgeError> {
    let identifier =
        tollgate_tower::Identifier::new(tollgate_tower::identity::IdentityOptions::default());
    let Ok(identifier) = identifier else { return Ok(()) };
    Gateway::new(options, NoDecisions, std::sync::Arc::new(identifier))?;
    Ok(())
}

/// Decides nothing: a gateway that is only checked gets no requests.
struct NoDecisions;

impl Decide for NoDecisions {
    async fn decide(&self, _: &EdgeRequest) -> Ruling {
        let status = http::StatusCode::SERVICE_UNAVAILABLE;
        let message = "this gateway is only being checked";
        Ruling::Refuse(Box::new(Rejection::new(status, "NOT_SERVING", message)))
    }
}

/// A warning about registered keys that rules by tenant do not limit, if there are such keys and rules.
pub(crate) fn keys_without_tenant(keys: &ApiKeys, rules: &RuleSet) -> Option<String> {
    let count = keys.without_tenant();
    let is_by_tenant = |part: &KeyPart| matches!(part, KeyPart::Known(Known::TenantId));
    let by_tenant: Vec<&str> = rules
        .rules()
        .iter()
        .filter(|rule| rule.action != Action::LogOnly && rule.key.iter().any(is_by_tenant))
        .map(|rule| rule.id.as_str())
        .collect();
    if count == 0 || by_tenant.is_empty() {
        return None;
    }
    let more = by_tenant.len().saturating_sub(MAX_NAMED_RULES);
    let named = by_tenant.into_iter().take(MAX_NAMED_RULES).collect::<Vec<_>>().join(", ");
    let named = if more > 0 { format!("{named} and {more} more") } else { named };
    let all = keys.len();
    Some(format!(
        "{count} of {all} registered API keys have no tenant_id: rules that count by tenant do not limit them \
         ({named}); add tenant_id=... to their lines in identity.api_keys_file"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_without_a_tenant_are_warned_about_under_rules_by_tenant() {
        let line = |digit: &str, owner: &str| format!("sha256:{} {owner}\n", digit.repeat(64));
        let both = line("a", "tenant_id=acme") + &line("b", "user_id=ann");
        let keys = ApiKeys::parse(&both).unwrap();
        let rules = |text: &str| RuleSet::from_yaml(text, "test").unwrap();
        let by_tenant = rules(
            "rules: [{rule_id: t, identifier_type: tenant_id, limit: 1, window: 1m, algorithm: fixed_window},
                     {rule_id: c, identifier_type: composite, key_by: [tenant_id, model_id], limit: 1, window: 1m, algorithm: fixed_window}]",
        );
        let warning = keys_without_tenant(&keys, &by_tenant).unwrap();
        assert!(warning.contains("1 of 2") && warning.contains("(t, c)"), "{warning}");
        let by_user = rules(
            "rules: [{rule_id: u, identifier_type: user_id, limit: 1, window: 1m, algorithm: fixed_window},
                     {rule_id: l, identifier_type: tenant_id, limit: 1, window: 1m, algorithm: fixed_window, action: log_only}]",
        );
        assert_eq!(keys_without_tenant(&keys, &by_user), None);
        let all = ApiKeys::parse(&line("a", "tenant_id=acme")).unwrap();
        assert_eq!(keys_without_tenant(&all, &by_tenant), None);
    }
}
