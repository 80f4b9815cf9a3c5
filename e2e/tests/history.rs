//! The history of changes is bounded, and says what was removed of it.

use serde_json::{Value, json};
use tollgate_e2e::{Admin, Server, ServerBuilder};
use tollgate_testkit::Postgres;

fn rule(id: &str, limit: u64) -> Value {
    json!({"rule_id": id, "identifier_type": "user_id", "limit": limit, "window": "1h"})
}

fn small(args: &[String]) -> Server {
    ServerBuilder::default()
        .args(args)
        .env("TOLLGATE_HISTORY_MAX_VERSIONS_PER_RULE", "4")
        .env("TOLLGATE_HISTORY_MAX_VERSIONS_PER_TENANT", "6")
        .env("TOLLGATE_HISTORY_MAX_CHANGES_PER_TENANT", "8")
        .start()
}

/// A tenant's admin writes more than is kept; nobody else loses anything.
fn writes_are_bounded(server: &Server) {
    let mut admin = server.admin();
    let (_, loud) = admin.token("tenant_admin", Some("loud"));
    let (_, quiet) = admin.token("tenant_admin", Some("quiet"));
    let mut loud = Admin::with_token(server.admin_addr(), &loud);
    let mut quiet = Admin::with_token(server.admin_addr(), &quiet);
    quiet.put("rules", &rule("quiet.a", 1));
    for limit in 1..=20 {
        loud.put("rules", &rule("loud.a", limit));
        loud.put("rules", &rule(&format!("loud.{limit}"), limit));
        assert_eq!(loud.delete(&format!("rules/loud.{limit}")).0, 200);
    }
    let listed = loud.get("rules/loud.a/versions");
    let versions: Vec<_> =
        listed["items"].as_array().unwrap().iter().map(|it| &it["version"]).collect();
    assert!(versions.len() <= 4 && versions[0] == 20, "{versions:?}");
    let removed = &listed["removed"];
    assert_eq!(removed["count"].as_u64().unwrap() + versions.len() as u64, 20, "{removed}");
    assert_eq!((&removed["first"], &removed["tenant_id"]), (&json!(1), &json!("loud")));
    assert_eq!(removed["digest"].as_str().unwrap().len(), 64);
    let log = loud.get("audit");
    assert_eq!(log["removed"][0]["count"], 60 - 8, "{}", log["removed"]);
    assert_eq!(quiet.get("audit")["removed"], json!([]));
    let own = quiet.get("audit?entry_id=quiet.a");
    assert_eq!(own["items"].as_array().unwrap().len(), 1);
    assert_eq!(quiet.get("rules/quiet.a/versions")["removed"], Value::Null);
    assert_eq!(admin.get("audit?entry_kind=token")["items"].as_array().unwrap().len(), 3);

    let back = |admin: &mut Admin, version: u64| {
        admin.post("rules/loud.a/rollback", &json!({"version": version}))
    };
    let (status, answer) = back(&mut loud, 2);
    assert_eq!((status, &answer["error"]["code"]), (410, &json!("VERSION_REMOVED")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("versions 1 to"), "{answer}");
    assert_eq!(loud.call("GET", "rules/loud.a/versions/2", &[], None).status, 410);
    assert_eq!(back(&mut loud, 99).0, 404);
    assert_eq!(back(&mut quiet, 2).0, 404, "nobody learns of others' rules");
    assert_eq!(back(&mut loud, 20).0, 200);
}

#[test]
fn the_history_of_a_tenant_is_bounded_in_sqlite() {
    writes_are_bounded(&small(&[]));
}

#[test]
fn the_history_of_a_tenant_is_bounded_in_postgres() {
    let postgres = Postgres::start();
    writes_are_bounded(&small(&["--postgres".to_owned(), postgres.database()]));
}
