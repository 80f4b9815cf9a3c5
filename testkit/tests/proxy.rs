//! Each way in which a connection can fail.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tollgate_testkit::{FaultProxy, Redis, eventually};

/// How long a connection is listened to before it counts as silent.
const SILENCE: Duration = Duration::from_millis(200);

fn connect(proxy: &FaultProxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, command: &str) -> String {
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut answer = [0; 64];
    let length = stream.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

fn is_silent(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let kind = stream.read(&mut [0; 64]).map_err(|error| error.kind());
    matches!(kind, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn it_forwards_slows_down_and_cuts() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    assert_eq!(proxy.url("redis"), format!("redis://{}", proxy.addr()));
    let mut client = connect(&proxy);
    assert_eq!(ask(&mut client, "PING"), "+PONG\r\n");
    assert_eq!((proxy.connections(), proxy.accepted()), (1, 1));

    let begin = Instant::now();
    proxy.delay(Duration::from_millis(40));
    assert_eq!(ask(&mut client, "PING"), "+PONG\r\n");
    assert!(begin.elapsed() >= Duration::from_millis(80), "40 ms each way");
    proxy.heal();

    redis.cli(&["SET", "large", &"x".repeat(1000)]);
    proxy.throttle(5000);
    let begin = Instant::now();
    client.write_all(b"GET large\r\n").unwrap();
    client.read_exact(&mut [0; "$1000\r\n".len() + 1000 + 2]).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(150), "1 kB at 5 kB/s");
    proxy.heal();

    proxy.cut();
    assert_eq!(proxy.connections(), 0);
    assert!(is_closed(&mut client));
    let refused = TcpStream::connect(proxy.addr()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    proxy.heal();
    assert_eq!(ask(&mut connect(&proxy), "PING"), "+PONG\r\n");
    eventually("closed connections are not counted", || proxy.connections() == 0);
}

#[test]
fn it_goes_silent() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let (mut old, mut idle) = (connect(&proxy), connect(&proxy));
    assert_eq!(ask(&mut old, "PING"), "+PONG\r\n");
    assert_eq!(ask(&mut idle, "PING"), "+PONG\r\n");
    proxy.half_open();
    assert!(is_silent(&mut old));
    assert!(is_silent(&mut connect(&proxy)));
    proxy.heal();
    assert!(is_silent(&mut old), "what was lost stays lost");
    assert_eq!(ask(&mut idle, "PING"), "+PONG\r\n");
    assert_eq!(ask(&mut connect(&proxy), "PING"), "+PONG\r\n");
}

#[test]
fn it_loses_answers() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let mut client = connect(&proxy);
    proxy.swallow_replies(1);
    client.write_all(b"INCR count\r\n").unwrap();
    assert!(is_closed(&mut client));
    assert_eq!(redis.cli(&["GET", "count"]), "1", "it was executed");
    assert_eq!(proxy.swallowed(), 1);
    assert_eq!(ask(&mut connect(&proxy), "INCR count"), ":2\r\n");

    let mut client = connect(&proxy);
    proxy.swallow_replies(2);
    assert!(is_silent(&mut client), "the first of two");
    client.write_all(b"PING\r\n").unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert!(is_closed(&mut client));
}

#[test]
fn replies_that_are_held_pass_later_and_their_requests_at_once() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let mut client = connect(&proxy);
    assert_eq!(ask(&mut client, "PING"), "+PONG\r\n");
    proxy.hold_replies();
    client.write_all(b"SET held yes\r\n").unwrap();
    eventually("the request has passed", || redis.cli(&["GET", "held"]).trim() == "yes");
    client.set_read_timeout(Some(SILENCE)).unwrap();
    assert!(client.read(&mut [0; 64]).is_err(), "the reply has not");
    proxy.release_replies();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = [0; 5];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
}
