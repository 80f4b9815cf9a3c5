//! Single sign-on through a real provider: roles, tenants, expiry, sign-out, and everything that must not sign anybody in.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_e2e::{Client, Response, Server, ServerBuilder, eventually};
use tollgate_testkit::{OIDC_CLIENT_SECRET, OidcProvider, Postgres};

const SESSION: &str = "/admin/api/v1/session";
const CONFIGURED: &str = "/admin/api/v1/oidc";
const START: &str = "/admin/api/v1/oidc/start";
const CONSOLE: (&str, &str) = ("x-tollgate-console", "1");

const ROLES: &str = "    - {group: tollgate-admins, role: admin}
    - {group: sre, role: operator}
    - {group: everyone, role: viewer}
    - {group: acme-admins, role: tenant_admin, tenant: acme}
    - {claim: job, group: account-manager, role: tenant_admin, tenant_claim: organisation}
";

/// A server that people sign in to through the provider, and where it serves its console.
fn server(provider: &OidcProvider, session_ttl: &str) -> Server {
    server_with(provider, session_ttl, OIDC_CLIENT_SECRET)
}

fn server_with(provider: &OidcProvider, session_ttl: &str, secret: &str) -> Server {
    let port = free_port();
    builder(provider, session_ttl, secret, port, port).start()
}

/// The server must know its address in browsers before it starts.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn builder(
    provider: &OidcProvider,
    session_ttl: &str,
    secret: &str,
    port: u16,
    redirect: u16,
) -> ServerBuilder {
    let issuer = provider.issuer();
    let builder = ServerBuilder::default();
    let file = builder.file("client-secret", &format!("{secret}\n")).display().to_string();
    builder
        .config(&format!(
            "admin: {{http: '127.0.0.1:{port}'}}\noidc:\n  issuer: {issuer}\n  client_id: tollgate\n  \
             client_secret_file: {file}\n  redirect_uri: http://127.0.0.1:{redirect}/admin/api/v1/oidc/callback\n  \
             scopes: [openid, email, groups]\n  session_ttl: {session_ttl}\n  roles:\n{ROLES}"
        ))
        .arg("--log-level")
        .arg("trace")
}

/// A browser, as far as cookies go.
#[derive(Default, Clone)]
struct Browser {
    cookies: Vec<(SocketAddr, String, String)>,
}

impl Browser {
    fn send(
        &mut self,
        method: &str,
        addr: SocketAddr,
        path: &str,
        more: &[(&str, &str)],
        body: &str,
    ) -> Response {
        let own = self.cookies.iter().filter(|(of, ..)| *of == addr);
        let cookies: Vec<String> = own.map(|(_, name, value)| format!("{name}={value}")).collect();
        let cookies = cookies.join("; ");
        let mut headers = vec![("connection", "close")];
        if !cookies.is_empty() {
            headers.push(("cookie", &cookies));
        }
        headers.extend_from_slice(more);
        let mut client = Client::connect(addr).unwrap();
        let response = client.request(method, path, &headers, body.as_bytes());
        self.keep(addr, &response);
        response
    }

    /// Keeps the cookies of an answer.
    fn keep(&mut self, addr: SocketAddr, response: &Response) {
        let headers = response.headers.iter();
        for (_, line) in headers.filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie")) {
            let (name, value) = line.split(';').next().unwrap().split_once('=').unwrap();
            self.cookies.retain(|(of, known, _)| *of != addr || known != name);
            if !value.is_empty() {
                self.cookies.push((addr, name.to_owned(), value.to_owned()));
            }
        }
    }

    fn get(&mut self, addr: SocketAddr, path: &str) -> Response {
        self.send("GET", addr, path, &[], "")
    }

    /// Opens an address and follows redirects as far as the server's callback, which it returns.
    fn until_callback(&mut self, mut url: String) -> String {
        for _ in 0..10 {
            if url.contains("/admin/api/v1/oidc/callback") {
                return url;
            }
            let (addr, path) = split(&url);
            let response = self.get(addr, &path);
            url = location(&response, addr);
        }
        panic!("too many redirects: {url}");
    }

    /// Begins a sign-in and completes it at the provider; the address that the provider sends back to.
    fn callback(&mut self, server: &Server, login: &str) -> String {
        let begun = self.get(server.admin_addr(), START);
        assert_eq!(begun.status, 303, "{}", begun.text());
        let (provider, path) = split(begun.header("location").unwrap());
        let asked = self.get(provider, &path);
        let page = location(&asked, provider);
        if page.contains("/callback") {
            return page; // The provider knows this browser.
        }
        let (_, page) = split(&page);
        let form = [("content-type", "application/x-www-form-urlencoded")];
        let done = self.send("POST", provider, &page, &form, &format!("login={login}"));
        self.until_callback(location(&done, provider))
    }

    /// Signs in; what the server answers.
    fn sign_in(&mut self, server: &Server, login: &str) -> Response {
        let url = self.callback(server, login);
        let (_, path) = split(&url);
        self.get(server.admin_addr(), &path)
    }

    fn who(&mut self, server: &Server) -> (u16, Value) {
        let response = self.get(server.admin_addr(), SESSION);
        (response.status, response.json())
    }

    fn has_session(&self) -> bool {
        self.cookies.iter().any(|(_, name, _)| name.starts_with("tollgate_session"))
    }
}

/// Address and path of a URL.
fn split(url: &str) -> (SocketAddr, String) {
    let rest = url.strip_prefix("http://").unwrap_or_else(|| panic!("{url}"));
    let (addr, path) = rest.split_once('/').unwrap_or((rest, ""));
    (addr.parse().unwrap(), format!("/{path}"))
}

fn location(response: &Response, addr: SocketAddr) -> String {
    let location = response.header("location");
    let location = location.unwrap_or_else(|| panic!("{}: {}", response.status, response.text()));
    if location.starts_with('/') { format!("http://{addr}{location}") } else { location.to_owned() }
}

fn parameter(url: &str, name: &str) -> String {
    let query = url.split_once('?').unwrap().1;
    let found = query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")));
    found.unwrap_or_else(|| panic!("{url} has no {name}")).to_owned()
}

fn refused(response: &Response, status: u16, text: &str) {
    assert_eq!(response.status, status, "{}", response.text());
    assert!(response.header("content-type").unwrap().starts_with("text/html"));
    assert!(response.text().contains(text), "{}", response.text());
    assert!(response.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
}

#[test]
fn groups_become_roles_and_the_audit_log_names_the_person() {
    let provider = OidcProvider::start();
    let server = server(&provider, "1h");
    let expected = [
        ("ada", "ada@example.com", "admin", Value::Null),
        ("ann", "ann@example.com", "operator", Value::Null),
        ("vic", "vic@example.com", "viewer", Value::Null),
        ("tess", "tess@example.com", "tenant_admin", json!("acme")),
        ("tom", "tom@example.com", "tenant_admin", json!("umbrella")),
        // An address that is not verified could be anybody's.
        ("otto", "otto", "operator", Value::Null),
    ];
    for (login, name, role, tenant) in expected {
        let mut browser = Browser::default();
        let signed_in = browser.sign_in(&server, login);
        assert_eq!((signed_in.status, signed_in.header("location")), (303, Some("/")), "{login}");
        let (status, who) = browser.who(&server);
        assert_eq!(
            (status, &who["name"], &who["role"]),
            (200, &json!(name), &json!(role)),
            "{who}"
        );
        assert_eq!(who["tenant_id"], tenant, "{login}");
        assert!(who["expires_at"].is_string());
    }
    // What a person changes has the person's name.
    let mut ann = Browser::default();
    ann.sign_in(&server, "ann");
    let rule =
        json!({"rule_id": "by-ann", "identifier_type": "user_id", "limit": 1, "window": "365d"});
    let rules = "/admin/api/v1/rate-limits/rules";
    let made = ann.send("POST", server.admin_addr(), rules, &[CONSOLE], &rule.to_string());
    assert_eq!(made.status, 201, "{}", made.text());
    let forbidden = ann.get(server.admin_addr(), "/admin/api/v1/rate-limits/tokens");
    assert_eq!(forbidden.status, 403, "an operator is no admin");
    let mut admin = server.admin();
    let audit = admin.get("audit?limit=100");
    let actors = |action: &str| -> Vec<String> {
        let items = audit["items"].as_array().unwrap().iter();
        let of = items.filter(|one| one["action"] == action);
        of.map(|one| one["actor"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(actors("rule.create"), ["ann@example.com"]);
    assert!(actors("session.begin").contains(&"tess@example.com".to_owned()), "{audit}");
    assert!(!audit.to_string().contains("digest"), "no secret is in the audit log");
}

#[test]
fn cookies_are_bound_to_their_place_and_secrets_stay_out_of_logs() {
    let provider = OidcProvider::start();
    let server = server(&provider, "1h");
    let mut browser = Browser::default();
    let begun = browser.get(server.admin_addr(), START);
    let cookie = begun.header("set-cookie").unwrap().to_owned();
    assert!(
        cookie.contains("; Path=/admin/api/v1/oidc; Max-Age=600; HttpOnly; SameSite=Lax"),
        "{cookie}"
    );
    let url = begun.header("location").unwrap();
    assert_eq!(parameter(url, "code_challenge_method"), "S256");
    assert_eq!(begun.header("cache-control"), Some("no-store"));
    let callback = browser.callback(&server, "ann");
    let done = browser.get(server.admin_addr(), &split(&callback).1);
    let cookies: Vec<&str> = done
        .headers
        .iter()
        .filter(|(name, _)| name == "set-cookie")
        .map(|(_, v)| v.as_str())
        .collect();
    assert!(
        cookies.iter().any(|one| one.contains("Path=/admin; HttpOnly; SameSite=Strict")),
        "{cookies:?}"
    );
    assert!(
        cookies.iter().any(|one| one.starts_with("tollgate_sign_in") && one.contains("Max-Age=0"))
    );
    let log = server.log();
    let session = &browser
        .cookies
        .iter()
        .find(|(_, name, _)| name.starts_with("tollgate_session"))
        .unwrap()
        .2;
    let secrets = [
        OIDC_CLIENT_SECRET,
        session,
        &parameter(&callback, "code"),
        &parameter(&callback, "state"),
    ];
    for secret in secrets {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

#[test]
fn nobody_is_signed_in_by_a_state_that_is_not_the_browsers_own() {
    let provider = OidcProvider::start();
    let server = server(&provider, "1h");
    let addr = server.admin_addr();
    let stale = "This sign-in cannot be completed";
    // An attacker's own answer in the victim's browser, which began nothing, or began another sign-in.
    let mut attacker = Browser::default();
    let stolen = split(&attacker.callback(&server, "ada")).1;
    let mut victim = Browser::default();
    refused(&victim.get(addr, &stolen), 400, stale);
    victim.get(addr, START);
    refused(&victim.get(addr, &stolen), 400, stale);
    assert!(!victim.has_session());
    // A state of the browser's own with a code of another: the provider refuses it, by PKCE.
    let own = split(&victim.callback(&server, "vic")).1;
    let code = parameter(&stolen, "code");
    let mixed = own.replace(&parameter(&own, "code"), &code);
    refused(&victim.get(addr, &mixed), 400, stale);
    assert!(!victim.has_session());
    // Without a state, with two, with an empty one.
    for query in
        ["", "?code=x", "?state=&code=x", "?state=a&state=b&code=x", "?error=access_denied"]
    {
        let mut browser = Browser::default();
        browser.get(addr, START);
        refused(&browser.get(addr, &format!("/admin/api/v1/oidc/callback{query}")), 400, stale);
        assert!(!browser.has_session());
    }
}

/// Neither parameters nor the host that a request names move the browser to a page of somebody else.
#[test]
fn no_request_chooses_where_the_browser_is_sent() {
    let provider = OidcProvider::start();
    let server = server(&provider, "1h");
    let addr = server.admin_addr();
    let own = format!("http%3A%2F%2F{addr}%2Fadmin%2Fapi%2Fv1%2Foidc%2Fcallback")
        .replace(&format!("{}:", addr.ip()), &format!("{}%3A", addr.ip()));
    let evil =
        "redirect_uri=https://evil.example/&return_to=//evil.example&next=https://evil.example";
    let hosts = [addr.to_string(), "evil.example".to_owned()];
    for host in &hosts {
        let request = format!(
            "GET {START}?{evil} HTTP/1.1\r\nhost: {host}\r\nx-forwarded-host: evil.example\r\n\r\n"
        );
        let mut client = Client::connect(addr).unwrap();
        client.write(request.as_bytes()).unwrap();
        let begun = client.read_response().unwrap();
        let location = begun.header("location").unwrap();
        assert!(location.starts_with(&format!("{}/auth?", provider.issuer())), "{location}");
        assert_eq!(parameter(location, "redirect_uri"), own, "{location}");
        assert!(!location.contains("evil"), "{location}");
    }
    let mut browser = Browser::default();
    let path = split(&browser.callback(&server, "vic")).1;
    let done = browser.get(addr, &format!("{path}&{evil}"));
    assert_eq!((done.status, done.header("location")), (303, Some("/")));
    // What the provider sends as an error is not repeated, unless it is a code.
    let mut browser = Browser::default();
    let path = split(&browser.callback(&server, "vic")).1;
    let state = parameter(&path, "state");
    let text = "%3Cscript%3Elocation%3D%27//evil.example%27%3C/script%3E";
    let url = format!("/admin/api/v1/oidc/callback?state={state}&error={text}");
    let refusal = browser.get(addr, &url);
    refused(&refusal, 403, "The provider did not sign you in");
    assert!(!refusal.text().contains("evil"), "{}", refusal.text());
}

#[test]
fn an_answer_is_used_once() {
    let provider = OidcProvider::start();
    let server = server(&provider, "1h");
    let addr = server.admin_addr();
    let mut browser = Browser::default();
    let url = split(&browser.callback(&server, "ada")).1;
    let before = browser.clone();
    assert_eq!(browser.get(addr, &url).status, 303);
    // The same browser, and one whose cookie was copied before it was used.
    refused(&browser.get(addr, &url), 400, "was completed already");
    let mut copy = before;
    refused(&copy.get(addr, &url), 400, "was completed already");
    assert!(!copy.has_session());
    // Another node does not know that it was used; the provider does, and ends what the code began there.
    let other = self::server(&provider, "1h");
    let mut copied = Browser::default();
    let (port, other_port) = (addr.port(), other.admin_addr().port());
    for (_, name, value) in copy.cookies.iter().filter(|(of, ..)| *of == addr) {
        let name = name.replace(&port.to_string(), &other_port.to_string());
        copied.cookies.push((other.admin_addr(), name, value.clone()));
    }
    refused(&copied.get(other.admin_addr(), &url), 400, "This sign-in cannot be completed");
}

#[test]
fn a_sign_in_may_end_at_another_node() {
    let (provider, postgres) = (OidcProvider::start(), Postgres::start());
    let url = postgres.database();
    let with = |port, redirect| {
        builder(&provider, "1h", OIDC_CLIENT_SECRET, port, redirect)
            .arg("--postgres")
            .arg(&url)
            .start()
    };
    let (port, other) = (free_port(), free_port());
    let (one, other) = (with(port, port), with(other, port));
    let mut browser = Browser::default();
    let path = split(&browser.callback(&one, "ann")).1;
    // A balancer in front of both: the browser sees one address, another node is behind it.
    let mut through = |method: &str, path: &str, node: &Server| {
        let own = browser.cookies.iter().map(|(_, name, value)| format!("{name}={value}"));
        let cookies = own.collect::<Vec<_>>().join("; ");
        let host = one.admin_addr();
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncookie: {cookies}\r\n\r\n");
        let mut client = Client::connect(node.admin_addr()).unwrap();
        client.write(request.as_bytes()).unwrap();
        let response = client.read_response().unwrap();
        browser.keep(one.admin_addr(), &response);
        response
    };
    let done = through("GET", &path, &other);
    assert_eq!(done.status, 303, "{}", done.text());
    for node in [&one, &other] {
        assert_eq!(through("GET", SESSION, node).json()["name"], "ann@example.com");
    }
}

#[test]
fn forged_id_tokens_sign_nobody_in() {
    let provider = OidcProvider::start();
    let server = server(&provider, "1h");
    let changes = [
        "payload",
        "unsigned",
        "client_secret",
        "public_key",
        "stranger",
        "unknown_key",
        "issuer",
        "audience",
        "party",
        "other_party",
        "nonce",
        "no_nonce",
        "expired",
        "endless",
        "nobody",
    ];
    for change in changes {
        let mut browser = Browser::default();
        let url = split(&browser.callback(&server, "vic")).1;
        provider.change_next(change);
        let response = browser.get(server.admin_addr(), &url);
        assert_eq!(response.status, 502, "{change}: {}", response.text());
        refused(&response, 502, "cannot be verified");
        assert!(!browser.has_session(), "{change}");
        assert_eq!(browser.who(&server).0, 401, "{change}");
    }
    // A new key of the provider is fetched, and its tokens are accepted.
    let mut browser = Browser::default();
    let url = split(&browser.callback(&server, "vic")).1;
    provider.change_next("rotated");
    assert_eq!(browser.get(server.admin_addr(), &url).status, 303, "{}", server.log());
    let sessions = server.admin().get("tokens?prefix=session_");
    assert_eq!(sessions["items"].as_array().unwrap().len(), 1, "{sessions}");
}

#[test]
fn people_without_a_role_get_a_page_and_no_session() {
    let provider = OidcProvider::start();
    let server = server(&provider, "1h");
    // One is in no group that is listed; the other's tenant would be more than one.
    for (login, name) in [("nora", "nora@example.com"), ("eve", "eve@example.com")] {
        let mut browser = Browser::default();
        let response = browser.sign_in(&server, login);
        refused(&response, 403, "You have no role here");
        assert!(response.text().contains(name), "{}", response.text());
        assert!(!browser.has_session());
        assert_eq!(browser.who(&server).0, 401);
    }
    let mut browser = Browser::default();
    refused(&browser.sign_in(&server, "nobody-at-all"), 403, "access_denied");
    let sessions = server.admin().get("tokens?prefix=session_");
    assert_eq!(sessions["items"], json!([]));
}

#[test]
fn a_session_ends_by_sign_out_and_by_an_admin() {
    let provider = OidcProvider::start();
    let server = server(&provider, "1h");
    let addr = server.admin_addr();
    let mut ann = Browser::default();
    ann.sign_in(&server, "ann");
    let copy = ann.clone();
    let out = ann.send("DELETE", addr, SESSION, &[CONSOLE], "");
    assert_eq!(out.status, 200, "{}", out.text());
    let url = out.json()["end_session_url"].as_str().unwrap().to_owned();
    assert!(
        url.starts_with(&format!("{}/session/end?client_id=tollgate", provider.issuer())),
        "{url}"
    );
    // A copy of the cookie is worth nothing: the session is over at the server, too.
    assert_eq!(copy.clone().who(&server).0, 401);
    // An admin ends the session of another, and cannot act as that person.
    let mut vic = Browser::default();
    vic.sign_in(&server, "vic");
    let id = vic.who(&server).1["token_id"].as_str().unwrap().to_owned();
    let mut admin = server.admin();
    let (status, problem) = admin.post(&format!("tokens/{id}/rotate"), &json!({}));
    assert_eq!(status, 409, "{problem}");
    assert_eq!(admin.delete(&format!("tokens/{id}")).0, 200);
    assert_eq!(vic.who(&server).0, 401);
    // The session of an admin is none of the admin tokens that are left.
    let mut ada = Browser::default();
    ada.sign_in(&server, "ada");
    let (status, problem) = admin.delete("tokens/token_first");
    assert_eq!(status, 409, "{problem}");
}

#[test]
fn a_session_ends_by_itself() {
    let provider = OidcProvider::start();
    let server = server(&provider, "3s");
    let mut ada = Browser::default();
    assert_eq!(ada.sign_in(&server, "ada").status, 303);
    assert_eq!(ada.who(&server).0, 200);
    eventually("the session ends", || ada.clone().who(&server).0 == 401);
    let gone = ada.get(server.admin_addr(), "/admin/api/v1/rate-limits/rules");
    assert_eq!(gone.status, 401);
    // The next sign-in removes what has ended.
    Browser::default().sign_in(&server, "tess");
    let left = server.admin().get("tokens?prefix=session_");
    let names: Vec<&str> =
        left["items"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["tess@example.com"]);
}

#[test]
fn a_person_has_few_sessions() {
    let provider = OidcProvider::start();
    let server = server(&provider, "1h");
    let mut first = Browser::default();
    first.sign_in(&server, "ann");
    let mut again = Browser::default();
    for _ in 0..10 {
        assert_eq!(again.sign_in(&server, "ann").status, 303);
    }
    let sessions = server.admin().get("tokens?prefix=session_");
    assert_eq!(sessions["items"].as_array().unwrap().len(), 10);
    assert_eq!(first.who(&server).0, 401, "the oldest has ended");
    assert_eq!(again.who(&server).0, 200);
}

#[test]
fn without_the_provider_tokens_and_decisions_work() {
    let mut provider = OidcProvider::start();
    let server = server(&provider, "1h");
    let mut ann = Browser::default();
    ann.sign_in(&server, "ann");
    let mut late = Browser::default();
    let url = split(&late.callback(&server, "vic")).1;
    provider.pause();
    let addr = server.admin_addr();
    let waiting = std::thread::spawn(move || {
        let began = Instant::now();
        let response = late.get(addr, &url);
        (response, began.elapsed())
    });
    // While a sign-in waits for the provider: decisions, tokens, and sessions that began before.
    let mut client = server.client();
    for _ in 0..50 {
        let began = Instant::now();
        assert_eq!(client.allow(&json!({"userId": "zoe"}))["allowed"], true);
        assert!(began.elapsed() < Duration::from_secs(1));
    }
    let token = json!({ "token": tollgate_e2e::ADMIN_TOKEN }).to_string();
    let mut browser = Browser::default();
    let began = Instant::now();
    assert_eq!(browser.send("POST", addr, SESSION, &[CONSOLE], &token).status, 200);
    assert_eq!(ann.who(&server).0, 200);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let (response, took) = waiting.join().unwrap();
    refused(&response, 502, "Single sign-on is not available");
    assert!(took < Duration::from_secs(9), "{took:?}");
    provider.resume();
    assert_eq!(Browser::default().sign_in(&server, "vic").status, 303, "{}", server.log());
    // One that never knew the provider starts without it, and says what is wrong.
    let started = self::server(&provider, "1h");
    drop(provider);
    refused(
        &Browser::default().get(started.admin_addr(), START),
        502,
        "Single sign-on is not available",
    );
    assert!(started.log().contains("single sign-on is not available"), "{}", started.log());
}

#[test]
fn a_wrong_secret_is_reported_to_the_operator_and_not_shown() {
    let provider = OidcProvider::start();
    let server = server_with(&provider, "1h", "another-secret-than-the-providers");
    let mut browser = Browser::default();
    refused(&browser.sign_in(&server, "ada"), 502, "Single sign-on is not available");
    assert!(server.log().contains("invalid_client"), "{}", server.log());
    assert!(!server.log().contains("another-secret"), "{}", server.log());
}

#[test]
fn without_configuration_there_is_no_single_sign_on() {
    let server = Server::start();
    let mut client = server.client();
    let configured = client.get(CONFIGURED);
    assert_eq!(
        (configured.status, configured.json()["is_configured"].clone()),
        (200, json!(false))
    );
    assert_eq!(client.get(START).status, 404);
    assert_eq!(client.get("/admin/api/v1/oidc/callback?code=x&state=y").status, 404);
    assert_eq!(client.get("/admin/api/v1/oidc/other").status, 401);
    assert_eq!(client.request("POST", START, &[], b"").status, 405);
}
