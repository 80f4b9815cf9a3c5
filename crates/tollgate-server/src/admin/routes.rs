//! Every admin call, and who may make it.

use std::borrow::Cow;

use http::Method;
use percent_encoding::percent_decode_str;
use tollgate_control::{Kind, Role};

/// What every admin path begins with.
pub(crate) const PREFIX: &str = "/admin/api/v1/rate-limits/";

/// Who is seen most, also without the rest of the prefix: people look for it there.
const TOP: &str = "/admin/api/v1/top";

/// The largest body of a call that changes one thing.
const SMALL_BODY: usize = 2 << 20;
/// The largest body of a call that changes many.
const LARGE_BODY: usize = 32 << 20;

/// Who may make a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Viewers and above.
    View,
    /// Operators and above.
    Operate,
    /// Admins.
    Administer,
    /// Viewers and above, and tenant admins for what is their tenant's own.
    ViewOwn,
    /// Operators and above, and tenant admins for what is their tenant's own.
    OperateOwn,
}

impl Access {
    pub(crate) const fn admits(self, role: Role) -> bool {
        match (self, role) {
            (Self::View | Self::Operate | Self::Administer, Role::TenantAdmin) => false,
            (Self::ViewOwn | Self::OperateOwn, Role::TenantAdmin | Role::Operator)
            | (Self::View | Self::ViewOwn, _)
            | (Self::Operate, Role::Operator)
            | (_, Role::Admin) => true,
            _ => false,
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    List(Kind),
    Post(Kind),
    Get(Kind),
    Put(Kind),
    Delete(Kind),
    Versions,
    Version,
    RollBack,
    Candidate,
    PromoteCandidate,
    HaltCandidate,
    AdvanceCandidate,
    Explain,
    Decide,
    Peek,
    Apply,
    Document,
    Settings,
    PutSetting,
    DeleteSetting,
    Audit,
    AuditExport,
    AuditKey,
    Decisions,
    DecisionFeed,
    Client,
    Usage,
    ResetUsage,
    UsageReport,
    Slots,
    Queue,
    RetryQueued,
    DropQueued,
    Top,
    History,
    Node,
    Nodes,
    Overview,
    Incidents,
    SetLogLevel,
    Events,
    WhoAmI,
    RotateToken,
    Keys(KeyCall),
}

/// What is asked of virtual keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyCall {
    List,
    Create,
    Get,
    Update,
    Delete,
    Rotate,
    Disable,
    Enable,
}

impl KeyCall {
    /// Whether it changes a key that is there.
    pub(crate) const fn changes_one(self) -> bool {
        !matches!(self, Self::List | Self::Get | Self::Create)
    }
}

impl Call {
    /// Whether it changes rules, lists, plans or settings, which a rule file may decide instead.
    pub(crate) const fn changes_rule_set(self) -> bool {
        match self {
            Self::Post(kind) | Self::Put(kind) | Self::Delete(kind) => kind.is_in_set(),
            Self::RollBack
            | Self::PromoteCandidate
            | Self::HaltCandidate
            | Self::AdvanceCandidate
            | Self::Apply
            | Self::PutSetting
            | Self::DeleteSetting => true,
            Self::List(_)
            | Self::Get(_)
            | Self::Versions
            | Self::Version
            | Self::Candidate
            | Self::Explain
            | Self::Decide
            | Self::Peek
            | Self::Document
            | Self::Settings
            | Self::Audit
            | Self::AuditExport
            | Self::AuditKey
            | Self::Decisions
            | Self::DecisionFeed
            | Self::Client
            | Self::Usage
            | Self::ResetUsage
            | Self::UsageReport
            | Self::Slots
            | Self::Queue
            | Self::RetryQueued
            | Self::DropQueued
            | Self::Top
            | Self::History
            | Self::Node
            | Self::Nodes
            | Self::Overview
            | Self::Incidents
            | Self::SetLogLevel
            | Self::Events
            | Self::WhoAmI
            | Self::RotateToken
            // They are in the database, wherever the rules are.
            | Self::Keys(_) => false,
        }
    }
}

/// One admin call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) method: &'static Method,
    /// The path after [`PREFIX`]; `{}` stands for one segment.
    pub(crate) path: &'static str,
    pub(crate) call: Call,
    pub(crate) access: Access,
    pub(crate) max_body: usize,
}

const fn route(method: &'static Method, path: &'static str, call: Call, access: Access) -> Route {
    Route { method, path, call, access, max_body: SMALL_BODY }
}

const fn large(route: Route) -> Route {
    Route { max_body: LARGE_BODY, ..route }
}

const GET: &Method = &Method::GET;
const POST: &Method = &Method::POST;
const PUT: &Method = &Method::PUT;
const DELETE: &Method = &Method::DELETE;

/// All of them.
pub(crate) const ROUTES: &[Route] = &[
    route(GET, "rules", Call::List(Kind::Rule), Access::ViewOwn),
    route(POST, "rules", Call::Post(Kind::Rule), Access::OperateOwn),
    route(POST, "rules/explain", Call::Explain, Access::View),
    route(GET, "rules/{}", Call::Get(Kind::Rule), Access::ViewOwn),
    route(PUT, "rules/{}", Call::Put(Kind::Rule), Access::OperateOwn),
    route(DELETE, "rules/{}", Call::Delete(Kind::Rule), Access::OperateOwn),
    route(GET, "rules/{}/versions", Call::Versions, Access::ViewOwn),
    route(GET, "rules/{}/versions/{}", Call::Version, Access::ViewOwn),
    route(POST, "rules/{}/rollback", Call::RollBack, Access::OperateOwn),
    route(GET, "rules/{}/candidate", Call::Candidate, Access::View),
    route(POST, "rules/{}/candidate/promote", Call::PromoteCandidate, Access::Operate),
    route(POST, "rules/{}/candidate/halt", Call::HaltCandidate, Access::Operate),
    route(POST, "rules/{}/candidate/advance", Call::AdvanceCandidate, Access::Operate),
    large(route(POST, "apply", Call::Apply, Access::Operate)),
    route(GET, "document", Call::Document, Access::View),
    route(GET, "whitelist", Call::List(Kind::Allow), Access::View),
    route(POST, "whitelist", Call::Post(Kind::Allow), Access::Operate),
    route(GET, "whitelist/{}", Call::Get(Kind::Allow), Access::View),
    route(DELETE, "whitelist/{}", Call::Delete(Kind::Allow), Access::Operate),
    route(GET, "blacklist", Call::List(Kind::Deny), Access::View),
    route(POST, "blacklist", Call::Post(Kind::Deny), Access::Operate),
    route(GET, "blacklist/{}", Call::Get(Kind::Deny), Access::View),
    route(DELETE, "blacklist/{}", Call::Delete(Kind::Deny), Access::Operate),
    route(GET, "tiers", Call::List(Kind::Tier), Access::View),
    route(POST, "tiers", Call::Post(Kind::Tier), Access::Operate),
    route(GET, "tiers/{}", Call::Get(Kind::Tier), Access::View),
    route(PUT, "tiers/{}", Call::Put(Kind::Tier), Access::Operate),
    route(DELETE, "tiers/{}", Call::Delete(Kind::Tier), Access::Operate),
    route(GET, "client-tiers", Call::List(Kind::ClientTier), Access::View),
    large(route(POST, "client-tiers", Call::Post(Kind::ClientTier), Access::Operate)),
    route(GET, "client-tiers/{}", Call::Get(Kind::ClientTier), Access::View),
    route(DELETE, "client-tiers/{}", Call::Delete(Kind::ClientTier), Access::Operate),
    route(GET, "grants", Call::List(Kind::Grant), Access::View),
    route(POST, "grants", Call::Post(Kind::Grant), Access::Operate),
    route(GET, "grants/{}", Call::Get(Kind::Grant), Access::View),
    route(DELETE, "grants/{}", Call::Delete(Kind::Grant), Access::Operate),
    route(GET, "settings", Call::Settings, Access::View),
    route(PUT, "settings/{}", Call::PutSetting, Access::Operate),
    route(DELETE, "settings/{}", Call::DeleteSetting, Access::Operate),
    route(GET, "audit", Call::Audit, Access::ViewOwn),
    route(GET, "audit/export", Call::AuditExport, Access::View),
    route(GET, "audit/key", Call::AuditKey, Access::View),
    route(GET, "decisions", Call::Decisions, Access::ViewOwn),
    route(GET, "decisions/feed", Call::DecisionFeed, Access::ViewOwn),
    route(GET, "clients/{}/{}", Call::Client, Access::ViewOwn),
    route(GET, "usage/report", Call::UsageReport, Access::ViewOwn),
    route(GET, "usage/{}/{}", Call::Usage, Access::ViewOwn),
    route(POST, "usage/{}/{}/reset", Call::ResetUsage, Access::OperateOwn),
    route(POST, "decide", Call::Decide, Access::Operate),
    route(POST, "peek", Call::Peek, Access::View),
    route(GET, "slots", Call::Slots, Access::View),
    route(GET, "queue", Call::Queue, Access::Operate),
    route(POST, "queue/{}/retry", Call::RetryQueued, Access::Operate),
    route(DELETE, "queue/{}", Call::DropQueued, Access::Operate),
    route(GET, "top", Call::Top, Access::View),
    route(GET, "history", Call::History, Access::ViewOwn),
    route(GET, "node", Call::Node, Access::View),
    route(GET, "nodes", Call::Nodes, Access::View),
    route(GET, "overview", Call::Overview, Access::View),
    route(GET, "incidents", Call::Incidents, Access::View),
    route(PUT, "node/log-level", Call::SetLogLevel, Access::Operate),
    route(GET, "events", Call::Events, Access::View),
    route(GET, "whoami", Call::WhoAmI, Access::ViewOwn),
    route(GET, "keys", Call::Keys(KeyCall::List), Access::ViewOwn),
    large(route(POST, "keys", Call::Keys(KeyCall::Create), Access::OperateOwn)),
    route(GET, "keys/{}", Call::Keys(KeyCall::Get), Access::ViewOwn),
    route(PUT, "keys/{}", Call::Keys(KeyCall::Update), Access::OperateOwn),
    route(DELETE, "keys/{}", Call::Keys(KeyCall::Delete), Access::OperateOwn),
    route(POST, "keys/{}/rotate", Call::Keys(KeyCall::Rotate), Access::OperateOwn),
    route(POST, "keys/{}/disable", Call::Keys(KeyCall::Disable), Access::OperateOwn),
    route(POST, "keys/{}/enable", Call::Keys(KeyCall::Enable), Access::OperateOwn),
    route(GET, "tokens", Call::List(Kind::Token), Access::Administer),
    route(POST, "tokens", Call::Post(Kind::Token), Access::Administer),
    route(GET, "tokens/{}", Call::Get(Kind::Token), Access::Administer),
    route(POST, "tokens/{}/rotate", Call::RotateToken, Access::Administer),
    route(DELETE, "tokens/{}", Call::Delete(Kind::Token), Access::Administer),
];

/// What a path and a method ask for.
pub(crate) enum Found {
    Route(&'static Route, Vec<String>),
    /// The path takes these methods.
    OtherMethods(Vec<&'static str>),
    Nothing,
}

/// The route of a path, with what stands in its places, decoded.
pub(crate) fn find(method: &Method, path: &str) -> Found {
    let rest = match path {
        TOP => "top",
        path => match path.strip_prefix(PREFIX) {
            Some(rest) => rest,
            None => return Found::Nothing,
        },
    };
    let given: Vec<&str> = rest.split('/').collect();
    let mut others = Vec::new();
    for route in ROUTES {
        let Some(places) = fit(route.path, &given) else { continue };
        if route.method == *method || (*method == Method::HEAD && route.method == GET) {
            return Found::Route(route, places);
        }
        others.push(route.method.as_str());
    }
    if others.is_empty() { Found::Nothing } else { Found::OtherMethods(others) }
}

fn fit(pattern: &str, given: &[&str]) -> Option<Vec<String>> {
    let mut places = Vec::new();
    let mut given = given.iter();
    for segment in pattern.split('/') {
        let value = given.next()?;
        if segment == "{}" {
            let decoded = percent_decode_str(value).decode_utf8().ok()?;
            places.push(Some(decoded).filter(|text| !text.is_empty()).map(Cow::into_owned)?);
        } else if segment != *value {
            return None;
        }
    }
    given.next().is_none().then_some(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_decoded_and_methods_reported() {
        let path = format!("{PREFIX}whitelist/ip%3A10.0.0.0%2F8");
        let Found::Route(route, places) = find(&Method::GET, &path) else { panic!() };
        assert_eq!(
            (route.call, places),
            (Call::Get(Kind::Allow), vec!["ip:10.0.0.0/8".to_owned()])
        );
        let Found::OtherMethods(others) = find(&Method::PATCH, &path) else { panic!() };
        assert_eq!(others, ["GET", "DELETE"]);
        for nothing in ["rules/", "rules//versions", "rule", "rules/a/b/c", ""] {
            let path = format!("{PREFIX}{nothing}");
            assert!(matches!(find(&Method::GET, &path), Found::Nothing), "{nothing}");
        }
    }

    #[test]
    fn roles_are_nested_but_for_tenants() {
        for access in [Access::View, Access::ViewOwn] {
            assert!(access.admits(Role::Viewer) && access.admits(Role::Operator));
        }
        for access in [Access::Operate, Access::OperateOwn] {
            assert!(!access.admits(Role::Viewer) && access.admits(Role::Operator));
        }
        assert!(!Access::Administer.admits(Role::Operator));
        for access in [Access::View, Access::Operate, Access::Administer] {
            assert!(access.admits(Role::Admin) && !access.admits(Role::TenantAdmin));
        }
        assert!(Access::OperateOwn.admits(Role::TenantAdmin));
    }
}
