//! Single sign-on to the console: which provider, and which of its groups gets which role.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_control::Role;
use tollgate_core::{Nanos, SECOND};
use tollgate_tower::identity::{IdentityError, issuer_uri};

use super::problem::Origin;
use super::read::{Reader, Said};
use super::show::HIDDEN;
use super::{Config, Secret};
use crate::admin::OIDC_CALLBACK;

/// The shortest secret. The provider made it, so it is long.
const MIN_SECRET_BYTES: usize = 16;
/// The most entries of `oidc.roles`.
const MAX_ROLES: usize = 1_000;
/// The most entries of `oidc.scopes`.
const MAX_SCOPES: usize = 20;
/// The longest text of this section.
const MAX_TEXT_BYTES: usize = 1_024;

/// How long a session may last.
const LIFETIMES: std::ops::RangeInclusive<Nanos> = SECOND..=30 * 86_400 * SECOND;

/// The values of `oidc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcConfig {
    /// The provider; none: no single sign-on.
    pub issuer: Option<String>,
    /// What the provider calls this client.
    pub client_id: String,
    /// Shows the provider that it is this client.
    pub client_secret: Secret,
    /// Where the provider sends browsers back to.
    pub redirect_uri: String,
    /// What is asked for.
    pub scopes: Vec<String>,
    /// The claim with the groups.
    pub groups_claim: String,
    /// Which group gets which role; the first that fits.
    pub roles: Vec<RoleMapping>,
    /// How long a session lasts.
    pub session_ttl: Duration,
}

/// The role of the people in a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleMapping {
    /// The claim to look at; none: the one with the groups.
    pub claim: Option<String>,
    /// What it must hold.
    pub group: String,
    /// The role.
    pub role: Role,
    /// The tenant of a tenant admin.
    pub tenant: TenantSource,
}

/// Where the tenant of a tenant admin comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantSource {
    /// Another role, which has none.
    None,
    /// This one.
    Named(String),
    /// The one that a claim names.
    Claim(String),
}

/// An entry of `oidc.roles` as typed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypedMapping {
    claim: Option<String>,
    group: String,
    role: String,
    tenant: Option<String>,
    tenant_claim: Option<String>,
}

/// Checks `oidc`.
pub(super) fn check(reader: &mut Reader) -> OidcConfig {
    let roles_origin = reader.origin("oidc.roles");
    let mut required = Required { reader, origin: None, missing: Vec::new() };
    let issuer = required.text("oidc.issuer");
    let client_id = required.text("oidc.client_id");
    let redirect_uri = required.text("oidc.redirect_uri");
    let Required { origin, missing, .. } = required;
    let client_secret = secret(reader);
    if let Some(Said { value, origin }) = &issuer {
        check_issuer(reader, value, origin);
    }
    if let Some(Said { value, origin }) = &redirect_uri {
        check_redirect(reader, value, origin);
    }
    let scopes: Vec<String> =
        reader.texts("oidc.scopes", MAX_SCOPES).into_iter().map(|said| said.value).collect();
    let roles = roles(reader, roles_origin.as_ref());
    if let Some(origin) = &origin {
        for key in missing {
            reader.wrong(origin, key, "is missing: single sign-on needs it");
        }
        // One whose file cannot be read is reported already.
        if client_secret.text.is_none() && client_secret.file.is_none() {
            let message = "is missing: single sign-on needs it, or client_secret_file";
            reader.wrong(origin, "oidc.client_secret", message);
        }
        if !scopes.iter().any(|scope| scope == "openid") {
            reader.wrong(origin, "oidc.scopes", "must have openid among them");
        }
        if roles.is_empty() {
            let message = "is empty: nobody could sign in; name a group and its role";
            reader.wrong(origin, "oidc.roles", message);
        }
    }
    let text = |said: Option<Said<String>>| said.map(|said| said.value);
    let groups_claim = reader
        .parsed("oidc.groups_claim", "the name of a claim", |text| {
            Some(text.to_owned()).filter(|text| is_usable(text))
        })
        .map_or_else(String::new, |said| said.value);
    OidcConfig {
        issuer: text(issuer),
        client_id: text(client_id).unwrap_or_default(),
        client_secret,
        redirect_uri: text(redirect_uri).unwrap_or_default(),
        scopes,
        groups_claim,
        roles,
        session_ttl: session_ttl(reader),
    }
}

fn session_ttl(reader: &mut Reader) -> Duration {
    let parse =
        |text: &str| tollgate_policy::parse_duration(text).ok().filter(|it| LIFETIMES.contains(it));
    let wanted = "a length such as 30m or 8h, from 1s to 30d";
    let nanos = reader.parsed("oidc.session_ttl", wanted, parse).map_or(0, |said| said.value);
    Duration::from_nanos(nanos)
}

/// Texts that come together: if one is there, the others must be.
struct Required<'r> {
    reader: &'r mut Reader,
    /// Where the first one was said.
    origin: Option<Origin>,
    missing: Vec<&'static str>,
}

impl Required<'_> {
    fn text(&mut self, key: &'static str) -> Option<Said<String>> {
        let said = self.reader.optional_text(key, "text or null");
        let Some(said) = said else {
            self.missing.push(key);
            return None;
        };
        if !is_usable(&said.value) {
            let message = "must have 1 to 1024 bytes and no spaces or control characters";
            self.reader.wrong(&said.origin, key, message);
        }
        self.origin.get_or_insert_with(|| said.origin.clone());
        Some(said)
    }
}

fn is_usable(text: &str) -> bool {
    let is_plain = |letter: char| !letter.is_control() && !letter.is_whitespace();
    !text.is_empty() && text.len() <= MAX_TEXT_BYTES && text.chars().all(is_plain)
}

fn secret(reader: &mut Reader) -> Secret {
    let key = "oidc.client_secret";
    let given = reader.optional_text(key, "text or null");
    let from_file = Secret::read(reader, "oidc.client_secret_file", MIN_SECRET_BYTES);
    let Some(Said { value, origin }) = given else { return from_file };
    if from_file.file.is_some() {
        reader.wrong(&origin, key, "and client_secret_file are both set: choose one");
    } else if value.len() < MIN_SECRET_BYTES {
        // It is not repeated.
        reader.wrong(&origin, key, format!("must have at least {MIN_SECRET_BYTES} bytes"));
    }
    Secret { file: None, text: Some(value) }
}

fn check_issuer(reader: &mut Reader, value: &str, origin: &Origin) {
    if let Err(error) = issuer_uri(value, false) {
        let why = match error {
            IdentityError::Url(why) => why.to_owned(),
            other => other.to_string(),
        };
        reader.wrong(origin, "oidc.issuer", format!("must be the URL of a provider: {why}"));
    } else if value.contains(['?', '#']) {
        reader.wrong(origin, "oidc.issuer", "must not have a query or a fragment");
    }
}

fn check_redirect(reader: &mut Reader, value: &str, origin: &Origin) {
    let key = "oidc.redirect_uri";
    match issuer_uri(value, false) {
        Ok((uri, _)) if !value.contains(['?', '#']) && uri.path() == OIDC_CALLBACK => {}
        Ok(_) => {
            let message = format!("must end with {OIDC_CALLBACK} right after the host");
            reader.wrong(origin, key, message);
        }
        Err(_) => {
            let message = format!(
                "must be https://HOST{OIDC_CALLBACK}, where HOST is this server's name in browsers; \
                 http:// is accepted for this host alone"
            );
            reader.wrong(origin, key, message);
        }
    }
}

fn roles(reader: &mut Reader, origin: Option<&Origin>) -> Vec<RoleMapping> {
    let key = "oidc.roles";
    let wanted = "a list of entries such as {group: sre, role: operator}";
    let typed: Vec<TypedMapping> = reader.document(key, wanted).unwrap_or_default();
    let Some(origin) = origin else { return Vec::new() };
    if typed.len() > MAX_ROLES {
        reader.wrong(origin, key, format!("must not have more than {MAX_ROLES} entries"));
    }
    let mut roles = Vec::new();
    for (place, typed) in typed.into_iter().take(MAX_ROLES).enumerate() {
        match mapping(typed) {
            Ok(mapping) => roles.push(mapping),
            Err(problem) => {
                reader.wrong(origin, key, format!("entry {}: {problem}", place + 1));
            }
        }
    }
    roles
}

fn mapping(typed: TypedMapping) -> Result<RoleMapping, String> {
    let TypedMapping { claim, group, role, tenant, tenant_claim } = typed;
    if group.is_empty() || group.len() > MAX_TEXT_BYTES {
        return Err(format!("group must have 1 to {MAX_TEXT_BYTES} bytes"));
    }
    let Some(role) = Role::from_name(&role) else {
        let known = Role::ALL.map(Role::name).join(", ");
        return Err(format!("role must be one of {known}, not {role:?}"));
    };
    for (name, text) in [("claim", &claim), ("tenant", &tenant), ("tenant_claim", &tenant_claim)] {
        if text.as_ref().is_some_and(|text| !is_usable(text)) {
            return Err(format!("{name} must have 1 to {MAX_TEXT_BYTES} bytes and no spaces"));
        }
    }
    let tenant = match (role, tenant, tenant_claim) {
        (Role::TenantAdmin, Some(tenant), None) if tenant.contains(':') => {
            return Err("the tenant of a tenant_admin must not have a colon".to_owned());
        }
        (Role::TenantAdmin, Some(tenant), None) => TenantSource::Named(tenant),
        (Role::TenantAdmin, None, Some(claim)) => TenantSource::Claim(claim),
        (Role::TenantAdmin, ..) => {
            return Err("a tenant_admin needs tenant or tenant_claim, and not both".to_owned());
        }
        (_, None, None) => TenantSource::None,
        _ => return Err("tenant and tenant_claim are for the role tenant_admin".to_owned()),
    };
    Ok(RoleMapping { claim, group, role, tenant })
}

#[derive(Serialize)]
pub(super) struct ShownOidc {
    issuer: Option<String>,
    client_id: Option<String>,
    client_secret: Option<&'static str>,
    client_secret_file: Option<String>,
    redirect_uri: Option<String>,
    scopes: Vec<String>,
    groups_claim: String,
    roles: Vec<ShownMapping>,
    session_ttl: String,
}

#[derive(Serialize)]
struct ShownMapping {
    #[serde(skip_serializing_if = "Option::is_none")]
    claim: Option<String>,
    group: String,
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_claim: Option<String>,
}

impl From<&RoleMapping> for ShownMapping {
    fn from(mapping: &RoleMapping) -> Self {
        let (tenant, tenant_claim) = match &mapping.tenant {
            TenantSource::None => (None, None),
            TenantSource::Named(tenant) => (Some(tenant.clone()), None),
            TenantSource::Claim(claim) => (None, Some(claim.clone())),
        };
        let (claim, group, role) =
            (mapping.claim.clone(), mapping.group.clone(), mapping.role.name());
        Self { claim, group, role, tenant, tenant_claim }
    }
}

impl Config {
    pub(super) fn shown_oidc(&self) -> ShownOidc {
        let oidc = &self.oidc;
        let said = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let file = oidc.client_secret.file.as_ref();
        let is_inline = file.is_none() && oidc.client_secret.text.is_some();
        ShownOidc {
            issuer: oidc.issuer.clone(),
            client_id: said(&oidc.client_id),
            client_secret: is_inline.then_some(HIDDEN),
            client_secret_file: file.map(|path| path.display().to_string()),
            redirect_uri: said(&oidc.redirect_uri),
            scopes: oidc.scopes.clone(),
            groups_claim: oidc.groups_claim.clone(),
            roles: oidc.roles.iter().map(ShownMapping::from).collect(),
            session_ttl: format!("{}s", oidc.session_ttl.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::config::Overrides;

    fn load(text: &str) -> Result<Config, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let config = Config::load(Some(file.path()), std::iter::empty(), &Overrides::default());
        config.map_err(|problems| problems.to_string())
    }

    /// A section that is right, with one line more.
    fn with(line: &str) -> String {
        let key = line.split(':').next().unwrap_or_default();
        let usual = [
            "issuer: https://login.example/realm",
            "client_id: tollgate",
            "client_secret: 0123456789abcdef",
            "redirect_uri: https://gate.example/admin/api/v1/oidc/callback",
            "roles: [{group: sre, role: operator}]",
        ];
        let rest = usual.iter().filter(|one| !one.starts_with(&format!("{key}:")));
        let lines: Vec<&str> = rest.copied().chain([line]).collect();
        format!("oidc:\n  {}\n", lines.join("\n  "))
    }

    #[test]
    fn what_is_configured_is_shown_without_its_secret() {
        let line = "roles: [{group: a, role: admin}, {claim: job, group: b, role: tenant_admin, tenant_claim: org}]";
        let config = load(&with(line)).unwrap();
        assert_eq!(config.oidc.roles.len(), 2);
        assert_eq!(config.oidc.session_ttl, Duration::from_hours(8));
        for shown in [config.to_yaml(), format!("{config:?}")] {
            assert!(!shown.contains("0123456789abcdef"), "{shown}");
            assert!(shown.contains("https://login.example/realm"), "{shown}");
        }
        assert!(config.to_yaml().contains("(hidden)"));
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_key() {
        let wrong = [
            ("issuer: http://login.example", "oidc.issuer: must be the URL of a provider"),
            ("issuer: https://ann:secret@login.example", "oidc.issuer"),
            ("issuer: https://login.example?x", "oidc.issuer: must not have a query"),
            ("issuer: null", "oidc.issuer: is missing"),
            ("client_id: null", "oidc.client_id: is missing"),
            ("client_id: ''", "oidc.client_id: must have 1 to"),
            ("client_secret: null", "oidc.client_secret: is missing"),
            ("client_secret: short", "oidc.client_secret: must have at least 16 bytes"),
            ("redirect_uri: null", "oidc.redirect_uri: is missing"),
            ("redirect_uri: http://gate.example/admin/api/v1/oidc/callback", "oidc.redirect_uri"),
            ("redirect_uri: https://gate.example/other", "oidc.redirect_uri: must end with"),
            (
                "redirect_uri: https://gate.example/admin/api/v1/oidc/callback?x=1",
                "oidc.redirect_uri",
            ),
            ("scopes: [email]", "oidc.scopes: must have openid"),
            ("groups_claim: ''", "oidc.groups_claim"),
            ("session_ttl: 90d", "oidc.session_ttl"),
            ("session_ttl: 0s", "oidc.session_ttl"),
            ("roles: []", "oidc.roles: is empty"),
            ("roles: [{group: a, role: root}]", "entry 1: role must be one of"),
            ("roles: [{group: '', role: admin}]", "entry 1: group"),
            ("roles: [{group: a, role: tenant_admin}]", "needs tenant or tenant_claim"),
            ("roles: [{group: a, role: tenant_admin, tenant: 'a:b'}]", "colon"),
            ("roles: [{group: a, role: admin, tenant: acme}]", "are for the role tenant_admin"),
            ("roles: [{group: a, role: admin, rank: 1}]", "oidc.roles"),
        ];
        for (line, expected) in wrong {
            let problems = load(&with(line)).expect_err(line);
            assert!(problems.contains(expected), "{line}: {problems}");
            assert!(!problems.contains("0123456789abcdef"), "{problems}");
        }
        load(&with("issuer: http://127.0.0.1:9000")).unwrap();
        load(&with("redirect_uri: http://localhost:8080/admin/api/v1/oidc/callback")).unwrap();
        let both = with("client_secret_file: /nowhere");
        assert!(load(&both).unwrap_err().contains("both set"));
    }
}
