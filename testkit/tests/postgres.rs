use tollgate_testkit::Postgres;

#[test]
fn it_starts_stops_and_comes_back_with_its_data() {
    let postgres = Postgres::start();
    let [one, other] = [postgres.database(), postgres.database()];
    assert_ne!(one, other, "each has its own");
    let name = one.rsplit('/').next().expect("a name");
    postgres.query(name, "CREATE TABLE kept (number INT)");
    postgres.query(name, "INSERT INTO kept VALUES (42)");
    let (port, pid) = (postgres.port(), postgres.pid());

    postgres.stop();
    assert_eq!(postgres.pid(), 0);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "nobody listens");

    postgres.start_again();
    assert_eq!(postgres.port(), port);
    assert_ne!(postgres.pid(), pid);
    assert_eq!(postgres.query(name, "SELECT number FROM kept"), "42");

    postgres.pause();
    postgres.resume();
    assert_eq!(postgres.query(name, "SELECT number FROM kept"), "42");
}
