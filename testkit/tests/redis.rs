//! One server, in all the ways that it can be reached.

use tollgate_testkit::{Redis, Reply, eventually};

#[test]
fn it_answers_sleeps_dies_and_returns() {
    let redis = Redis::start();
    assert_eq!(redis.cli(&["PING"]), "PONG");
    assert_eq!(redis.cli(&["DEBUG", "SLEEP", "0"]), "OK");
    assert_eq!(redis.cli(&["SET", "key", "value"]), "OK");
    assert_eq!(redis.info("server", "process_id"), Some(redis.pid().to_string()));

    redis.pause();
    assert!(!redis.is_running());
    assert!(redis.call(&["PING"]).is_err(), "a paused server does not answer");
    redis.resume();
    assert_eq!(redis.cli(&["GET", "key"]), "value");

    let (url, pid) = (redis.url(), redis.pid());
    redis.kill();
    assert!(redis.call(&["PING"]).is_err());
    redis.restart();
    assert_eq!(redis.url(), url);
    assert_ne!(redis.pid(), pid);
    assert_eq!(redis.call(&["GET", "key"]).unwrap(), Reply::Nil);
}

#[test]
fn it_asks_for_passwords() {
    let redis = Redis::builder().password("a \"secret\"").unix_socket().start();
    assert_eq!(redis.cli(&["PING"]), "PONG");
    assert!(redis.url().starts_with("redis://:a%20%22secret%22@127.0.0.1:"), "{}", redis.url());
    assert!(redis.unix_url().ends_with("/redis.sock?user=default&pass=a%20%22secret%22"));
    let socket = redis.dir().join("redis.sock");
    assert_eq!(redis.cli(&["-s", &socket.display().to_string(), "PING"]), "PONG");

    let redis = Redis::builder().user("alice", "secret").maxmemory("4mb").start();
    assert_eq!(redis.cli(&["ACL", "WHOAMI"]), "alice");
    assert_eq!(redis.cli(&["CONFIG", "GET", "maxmemory"]), "maxmemory\n4194304");
    assert!(redis.url().starts_with("redis://alice:secret@"));
    assert!(redis.cli(&["--user", "default", "PING"]).contains("WRONGPASS"));
}

#[test]
fn it_speaks_tls() {
    let redis = Redis::builder().tls().require_client_certificate().start();
    assert_eq!(redis.tls_cli(&["PING"]), "PONG");
    assert_eq!(redis.tls_url(), format!("rediss://127.0.0.1:{}", redis.tls_port()));
    let (ca, port) = (redis.ca_file().display().to_string(), redis.tls_port().to_string());
    let without = redis.cli(&["--tls", "--cacert", &ca, "-p", &port, "PING"]);
    assert_ne!(without, "PONG", "a client without a certificate");
}

#[test]
fn it_goes_when_dropped() {
    let redis = Redis::start();
    let process = format!("/proc/{}", redis.pid());
    let dir = redis.dir().to_owned();
    let panicked = std::thread::spawn(move || {
        let _redis = redis;
        panic!("as a test does that fails");
    });
    assert!(panicked.join().is_err());
    eventually("the process is gone", || !std::path::Path::new(&process).exists());
    assert!(!dir.exists());
}
