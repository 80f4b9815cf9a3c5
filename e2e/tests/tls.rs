//! TLS on every listener, with and without certificates of clients.

use std::process::Command;

use tollgate_e2e::{ServerBuilder, Upstream};
use tollgate_testkit::Certificates;

/// What curl sees: the status, or why there is none.
fn curl(args: &[&str]) -> String {
    let output = Command::new("curl")
        .args(["-sS", "-m", "10", "-o", "/dev/null", "-w", "%{http_code} %{http_version}"])
        .args(args)
        .output()
        .expect("curl runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        said
    } else {
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

#[test]
fn https_on_all_and_certificates_of_clients() {
    let certificates = Certificates::new();
    let path = |path: std::path::PathBuf| path.display().to_string();
    let (ca, cert, key) = (
        path(certificates.ca_file()),
        path(certificates.server_cert_file()),
        path(certificates.server_key_file()),
    );
    let (own_cert, own_key) =
        (path(certificates.client_cert_file()), path(certificates.client_key_file()));
    let upstream = Upstream::start();
    let config = format!(
        "tls: {{cert_file: '{cert}', key_file: '{key}', client_ca_file: '{ca}', client_certificates: optional}}
data_auth: mtls
identity: {{jwt: {{algorithms: []}}}}"
    );
    let mut server = ServerBuilder::default()
        .gateway()
        .rules("default: false\nrules: []")
        .config(&config)
        .arg("--upstream")
        .arg(&upstream.url())
        .start();
    let url =
        |addr: std::net::SocketAddr, path: &str| format!("https://localhost:{}{path}", addr.port());
    let (http, gateway) = (server.addr(), server.gateway_addr());

    assert_eq!(curl(&["--cacert", &ca, &url(http, "/healthz")]), "200 2");
    assert_eq!(curl(&["--http1.1", "--cacert", &ca, &url(gateway, "/x")]), "200 1.1");
    assert_eq!(curl(&["--cacert", &ca, &url(gateway, "/x")]), "200 2", "HTTP/2 by agreement");
    assert_eq!(upstream.arrived()[0].header("x-forwarded-proto"), Some("https"));
    assert!(curl(&[&url(http, "/healthz")]).contains("certificate"), "nobody else is believed");
    let plain = curl(&[&format!("http://localhost:{}/healthz", http.port())]);
    assert!(!plain.starts_with("200"), "{plain}");

    // Decisions need a certificate; a stranger's does not get in at all.
    let allow = url(http, "/rate-limit/allow");
    assert_eq!(curl(&["--cacert", &ca, "-d", "{}", &allow]), "401 2");
    let known = ["--cacert", &ca, "--cert", &own_cert, "--key", &own_key, "-d", "{}", &allow];
    assert_eq!(curl(&known), "200 2");
    let strangers = Certificates::new();
    let (other_cert, other_key) =
        (path(strangers.client_cert_file()), path(strangers.client_key_file()));
    let stranger =
        ["--cacert", &ca, "--cert", &other_cert, "--key", &other_key, "-d", "{}", &allow];
    assert!(!curl(&stranger).starts_with("200"));

    // New certificates are taken over without a restart; wrong ones are not.
    std::fs::write(certificates.server_cert_file(), "nonsense").expect("written");
    server.signal("HUP");
    tollgate_e2e::eventually("it is said", || server.log().contains("certificates in force stay"));
    assert_eq!(curl(&["--cacert", &ca, &url(http, "/healthz")]), "200 2");
    let other_ca = path(strangers.ca_file());
    std::fs::copy(strangers.server_cert_file(), certificates.server_cert_file()).expect("copied");
    std::fs::copy(strangers.server_key_file(), certificates.server_key_file()).expect("copied");
    server.signal("HUP");
    tollgate_e2e::eventually("the new ones are shown", || {
        curl(&["--cacert", &other_ca, &url(http, "/healthz")]) == "200 2"
    });
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

/// Settings that say half of what is needed do not start a server without TLS.
#[test]
fn half_of_the_settings_is_an_error_that_names_the_other_half() {
    let certificates = Certificates::new();
    let path = |path: std::path::PathBuf| path.display().to_string();
    let (ca, cert, key) = (
        path(certificates.ca_file()),
        path(certificates.server_cert_file()),
        path(certificates.server_key_file()),
    );
    let dir = tempfile::tempdir().expect("a directory");
    let rows = [
        (format!("cert_file: '{cert}'"), "tls.key_file"),
        (format!("key_file: '{key}'"), "tls.cert_file"),
        (format!("client_ca_file: '{ca}'"), "tls.cert_file"),
        (
            format!("cert_file: '{cert}', key_file: '{key}', client_ca_file: '{ca}'"),
            "tls.client_certificates",
        ),
        (
            format!("cert_file: '{cert}', key_file: '{key}', client_certificates: required"),
            "tls.client_ca_file",
        ),
    ];
    for (settings, missing) in rows {
        let config = dir.path().join("tollgate.yaml");
        std::fs::write(&config, format!("tls: {{{settings}}}\n")).expect("a file");
        let output = Command::new(tollgate_e2e::server::binary())
            .args(["gateway", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0"])
            .args(["--http", "127.0.0.1:0", "--grpc", "null", "--config"])
            .arg(&config)
            .arg("--data-dir")
            .arg(dir.path().join("data"))
            .output()
            .expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{settings}: {stderr}");
        assert!(stderr.contains(missing), "{settings}: {stderr}");
    }
}

/// Tokens by a shared secret; the tables of attacks are beside the code.
#[test]
fn tokens_say_who_calls() {
    const GOOD: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJ0ZW5hbnRfaWQiOiJhY21lIiwicGxhbiI6InBybyIsImV4cCI6NDEwMjQ0NDgwMH0.qGkdb5-Bf4jhF3MSJ4NCIl_luLf5ZaK-u6UAUdqI-4c";
    const EXPIRED: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhbm4iLCJleHAiOjE3MDAwMDAwMDB9.Ht1cHPjrSEK7tHP4ymxRBipd0xbcsFO7_WlZsUfEO-w";
    const UNSIGNED: &str = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290IiwiZXhwIjo0MTAyNDQ0ODAwfQ.";
    let dir = tempfile::tempdir().expect("a directory");
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "a shared secret of thirty-two bytes or more\n").expect("a file");
    let upstream = Upstream::start();
    let config =
        format!("identity: {{jwt: {{algorithms: [HS256], secret_file: '{}'}}}}", secret.display());
    let rules = "default: false
tiers: [{name: pro}, {name: free}]
rules:
  - {rule_id: per-user, identifier_type: user_id, limit: 1, window: 365d, algorithm: fixed_window, tier_limits: {pro: 2}}
  - {rule_id: per-ip, identifier_type: ip, limit: 100, window: 365d, algorithm: fixed_window}";
    let server = ServerBuilder::default()
        .gateway()
        .rules(rules)
        .config(&config)
        .arg("--upstream")
        .arg(&upstream.url())
        .start();
    let mut client = tollgate_e2e::Client::connect(server.gateway_addr()).expect("a connection");
    let mut call = |token: &str| {
        let bearer = format!("Bearer {token}");
        client.request("GET", "/x", &[("authorization", &bearer)], b"")
    };
    assert_eq!(
        [200, 200, 429],
        [call(GOOD).status, call(GOOD).status, call(GOOD).status],
        "two, by plan"
    );
    for wrong in [EXPIRED, UNSIGNED, "nonsense"] {
        let answer = call(wrong);
        assert_eq!(answer.status, 401, "{wrong}");
        assert!(
            answer.header("www-authenticate").is_some_and(|value| value.contains("invalid_token"))
        );
        assert!(!answer.text().contains(wrong));
    }
    assert_eq!(upstream.arrived().len(), 2);
    assert!(!server.log().contains("eyJ"), "no token in the log");
}

/// `tollgate health` needs no certificate of a client: the server accepts its own one, which is issued by
/// another authority here, also when it was renewed on disk and is not in use yet. Others are refused.
#[test]
fn a_probe_works_with_the_certificate_of_the_server() {
    let (of_servers, of_clients) = (Certificates::new(), Certificates::new());
    let path = |path: std::path::PathBuf| path.display().to_string();
    let config = format!(
        "tls: {{cert_file: '{}', key_file: '{}', client_ca_file: '{}', client_certificates: required}}\n",
        path(of_servers.server_cert_file()),
        path(of_servers.server_key_file()),
        path(of_clients.ca_file()),
    );
    let server = ServerBuilder::default().config(&config).start();
    let probe = |env: &[(&str, String)]| {
        let mut command = Command::new(tollgate_e2e::server::binary());
        command.args(["health", "--ready", "--config"]).arg(server.dir().join("tollgate.yaml"));
        command.env("TOLLGATE_HTTP", server.addr().to_string());
        command.envs(env.iter().map(|(name, value)| (name, value)));
        let output = command.output().expect("tollgate runs");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let ready = (Some(0), "ready\n".to_owned());
    assert_eq!(probe(&[]), ready);
    // Variables for other calls, whose authority does not vouch for a loopback address.
    assert_eq!(probe(&[("TOLLGATE_CA", path(of_clients.ca_file()))]), ready);
    let client = [
        ("TOLLGATE_CERT", path(of_clients.client_cert_file())),
        ("TOLLGATE_KEY", path(of_clients.client_key_file())),
    ];
    assert_eq!(probe(&client), ready);
    let stranger = Certificates::new();
    let strange = [
        ("TOLLGATE_CERT", path(stranger.client_cert_file())),
        ("TOLLGATE_KEY", path(stranger.client_key_file())),
    ];
    assert_eq!(probe(&strange).0, Some(1));

    let renewed = Certificates::new();
    std::fs::copy(renewed.server_cert_file(), of_servers.server_cert_file()).expect("copied");
    std::fs::copy(renewed.server_key_file(), of_servers.server_key_file()).expect("copied");
    assert_eq!(probe(&[]), ready);
}
