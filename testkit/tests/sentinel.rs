//! Sentinels that replace a master.

use tollgate_testkit::Sentinel;

#[test]
fn a_new_master_is_found() {
    let sentinel = Sentinel::start();
    assert_eq!(sentinel.urls().len(), 3);
    let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinel.master_name()];
    let first = sentinel.master().port();
    assert_eq!(sentinel.sentinels()[0].cli(&command), format!("127.0.0.1\n{first}"));
    sentinel.kill_master();
    let second = sentinel.wait_for_new_master();
    assert_ne!(second.port(), first);
    assert_eq!(second.cli(&["SET", "key", "value"]), "OK");
    assert_eq!(sentinel.master().port(), second.port());
}
