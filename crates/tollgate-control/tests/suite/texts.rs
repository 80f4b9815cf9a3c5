//! Texts that mean something to SQL, to JSON or to nobody.

use serde_json::json;
use tollgate_control::{ChangeFilter, EntryFilter, Kind, RepositoryError};

use crate::ground::{Ground, client, commit, delete, ids, of_tenant, page, put, rule, tier};

fn odd_texts() -> Vec<String> {
    [
        "'; DROP TABLE rate_limit_rules; --",
        "\" OR \"\"=\"",
        "$1 ? :name @p %s",
        "back\\slash\\u0000",
        "{\"json\": [1, null]}",
        "line\nbreak\ttab\u{1}",
        "emoji \u{1f600}\u{200d}\u{1f525} \u{10ffff}",
        "עברית العربية ไทย",
        "e\u{301} is not \u{e9}",
        " spaces ",
        "null",
        "0x1F",
        "1e5",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain(["x".repeat(256), "\u{1f600}".repeat(64)])
    .collect()
}

pub(crate) async fn odd_texts_are_kept_as_they_are(ground: Ground) {
    let repository = ground.ready().await;
    let texts = odd_texts();
    let mut writes = Vec::new();
    for text in &texts {
        let body = json!({"rule_id": text, "name": text, text: [text, null, 1.5, true]});
        writes.push(of_tenant(text, put(Kind::Rule, text, body)));
        writes.push(tier(text));
        writes.push(client(text, text));
    }
    commit(&repository, &writes).await.unwrap();
    for write in &writes {
        let entry = repository.get(write.kind, &write.id).await.unwrap().unwrap();
        assert_eq!(Some(&entry.body), write.body.as_ref());
        assert_eq!(entry.tenant, write.tenant);
    }
    for text in &texts {
        let of_tier = EntryFilter { tier: Some(text.clone()), ..EntryFilter::default() };
        assert_eq!(ids(&repository, Kind::ClientTier, &of_tier).await, [format!("user_id:{text}")]);
        let of_tenant = EntryFilter { tenant: Some(text.clone()), ..EntryFilter::default() };
        assert_eq!(ids(&repository, Kind::Rule, &of_tenant).await, [text.as_str()]);
        let version = repository.rule_version(text, 1).await.unwrap().unwrap();
        assert_eq!(version.id, *text);
    }
    let loaded = repository.load(None).await.unwrap();
    let clients: usize = loaded.client_tiers.iter().map(|(_, clients)| clients.len()).sum();
    assert_eq!(clients, texts.len());
}

pub(crate) async fn prefixes_mean_themselves(ground: Ground) {
    let repository = ground.ready().await;
    let names = ["a%", "a%b", "a_", "a_b", "ab", "axb", "A%", "\u{10ffff}", "\u{10ffff}z"];
    let writes: Vec<_> = names.iter().map(|name| rule(name, 1)).collect();
    commit(&repository, &writes).await.unwrap();
    let cases: [(&str, &[&str]); 8] = [
        ("a%", &["a%", "a%b"]),
        ("a_", &["a_", "a_b"]),
        ("a", &["a%", "a%b", "a_", "a_b", "ab", "axb"]),
        ("A", &["A%"]),
        ("%", &[]),
        ("\\", &[]),
        ("\u{10ffff}", &["\u{10ffff}", "\u{10ffff}z"]),
        ("a%bc", &[]),
    ];
    for (prefix, expected) in cases {
        let filter = EntryFilter { prefix: Some(prefix.to_owned()), ..EntryFilter::default() };
        assert_eq!(ids(&repository, Kind::Rule, &filter).await, expected, "{prefix:?}");
    }
    let all = EntryFilter { prefix: Some(String::new()), ..EntryFilter::default() };
    assert_eq!(ids(&repository, Kind::Rule, &all).await.len(), names.len());
}

pub(crate) async fn what_cannot_be_kept_is_refused(ground: Ground) {
    let repository = ground.ready().await;
    let invalid = |error: RepositoryError| {
        assert!(matches!(error, RepositoryError::Invalid(_)), "{error:?}");
    };
    for id in ["", "a\0b", &"x".repeat(1025)] {
        invalid(commit(&repository, &[rule(id, 1)]).await.unwrap_err());
        invalid(commit(&repository, &[delete(Kind::Rule, id)]).await.unwrap_err());
    }
    invalid(commit(&repository, &[of_tenant("a\0b", rule("r1", 1))]).await.unwrap_err());
    invalid(repository.get(Kind::Rule, "a\0b").await.unwrap_err());
    let nowhere = page(Some("x"), 1);
    invalid(repository.changes(&ChangeFilter::default(), &nowhere).await.unwrap_err());
    // Within a body it is an escape, and so are numbers that no column could hold.
    let body = json!({"rule_id": "r1", "name": 5, "priority": u64::MAX, "text": "a\0b"});
    let write = put(Kind::Rule, "r1", body.clone());
    commit(&repository, &[write]).await.unwrap();
    assert_eq!(repository.get(Kind::Rule, "r1").await.unwrap().unwrap().body, body);
    let longest = "x".repeat(1024);
    commit(&repository, &[rule(&longest, 1)]).await.unwrap();
    assert!(repository.get(Kind::Rule, &longest).await.unwrap().is_some());
}
