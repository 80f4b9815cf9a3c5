//! The schema, from every state it can be in.

use tollgate_control::{EntryFilter, Kind, RepositoryError};

use crate::ground::{Ground, commit, ids, page, put, rule};

/// Rows as the first version had them.
const ROWS: &str = "
    INSERT INTO user_tiers (name, body, version, created_at, created_by, updated_at, updated_by)
    VALUES ('gold', '{\"name\":\"gold\"}', 1, 5, 'ann', 5, 'ann');
    INSERT INTO client_tiers (id, identifier_type, identifier, tier, bucket, version, created_at,
        created_by, updated_at, updated_by)
    VALUES ('user_id:u1', 'user_id', 'u1', 'gold', 7, 1, 5, 'ann', 5, 'ann');
    INSERT INTO rate_limit_rules (rule_id, body, version, created_at, created_by, updated_at,
        updated_by)
    VALUES ('r1', '{\"rule_id\":\"r1\"}', 2, 5, 'ann', 6, 'bob');
    INSERT INTO rate_limit_rule_versions (rule_id, version, body, created_at, created_by)
    VALUES ('r1', 1, '{}', 5, 'ann'), ('r1', 2, '{\"rule_id\":\"r1\"}', 6, 'bob');
    UPDATE control_state SET revision = 2;
    UPDATE client_tier_buckets SET revision = 1 WHERE bucket = 7;
";

pub(crate) async fn from_nothing_and_again(ground: Ground) {
    let repository = ground.open();
    let known = ground.newest();
    let error = repository.revision().await.unwrap_err();
    assert!(matches!(error, RepositoryError::Corrupt(_)), "there is no schema: {error:?}");
    assert_eq!(repository.migrate().await.unwrap(), known);
    commit(&repository, &[rule("r1", 1)]).await.unwrap();
    let before = repository.load(None).await.unwrap();
    assert_eq!(repository.migrate().await.unwrap(), known);
    assert_eq!(ground.open().migrate().await.unwrap(), known);
    assert_eq!(repository.load(None).await.unwrap(), before);
}

/// Makes the schema of this version.
pub(crate) async fn make(ground: &Ground, version: usize) {
    let create = "CREATE TABLE schema_version (version BIGINT PRIMARY KEY, \
                  applied_at BIGINT NOT NULL);";
    ground.run(create).await;
    for (index, sql) in ground.migrations().iter().take(version).enumerate() {
        ground.run(sql).await;
        let number = index + 1;
        ground.run(&format!("INSERT INTO schema_version VALUES ({number}, 1);")).await;
    }
}

pub(crate) async fn from_every_earlier_version_with_rows(ground: Ground) {
    // Each version is a database of its own.
    let is_sqlite = matches!(ground.config, tollgate_control::DatabaseConfig::Sqlite(_));
    let known = ground.migrations().len();
    for version in 1..known {
        let ground = if is_sqlite { Ground::sqlite() } else { Ground::postgres() };
        make(&ground, version).await;
        ground.run(ROWS).await;

        let repository = ground.open();
        assert_eq!(repository.migrate().await.unwrap(), ground.newest());
        let loaded = repository.load(None).await.unwrap();
        assert_eq!((loaded.revision, loaded.installation.len()), (2, 32));
        let entries: Vec<_> = loaded.entries.iter().map(|entry| (entry.kind, &*entry.id)).collect();
        assert_eq!(entries, [(Kind::Tier, "gold"), (Kind::Rule, "r1")]);
        assert_eq!(loaded.client_tiers.len(), 1);
        assert_eq!(repository.load(Some(1)).await.unwrap().client_tiers, []);
        assert_eq!(repository.rule_versions("r1", &page(None, 9)).await.unwrap().len(), 2);
        let clients = ids(&repository, Kind::ClientTier, &EntryFilter::default()).await;
        assert_eq!(clients, ["user_id:u1"]);
        let setting = put(Kind::Setting, "default", serde_json::json!({"limit": 1}));
        let committed = commit(&repository, &[rule("r1", 1), setting]).await.unwrap();
        assert_eq!((committed.revision, &*committed.versions), (3, &[3, 1][..]));
    }
}

/// The step to version 7 makes indexes of the log. It writes no record again: that takes longer the more there are,
/// and a log near its bound would lose its oldest ones.
pub(crate) async fn a_filled_log_keeps_its_records_and_their_bytes(ground: Ground) {
    make(&ground, 6).await;
    let fill = "
        INSERT INTO rate_limit_audit_log (event_id, timestamp, action, reason, client_id, tenant_id, cost, node,
            revision, bytes)
        WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 5000)
        SELECT 'e' || n, n, 'rejected', 'over_limit', 'user_id:u1', 'acme', 1, 'node', 1, 700 FROM numbers;
        INSERT INTO rate_limit_audit_usage (tenant_id, bytes) VALUES ('acme', 3500000);
        INSERT INTO rate_limit_audit_shares (caller, tenant_id, bytes) VALUES ('', 'acme', 3500000);";
    ground.run(fill).await;

    let repository = ground.open();
    assert_eq!(repository.schema_version().await.unwrap(), 6);
    assert!(repository.migrate().await.unwrap() >= 7);
    assert_eq!(repository.schema_version().await.unwrap(), ground.newest());
    // Fails where a number is another one.
    ground
        .run(
            "CREATE TABLE seen (records BIGINT CHECK (records = 5000), bytes BIGINT CHECK (bytes = 3500000));
             INSERT INTO seen SELECT COUNT(*), SUM(bytes) FROM rate_limit_audit_log WHERE bytes = 700;
             INSERT INTO seen SELECT 5000, SUM(bytes) FROM rate_limit_audit_usage;
             INSERT INTO seen SELECT 5000, SUM(bytes) FROM rate_limit_audit_shares;",
        )
        .await;
}

pub(crate) async fn eight_at_once(ground: Ground) {
    let known = ground.newest();
    let repositories: Vec<_> = (0..8).map(|_| ground.open()).collect();
    let mut tasks = tokio::task::JoinSet::new();
    for repository in repositories.clone() {
        tasks.spawn(async move {
            let version = repository.migrate().await.expect("a migration");
            (version, repository.load(None).await.expect("a schema").installation)
        });
    }
    let mut results = tasks.join_all().await;
    results.dedup();
    assert_eq!(results.len(), 1, "one database, made once: {results:?}");
    assert_eq!(results[0].0, known);
}

/// Several processes open a file for the first time, again and again: none is refused.
#[tokio::test(flavor = "multi_thread")]
async fn first_opens_wait_for_each_other() {
    for _ in 0..40 {
        eight_at_once(Ground::sqlite()).await;
    }
}

pub(crate) async fn a_newer_schema_is_refused(ground: Ground) {
    ground.ready().await;
    ground.run("INSERT INTO schema_version (version, applied_at) VALUES (99, 1);").await;
    let error = ground.open().migrate().await.unwrap_err();
    let known = ground.newest();
    assert!(
        matches!(error, RepositoryError::NewerSchema { have: 99, known: ours } if ours == known),
        "{error:?}"
    );
}
