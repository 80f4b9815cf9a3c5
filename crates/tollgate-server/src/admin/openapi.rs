//! The admin API described: every route of the table, so that none is left out.

use serde_json::{Map, Value, json};
use tollgate_control::{Kind, Role};
use tollgate_policy::Known;

use super::openapi_session;
use super::read::MAX_LIMIT;
use super::routes::{Access, Call, KeyCall, PREFIX, ROUTES, Route};
use super::schemas::{body_of, reference, rule_example, schemas, text};

/// Adds the admin API to a description of the other calls.
pub(crate) fn describe(document: &mut Value) {
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    if let Some(paths) = paths {
        for route in ROUTES {
            let (path, operation) = (path_of(route), operation(route));
            let item = paths.entry(path).or_insert_with(|| json!({}));
            if let Some(item) = item.as_object_mut() {
                item.insert(route.method.as_str().to_ascii_lowercase(), operation);
            }
        }
        paths.extend(openapi_session::paths());
    }
    let components = document.get_mut("components").and_then(Value::as_object_mut);
    if let Some(components) = components {
        components.insert(
            "securitySchemes".to_owned(),
            json!({ "admin": { "type": "http", "scheme": "bearer",
                "description": "An admin token; its role says what it may do" } }),
        );
        let known = components.entry("schemas").or_insert_with(|| json!({}));
        if let Some(known) = known.as_object_mut() {
            known.extend(schemas());
        }
    }
}

/// The names of what stands in a path.
fn places(call: Call) -> &'static [&'static str] {
    match call {
        Call::Get(kind) | Call::Put(kind) | Call::Delete(kind) => match kind {
            Kind::Rule => &["rule_id"],
            Kind::Tier => &["name"],
            Kind::Grant => &["grant_id"],
            Kind::Token => &["token_id"],
            _ => &["id"],
        },
        Call::Versions
        | Call::RollBack
        | Call::Candidate
        | Call::PromoteCandidate
        | Call::HaltCandidate
        | Call::AdvanceCandidate => &["rule_id"],
        Call::Version => &["rule_id", "version"],
        Call::PutSetting | Call::DeleteSetting => &["name"],
        Call::Usage | Call::ResetUsage | Call::Client => &["identifier_type", "identifier"],
        Call::RotateToken => &["token_id"],
        Call::Keys(call) if !matches!(call, KeyCall::List | KeyCall::Create) => &["id"],
        Call::RetryQueued | Call::DropQueued => &["ticket"],
        _ => &[],
    }
}

fn path_of(route: &Route) -> String {
    let mut path = route.path.to_owned();
    for place in places(route.call) {
        path = path.replacen("{}", &format!("{{{place}}}"), 1);
    }
    format!("{PREFIX}{path}")
}

fn operation(route: &Route) -> Value {
    let described = Described::of(route.call);
    let mut operation = Map::new();
    operation.insert("tags".to_owned(), json!(["admin"]));
    operation.insert("operationId".to_owned(), operation_id(route).into());
    operation.insert("summary".to_owned(), described.summary.into());
    operation.insert("description".to_owned(), who(route.access).into());
    operation.insert("security".to_owned(), json!([{ "admin": [] }]));
    operation.insert("parameters".to_owned(), Value::Array(parameters(route, &described)));
    if let Some((schema, example)) = &described.body {
        let content = json!({ "application/json": { "schema": schema, "example": example } });
        operation.insert("requestBody".to_owned(), json!({ "required": true, "content": content }));
    }
    operation.insert("responses".to_owned(), responses(route, &described));
    Value::Object(operation)
}

fn operation_id(route: &Route) -> String {
    let path = route.path.replace("{}", "one").replace(['/', '-'], "_");
    format!("admin_{}_{path}", route.method.as_str().to_ascii_lowercase())
}

fn who(access: Access) -> String {
    let roles: Vec<&str> =
        Role::ALL.into_iter().filter(|role| access.admits(*role)).map(Role::name).collect();
    format!("Roles: {}.", roles.join(", "))
}

/// What a call does, takes and gives.
pub(super) struct Described {
    pub(super) summary: &'static str,
    pub(super) query: Vec<(&'static str, Value)>,
    pub(super) body: Option<(Value, Value)>,
    /// The schema of a success.
    pub(super) answer: Value,
    /// 201 beside 200.
    pub(super) creates: bool,
    /// Takes conditions, and can be tried.
    pub(super) changes: bool,
}

pub(super) fn page() -> Vec<(&'static str, Value)> {
    vec![
        ("limit", json!({ "type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": 100 })),
        ("cursor", json!({ "type": "string", "description": "next_cursor of the page before" })),
    ]
}

fn times() -> [(&'static str, Value); 2] {
    let instant = json!({ "type": "string", "format": "date-time" });
    [("from", instant.clone()), ("until", instant)]
}

pub(super) fn pages(name: &str) -> Value {
    pages_with(name, [])
}

/// A page with further fields.
fn pages_with<const N: usize>(name: &str, fields: [(&str, Value); N]) -> Value {
    let mut properties = Map::new();
    properties.insert("items".to_owned(), json!({ "type": "array", "items": reference(name) }));
    properties.insert("next_cursor".to_owned(), json!({ "type": ["string", "null"] }));
    properties.extend(fields.map(|(name, schema)| (name.to_owned(), schema)));
    json!({ "type": "object", "required": ["items", "next_cursor"], "properties": properties })
}

const fn schema_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Rule => "AdminRule",
        Kind::Allow | Kind::Deny => "AdminListEntry",
        Kind::Tier => "AdminTier",
        Kind::ClientTier => "AdminClientTier",
        Kind::Grant => "AdminGrant",
        Kind::Setting => "AdminSetting",
        Kind::Key => "AdminKey",
        Kind::Token | Kind::Usage => "AdminToken",
    }
}

impl Described {
    pub(super) const fn plain(summary: &'static str, answer: Value) -> Self {
        Self { summary, query: Vec::new(), body: None, answer, creates: false, changes: false }
    }

    #[expect(clippy::too_many_lines, reason = "a table")]
    fn of(call: Call) -> Self {
        let any = || json!({ "type": "object" });
        match call {
            Call::List(kind) => {
                let mut query = page();
                query.push(("prefix", text()));
                match kind {
                    Kind::Rule => query.push(("tenant_id", text())),
                    Kind::ClientTier => query.push(("tier", text())),
                    _ => {}
                }
                let summary = "List, by id, page by page";
                Self { query, ..Self::plain(summary, pages(schema_of(kind))) }
            }
            Call::Get(kind) => Self::plain("Get one", reference(schema_of(kind))),
            Call::Post(Kind::Token) => Self {
                body: Some(body_of(Kind::Token)),
                creates: true,
                ..Self::plain("Make a token; its secret is shown once", reference("AdminSecret"))
            },
            Call::Post(kind) => Self {
                body: Some(body_of(kind)),
                creates: true,
                changes: true,
                ..Self::plain("Create or replace", put_answer(kind))
            },
            Call::Put(kind) => Self {
                body: Some(body_of(kind)),
                changes: true,
                ..Self::plain("Replace", put_answer(kind))
            },
            Call::Delete(Kind::Token) => Self::plain("End a token", reference("AdminToken")),
            Call::Delete(_) | Call::DeleteSetting => {
                Self { changes: true, ..Self::plain("Delete", deleted()) }
            }
            Call::RotateToken => Self::plain("Give a token a new secret", reference("AdminSecret")),
            Call::Versions => Self {
                query: page(),
                ..Self::plain(
                    "Versions of a rule, the newest first",
                    pages_with(
                        "AdminVersion",
                        [(
                            "removed",
                            json!({ "anyOf": [reference("AdminCheckpoint"), { "type": "null" }] }),
                        )],
                    ),
                )
            },
            Call::Version => Self::plain("One version of a rule", reference("AdminVersion")),
            Call::RollBack => Self {
                body: Some((
                    json!({ "type": "object", "required": ["version"], "additionalProperties": false,
                        "properties": { "version": { "type": "integer", "minimum": 1 } } }),
                    json!({ "version": 1 }),
                )),
                changes: true,
                ..Self::plain("Put a rule back to an earlier version", put_answer(Kind::Rule))
            },
            Call::Explain => Self {
                body: Some((
                    reference("AllowBody"),
                    json!({ "userId": "ann", "modelId": "gpt4", "endpoint": "/api/items" }),
                )),
                ..Self::plain(
                    "Which rules a request would meet, and why",
                    reference("AdminExplained"),
                )
            },
            Call::Decide | Call::Peek => Self {
                body: Some((
                    reference("AllowBody"),
                    json!({ "userId": "ann", "modelId": "gpt4", "endpoint": "/api/items" }),
                )),
                ..Self::plain(
                    match call {
                        Call::Decide => "Decide a made-up request and charge it, as any other",
                        _ => "Decide a made-up request and charge nothing",
                    },
                    reference("AdminTried"),
                )
            },
            Call::Apply => Self {
                query: vec![
                    ("dry_run", json!({ "type": "boolean", "default": false })),
                    ("prune", json!({ "type": "boolean", "default": false })),
                ],
                body: Some((reference("rules.file"), json!({ "rules": [rule_example()] }))),
                ..Self::plain(
                    "Make the set as a rule file says, in one change; If-Match takes its revision",
                    any(),
                )
            },
            Call::Document => Self::plain("The whole set as a rule file", any()),
            Call::Settings => Self::plain("Settings", pages("AdminSetting")),
            Call::PutSetting => Self {
                body: Some((
                    json!({ "type": "object", "required": ["value"], "additionalProperties": false,
                        "properties": { "value": {} } }),
                    json!({ "value": "shadow" }),
                )),
                changes: true,
                ..Self::plain("Change enforcement, no_match or default", put_answer(Kind::Setting))
            },
            Call::Audit => {
                let mut query = page();
                let kinds = json!({ "enum": ["changes", "decisions"], "default": "changes" });
                query.push(("kind", kinds));
                for name in ["entry_kind", "entry_id", "actor", "tenant_id", "request_id", "action"]
                    .into_iter()
                    .chain(["client_id", "rule_id", "user_id", "ip_address"])
                {
                    query.push((name, text()));
                }
                query.extend(times());
                let removed = json!({ "type": "array", "items": reference("AdminCheckpoint") });
                let kept = json!({ "type": "integer",
                    "description": "Of decisions: how many of this page are kept in full" });
                let of = json!({ "type": "integer",
                    "description": "Of decisions: how many the records of this page stand for" });
                let fields = [("removed", removed), ("kept", kept), ("of", of)];
                let answer = pages_with("AdminRecord", fields);
                Self { query, ..Self::plain("What was changed, or decided", answer) }
            }
            Call::AuditExport | Call::AuditKey => super::openapi_audit::describe(call),
            Call::Candidate
            | Call::PromoteCandidate
            | Call::HaltCandidate
            | Call::AdvanceCandidate => super::candidates::describe(call),
            Call::Decisions | Call::DecisionFeed => {
                let is_feed = call == Call::DecisionFeed;
                let mut query = if is_feed { Vec::new() } else { page() };
                let time = json!({ "type": "string", "description":
                    "An instant such as 2027-01-31T12:00:00Z, or a time before now such as 15m" });
                if !is_feed {
                    query.extend([("from", time.clone()), ("until", time)]);
                }
                let attributes =
                    ["user_id", "tenant_id", "api_key_id", "ip", "client_id", "rule_id"];
                let more = ["scope", "model_id", "endpoint", "reason", "request_id"];
                query.extend(attributes.into_iter().chain(more).map(|name| (name, text())));
                let results = ["allowed", "denied", "throttled", "queued", "would_deny"];
                query.push(("result", json!({ "enum": results })));
                query.push(("written_after", json!({ "type": "integer",
                    "description": "The newest records after the one with this id, to follow the log" })));
                if is_feed {
                    let summary = "Decisions as they are written: server-sent events";
                    return Self { query, ..Self::plain(summary, text()) };
                }
                let summary = "Search decisions by time and by every attribute, the newest first";
                Self { query, ..Self::plain(summary, reference("AdminDecisions")) }
            }
            Call::Usage | Call::ResetUsage | Call::Client => {
                let names = Known::ALL.into_iter().map(Known::name).chain(["rule_id"]);
                let query = names.map(|name| (name, text())).collect();
                let (summary, answer) = match call {
                    Call::Usage => ("The limits of a client now; charges nothing", "AdminUsage"),
                    Call::Client => {
                        ("A client and the limits of its recent requests", "AdminClient")
                    }
                    _ => ("Reset a client's counters", "AdminReset"),
                };
                Self { query, ..Self::plain(summary, reference(answer)) }
            }
            Call::Slots => {
                let mut query = page();
                query.push(("rule_id", text()));
                let summary = "Slots that are held, by the counters that this node has seen";
                Self { query, ..Self::plain(summary, any()) }
            }
            Call::Queue => {
                let mut query = page();
                query.push(("state", json!({ "enum": ["waiting", "done", "dead"] })));
                let summary =
                    "Requests that wait at the gateway, were answered, or are dead letters";
                Self { query, ..Self::plain(summary, any()) }
            }
            Call::RetryQueued => Self::plain("Put a dead letter back into the queue", any()),
            Call::DropQueued => Self::plain("Remove a request that is not under way", any()),
            Call::Top
            | Call::History
            | Call::Nodes
            | Call::Overview
            | Call::Incidents
            | Call::UsageReport
            | Call::Node => super::openapi_seen::describe(call),
            Call::SetLogLevel => Self {
                body: Some((
                    json!({ "type": "object", "required": ["level"], "additionalProperties": false,
                        "properties": { "level": {
                            "enum": ["off", "error", "warn", "info", "debug", "trace"] } } }),
                    json!({ "level": "debug" }),
                )),
                ..Self::plain("Change the level of this node's log", any())
            },
            Call::Events => Self {
                query: vec![("live", json!({ "type": "boolean", "default": false }))],
                ..Self::plain("Changes as they happen: server-sent events", text())
            },
            Call::Keys(call) => super::openapi_keys::describe(call),
            Call::WhoAmI => Self::plain("Whose token this is", reference("AdminIdentity")),
        }
    }
}

pub(super) fn put_answer(kind: Kind) -> Value {
    let mut answers = vec![reference(schema_of(kind)), reference("AdminDryRun")];
    if kind == Kind::ClientTier {
        answers.push(json!({ "type": "object", "required": ["put"],
            "properties": { "put": { "type": "integer" } } }));
    }
    json!({ "anyOf": answers })
}

pub(super) fn deleted() -> Value {
    json!({ "anyOf": [
        { "type": "object", "required": ["id", "status"],
          "properties": { "id": text(), "status": { "const": "deleted" },
                          "revision": { "type": "integer" } } },
        reference("AdminDryRun"),
    ] })
}

fn parameters(route: &Route, described: &Described) -> Vec<Value> {
    let in_path = places(route.call).iter().map(|name| {
        let schema = match (*name, route.call) {
            ("version", _) => json!({ "type": "integer", "minimum": 1 }),
            ("identifier_type", _) => json!({ "enum": ["api_key", "user_id", "tenant_id", "ip"] }),
            ("name", Call::PutSetting | Call::DeleteSetting) => {
                json!({ "enum": ["default", "no_match", "enforcement"] })
            }
            _ => json!({ "type": "string", "minLength": 1, "maxLength": 512 }),
        };
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    });
    let mut query = described.query.clone();
    if described.changes {
        query.push(("dry_run", json!({ "type": "boolean", "default": false })));
    }
    let in_query = query.into_iter().map(|(name, schema)| {
        json!({ "name": name, "in": "query", "required": false, "schema": schema })
    });
    let is_conditional = described.changes
        || route.call == Call::Apply
        || matches!(route.call, Call::Keys(call) if call.changes_one());
    let conditions = is_conditional.then(|| {
        let schema = json!({ "type": "string", "example": "\"3\"" });
        json!({ "name": "If-Match", "in": "header", "required": false, "schema": schema,
                "description": "The version (ETag) that must be there" })
    });
    in_path.chain(in_query).chain(conditions).collect()
}

fn responses(route: &Route, described: &Described) -> Value {
    let kind = match route.call {
        Call::Events | Call::DecisionFeed => "text/event-stream",
        _ => "application/json",
    };
    let success = json!({ "description": "Done",
        "content": { kind: { "schema": described.answer } } });
    let problem = |text: &str| {
        json!({ "description": text,
                "content": { "application/problem+json": { "schema": reference("ProblemBody") } } })
    };
    let mut responses = Map::new();
    let only_creates = matches!(route.call, Call::Post(Kind::Token) | Call::Keys(KeyCall::Create));
    if !only_creates {
        responses.insert("200".to_owned(), success.clone());
    }
    if described.creates {
        responses.insert("201".to_owned(), success);
    }
    for (status, text) in [
        ("400", "Something that was sent is wrong; `field` says what"),
        ("401", "An admin token is needed"),
        ("403", "The token's role may not do this"),
        ("404", "There is no such thing"),
        ("405", "The path takes other methods"),
        ("408", "The body did not arrive in time"),
        ("409", "Something else is in the way"),
        ("412", "The version is another one than If-Match says"),
        ("413", "The body is too large"),
        ("429", "Too many wrong tokens"),
        ("503", "The database is not available, or too much at once; decisions go on"),
    ] {
        responses.insert(status.to_owned(), problem(text));
    }
    Value::Object(responses)
}
