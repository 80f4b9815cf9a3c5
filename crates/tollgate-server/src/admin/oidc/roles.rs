//! From what an ID token says to what its person may do here.

use tollgate_control::Role;
use tollgate_tower::identity::IdClaims;

use crate::config::{OidcConfig, TenantSource};

/// The longest name of a person or a tenant.
const MAX_NAME_BYTES: usize = 256;

/// What a person may do here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Granted {
    pub(super) role: Role,
    pub(super) tenant: Option<String>,
}

/// The role of the first entry that fits; none: no entry does.
pub(super) fn granted(config: &OidcConfig, claims: &IdClaims) -> Option<Granted> {
    config.roles.iter().find_map(|mapping| {
        let claim = mapping.claim.as_deref().unwrap_or(&config.groups_claim);
        if !claims.texts(claim).contains(&mapping.group.as_str()) {
            return None;
        }
        let tenant = match &mapping.tenant {
            TenantSource::None => None,
            TenantSource::Named(tenant) => Some(tenant.clone()),
            // Without a usable tenant it does not fit: a tenant admin of no tenant would be one of all.
            TenantSource::Claim(claim) => {
                let tenant = claims.text(claim).filter(|tenant| is_tenant(tenant))?;
                Some(tenant.to_owned())
            }
        };
        Some(Granted { role: mapping.role, tenant })
    })
}

fn is_tenant(text: &str) -> bool {
    is_name(text) && !text.contains(':')
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_NAME_BYTES && !text.chars().any(char::is_control)
}

/// What the audit log calls the person: the email address, unless the provider says that it is not verified; else what
/// the provider knows the person by.
pub(super) fn name_of(claims: &IdClaims) -> &str {
    let email = claims.text("email").filter(|email| is_name(email));
    email.filter(|_| !claims.denies("email_verified")).unwrap_or_else(|| claims.subject())
}
