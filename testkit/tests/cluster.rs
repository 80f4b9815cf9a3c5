//! A cluster whose slots move and whose master dies.

use tollgate_testkit::{Cluster, Redis, slot_of};

#[test]
fn slots_move_with_their_keys() {
    let cluster = Cluster::start_with(&Redis::builder().password("secret"), 3, 0);
    assert_eq!(cluster.masters(), [0, 1, 2]);
    assert_eq!(cluster.urls().len(), 3);
    let slot = slot_of("{tag}");
    let from = cluster.master_of(slot);
    let to = (from + 1) % 3;
    for key in ["{tag}1", "{tag}2", "{tag}3"] {
        assert_eq!(cluster.nodes()[0].cli(&["-c", "SET", key, "value"]), "OK");
    }

    cluster.begin_move(slot, to);
    let answer = cluster.nodes()[from].cli(&["GET", "{tag}4"]);
    let port = cluster.nodes()[to].port();
    assert_eq!(answer, format!("ASK {slot} 127.0.0.1:{port}"));
    assert_eq!(cluster.nodes()[from].cli(&["GET", "{tag}1"]), "value");
    assert_eq!(cluster.move_keys(slot, to, 1), 1);
    let halves = cluster.nodes()[from].cli(&["MGET", "{tag}1", "{tag}2", "{tag}3"]);
    assert!(halves.starts_with("TRYAGAIN"), "{halves}");

    cluster.finish_move(slot, to);
    assert_eq!(cluster.master_of(slot), to);
    assert_eq!(cluster.nodes()[to].cli(&["GET", "{tag}1"]), "value");
    let answer = cluster.nodes()[from].cli(&["GET", "{tag}1"]);
    assert_eq!(answer, format!("MOVED {slot} 127.0.0.1:{port}"));
    cluster.move_slot(slot, from);
    assert_eq!(cluster.nodes()[from].cli(&["MGET", "{tag}1", "{tag}3"]), "value\nvalue");
    cluster.wait_until_healthy();
}

#[test]
fn a_replica_takes_over() {
    let cluster = Cluster::start(3, 1);
    assert_eq!(cluster.nodes().len(), 6);
    assert_eq!(cluster.nodes()[0].cli(&["-c", "SET", "foo", "bar"]), "OK");
    let slot = slot_of("foo");
    // What a replica has not got yet dies with its master.
    let master = &cluster.nodes()[cluster.master_of(slot)];
    assert_eq!(master.cli(&["WAIT", "1", "5000"]), "1");
    let killed = cluster.kill_master_of(slot);
    cluster.wait_until_healthy();
    let new = cluster.master_of(slot);
    assert_eq!(new, killed + 3);
    assert_eq!(cluster.nodes()[new].cli(&["GET", "foo"]), "bar");

    cluster.nodes()[killed].restart();
    cluster.wait_until_healthy();
    assert_eq!(cluster.nodes()[killed].info("replication", "role").as_deref(), Some("slave"));
}
