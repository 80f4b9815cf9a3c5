//! What a configuration says, and what is said about a wrong one.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::Duration;

use tollgate_engine::Enforcement;

use super::*;

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn load(text: &str, env: &[(&str, &str)], overrides: &Overrides) -> Result<Config, String> {
    let file = file(text);
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let name = format!("{}", file.path().display());
    Config::load(Some(file.path()), env, overrides)
        .map_err(|problems| problems.to_string().replace(&name, "t.yaml"))
}

fn from_file(text: &str) -> Result<Config, String> {
    load(text, &[], &Overrides::default())
}

fn from_env(env: &[(&str, &str)]) -> Result<Config, String> {
    load("", env, &Overrides::default())
}

const DIGEST: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"; // "secret"

#[test]
fn the_default_file_is_the_defaults() {
    let nothing = Config::load(None, std::iter::empty(), &Overrides::default()).unwrap();
    for text in ["", "# nothing\n", "limits:\nheaders:\n", DEFAULT_FILE] {
        assert_eq!(from_file(text).unwrap(), nothing, "{text:?}");
    }
    assert_eq!(nothing.http, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(nothing.data_dir, Some("./tollgate-data".into()));
    assert_eq!(nothing.rules, None);
    assert_eq!(nothing.enforcement, Enforcement::On);
    assert_eq!(nothing.max_counters, 10_000_000);
    assert_eq!(nothing.journal_interval, Duration::from_secs(1));
    assert_eq!(nothing.data_auth, DataAuth::None);
    assert_eq!(nothing.limits.max_body_bytes, 1_048_576);
    assert_eq!(nothing.limits.idle_timeout, Duration::from_mins(1));
    let log = LogConfig { level: LogLevel::Info, format: LogFormat::Auto };
    assert_eq!(nothing.log, log);
}

#[test]
fn every_key_has_a_variable_of_its_own() {
    let variables = variables();
    let names: BTreeSet<&String> = variables.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), variables.len());
    assert!(variables.contains(&("TOLLGATE_LOG_LEVEL".into(), "log.level".into())));
}

#[test]
fn what_is_shown_is_every_key_and_reads_back_as_the_same() {
    let text = "http: 127.0.0.1:9\nrules: r.yaml\nthreads: 3\ncors_origins: ['*']\n";
    let config = from_file(text).unwrap();
    assert_eq!(from_file(&config.to_yaml()).unwrap(), config);
    assert_eq!(from_file(&config.to_json().to_string()).unwrap(), config);
    for (_, key) in variables().into_iter().filter(|(_, key)| key != "data_token_file") {
        let shown = config.to_json();
        let pointer = format!("/{}", key.replace('.', "/"));
        assert!(shown.pointer(&pointer).is_some(), "{key} is not shown");
    }
}

#[test]
fn flags_come_before_variables_before_the_file() {
    let text = "http: 127.0.0.1:1\nmax_counters: 1001\nlimits: {max_connections: 5}\n";
    let env = [("TOLLGATE_HTTP", "127.0.0.1:2"), ("TOLLGATE_MAX_COUNTERS", "1002")];
    let flags = Overrides { http: Some("127.0.0.1:3".parse().unwrap()), ..Overrides::default() };
    let config = load(text, &env, &flags).unwrap();
    assert_eq!(config.http.port(), 3);
    assert_eq!(config.max_counters, 1002);
    assert_eq!(config.limits.max_connections, 5);
    assert_eq!(config.limits.max_body_bytes, 1_048_576);
}

#[test]
fn variables_say_every_kind_of_value() {
    let config = from_env(&[
        ("TOLLGATE_LIMITS_MAX_BODY_BYTES", "2048"),
        ("TOLLGATE_HEADERS_RATELIMIT", "false"),
        ("TOLLGATE_DATA_DIR", "null"),
        ("TOLLGATE_RULES", "a.yaml"),
        ("TOLLGATE_ENFORCEMENT", "off"),
        ("TOLLGATE_CORS_ORIGINS", "https://a.example, http://b.example:8080"),
        ("TOLLGATE_THREADS", ""),
        ("TOLLGATE_LOG_FORMAT", "json"),
        ("HOME", "x"),
    ])
    .unwrap();
    assert_eq!(config.limits.max_body_bytes, 2048);
    assert!(!config.headers.ratelimit && config.headers.x_ratelimit);
    assert_eq!((config.data_dir, config.rules), (None, Some("a.yaml".into())));
    assert_eq!(config.enforcement, Enforcement::Off);
    assert_eq!(config.cors_origins, ["https://a.example", "http://b.example:8080"]);
    assert_eq!(config.threads, 0);
    assert_eq!(config.log.format, LogFormat::Json);
}

#[test]
fn an_unknown_key_is_named_with_its_place() {
    let problems = from_file("threads: 1\nlimits:\n  max_body: 5\n").unwrap_err();
    assert!(
        problems.starts_with("t.yaml:3:3: limits.max_body: there is no such key; there are body_t"),
        "{problems}"
    );
    let dotted = from_file("limits.max_body_bytes: 5000\n").unwrap_err();
    assert!(dotted.starts_with("t.yaml:1:1: limits.max_body_bytes: there is no"), "{dotted}");
}

#[test]
fn all_problems_are_reported_at_once() {
    let text = "\
http: here
enforcement: maybe
max_counters: 1
threads: many
headers: {ratelimit: 1}
limits: [1]
journal_interval_ms: 1.5
cors_origins: [https://a.example/, 5]
data_dir: ''
log: {level: loud}
nonsense: 1
";
    let problems = load(text, &[("TOLLGATE_LOG_FORMAT", "xml")], &Overrides::default());
    let problems = problems.unwrap_err();
    for expected in [
        "t.yaml:1:7: http: must be an address and a port such as 127.0.0.1:8080, not \"here\"",
        "t.yaml:2:14: enforcement: must be one of on, shadow, off, not \"maybe\"",
        "t.yaml:3:15: max_counters: must be a whole number from 1000 to 1000000000, not 1",
        "t.yaml:4:10: threads: must be a whole number from 0 to 1024, not text",
        "t.yaml:5:22: headers.ratelimit: must be true or false, not a whole number",
        "t.yaml:6:9: limits: must be a mapping of keys to values, not a list",
        "t.yaml:7:22: journal_interval_ms: must be a whole number from 10 to 60000, not a fraction",
        "t.yaml:8:16: cors_origins: must be an origin such as https://console.example.com",
        "t.yaml:8:36: cors_origins: must be text in quotes, not a whole number",
        "t.yaml:9:11: data_dir: must not be empty; null means none",
        "t.yaml:10:14: log.level: must be one of off, error, warn, info, debug, trace, not \"loud\"",
        "t.yaml:11:1: nonsense: there is no such key",
        "TOLLGATE_LOG_FORMAT: log.format: must be one of auto, text, json, not \"xml\"",
    ] {
        assert!(problems.contains(expected), "{expected}\nis not in\n{problems}");
    }
    assert_eq!(problems.lines().count(), 13, "{problems}");
}

#[test]
fn text_that_is_not_yaml_is_refused_with_its_place() {
    for text in ["a: [", "http: a\nhttp: b\n", "- 1\n", "5", "a: b: c"] {
        let problems = from_file(text).unwrap_err();
        assert!(problems.starts_with("t.yaml:"), "{text:?}: {problems}");
    }
    let absent = Path::new("no/such/file.yaml");
    let problems = Config::load(Some(absent), std::iter::empty(), &Overrides::default());
    let problems = problems.unwrap_err().to_string();
    assert!(problems.starts_with("no/such/file.yaml: cannot be read: "), "{problems}");
}

#[test]
fn off_loopback_someone_has_to_choose() {
    let problems = from_file("http: 0.0.0.0:80\n").unwrap_err();
    assert!(problems.starts_with("t.yaml:1:7: data_auth: is missing although"), "{problems}");
    assert!(from_file("http: '[::ffff:127.0.0.1]:80'\n").is_ok());
    assert!(from_file("http: localhost:80\n").is_ok());
    let open = from_file("http: 0.0.0.0:80\ndata_auth: none\n").unwrap();
    assert_eq!(open.data_auth, DataAuth::None);
}

#[test]
fn tokens_come_as_digests_or_from_a_file() {
    let tokens = file("\nsecret\n  other  \n");
    let text = format!(
        "http: 0.0.0.0:80\ndata_auth: token\ndata_tokens: [{DIGEST}]\ndata_token_file: {:?}\n",
        tokens.path()
    );
    let config = from_file(&text).unwrap();
    let DataAuth::Token(digests) = &config.data_auth else { panic!("no tokens") };
    assert_eq!(digests.len(), 3);
    assert_eq!(digests[0], digests[1]);
    assert_eq!(digests[0][0], 0x2b);
    assert!(config.to_yaml().contains("(hidden)"));
    assert!(!config.to_yaml().contains(&DIGEST[..8]));
    assert!(format!("{config:?}").contains("Token(3 hidden)"));
}

#[test]
fn wrong_tokens_are_reported_without_repeating_them() {
    let problem = from_env(&[("TOLLGATE_DATA_AUTH", "token")]).unwrap_err();
    assert!(problem.contains("TOLLGATE_DATA_AUTH: data_auth: token needs"), "{problem}");
    let env = [("TOLLGATE_DATA_AUTH", "token"), ("TOLLGATE_DATA_TOKENS", "hunter2")];
    let problem = from_env(&env).unwrap_err();
    assert!(problem.contains("must be SHA-256 digests") && !problem.contains("hunter2"));
    let unsaid = from_env(&[("TOLLGATE_DATA_TOKENS", DIGEST)]).unwrap_err();
    assert!(unsaid.contains("is missing although data_tokens are configured"), "{unsaid}");
    let empty = file("\n");
    let path = empty.path().to_str().unwrap();
    let env = [("TOLLGATE_DATA_AUTH", "token"), ("TOLLGATE_DATA_TOKEN_FILE", path)];
    assert!(from_env(&env).unwrap_err().contains("has no token in it"));
}

#[test]
fn a_variable_that_is_no_setting_is_worth_a_warning() {
    let names = ["TOLLGATE_HTPP", "TOLLGATE_HTTP", "TOLLGATE_CONFIG", "TOLLGATE_ADMIN_TOKEN", "A"];
    let unknown = unknown_variables(names.into_iter().map(str::to_owned));
    assert_eq!(unknown, ["TOLLGATE_HTPP"]);
}

#[test]
fn stores_take_over_what_the_redis_section_says() {
    let text = "
redis: {timeout_ms: 50, prefix: mine}
stores:
  regional: {urls: ['redis://10.0.0.1:6379']}
  global: {urls: ['rediss://ann:geheim@a', 'rediss://ann:geheim@b'], kind: cluster, timeout_ms: 300}
";
    let config = from_file(text).unwrap();
    let names: Vec<&str> = config.shared_stores().map(|store| store.name.as_str()).collect();
    assert_eq!(names, ["regional", "global"], "the redis section names no server");
    assert_eq!(config.stores[0].timeout, Duration::from_millis(50));
    assert_eq!(
        (config.stores[1].timeout, config.stores[1].kind),
        (Duration::from_millis(300), RedisKind::Cluster)
    );
    assert!(config.stores.iter().all(|store| store.prefix == "mine"));
    for shown in [config.to_yaml(), config.to_json().to_string(), format!("{config:?}")] {
        assert!(!shown.contains("geheim"), "{shown}");
        assert!(shown.contains("10.0.0.1"), "{shown}");
    }
    let both =
        from_file("redis: {urls: ['unix:///run/redis.sock']}\nstores: {a: {urls: ['redis://h']}}")
            .unwrap();
    let names: Vec<&str> = both.shared_stores().map(|store| store.name.as_str()).collect();
    assert_eq!(names, ["default", "a"]);
}

#[test]
fn redis_url_is_honoured_where_nothing_else_is_said() {
    let urls = |config: Config| config.redis.urls;
    let variable = ("REDIS_URL", "redis://from-variable:1");
    assert_eq!(urls(from_env(&[variable]).unwrap()), ["redis://from-variable:1"]);
    let text = "redis: {urls: ['redis://from-file:1']}";
    let said = load(text, &[variable], &Overrides::default()).unwrap();
    assert_eq!(urls(said), ["redis://from-file:1"]);
    let flags = Overrides {
        redis: vec!["redis://a:1".to_owned(), "redis://b:2".to_owned()],
        redis_cluster: true,
        ..Overrides::default()
    };
    let said = load(text, &[variable], &flags).unwrap();
    assert_eq!(
        (said.redis.kind, urls(said)),
        (RedisKind::Cluster, vec!["redis://a:1".to_owned(), "redis://b:2".to_owned()])
    );
}

#[test]
fn redis_cluster_mode_is_honoured_or_refused_aloud() {
    let url = ("REDIS_URL", "redis://a:1");
    let kind = |mode| from_env(&[url, ("REDIS_CLUSTER_MODE", mode)]).map(|it| it.redis.kind);
    assert_eq!(kind("true").unwrap(), RedisKind::Cluster);
    assert_eq!(kind("false").unwrap(), RedisKind::Single);
    let problem = kind("maybe").unwrap_err();
    assert!(problem.contains("REDIS_CLUSTER_MODE") && problem.contains("maybe"), "{problem}");
    let alone = from_env(&[("REDIS_CLUSTER_MODE", "true")]).unwrap_err();
    assert!(alone.contains("cluster needs the addresses of its servers"), "{alone}");
    let text = "redis: {urls: ['redis://a:1'], kind: single}";
    let said = load(text, &[("REDIS_CLUSTER_MODE", "true")], &Overrides::default()).unwrap();
    assert_eq!(said.redis.kind, RedisKind::Single, "the file says so");
}

#[test]
fn a_misspelt_key_is_recognised() {
    for (text, said) in [
        ("enforcment: on", "there is no such key; did you mean enforcement?"),
        ("redis: {timout_ms: 5}", "there is no such key; did you mean timeout_ms?"),
        ("colour: red", "there is no such key; there are "),
    ] {
        let problem = from_file(text).unwrap_err();
        assert!(problem.contains(said), "{problem}");
    }
}

#[test]
fn wrong_stores_are_named() {
    for (text, said) in [
        ("redis: {urls: ['localhost:6379']}", "redis.urls: must begin with redis://"),
        ("redis: {urls: ['redis://a', 'redis://b']}", "redis.urls: one server has one URL"),
        ("redis: {urls: ['unix:///s'], kind: cluster}", "redis.urls: a socket is one server"),
        ("redis: {kind: cluster}", "redis.kind: cluster needs the addresses of its servers"),
        ("redis: {urls: ['redis://']}", "redis.urls: "),
        ("redis: {urls: ['redis://h:99999']}", "redis.urls: "),
        ("redis: {urls: ['redis://h/abc']}", "redis.urls: "),
        ("redis: {urls: ['redis://h'], prefix: '{x}'}", "redis.urls: the key prefix"),
        ("redis: {kind: ring}", "redis.kind: must be one of single, cluster, sentinel"),
        ("redis: {password_file: /nowhere/at/all}", "redis.password_file: /nowhere/at/all cannot"),
        ("stores: {a: {}}", "stores.a: its urls must name at least one server"),
        ("stores: {a: {url: x}}", "stores.a.url: there is no such key; did you mean urls?"),
        ("stores: {default: {urls: ['redis://a']}}", "stores: a store's name is"),
        ("stores: {'a b': {urls: ['redis://a']}}", "stores: a store's name is"),
        ("stores: [a]", "stores: must be a mapping of names to stores"),
    ] {
        let problems = from_file(text).unwrap_err();
        assert!(problems.contains(said), "{text}: {problems}");
    }
}

#[test]
fn prices_are_a_file_or_a_list() {
    let list = r#"prices: [{model: m, currency: USD, per_request: "2"}]"#;
    let price = |config: &Config, model: &str| {
        let prices = config.prices.load().unwrap();
        prices.price(model, 0).map(|price| price.per_request)
    };
    assert_eq!(price(&from_file("").unwrap(), "m"), None);
    let config = from_file(list).unwrap();
    assert_eq!((price(&config, "m"), price(&config, "x")), (Some(2_000_000_000), None));
    let default = "unpriced: default_price\ndefault_price: {currency: USD, per_request: '3'}";
    let config = from_file(&format!("{list}\n{default}")).unwrap();
    assert_eq!(price(&config, "x"), Some(3_000_000_000));
    assert_eq!(from_file(&config.to_yaml()).unwrap().prices, config.prices);
    let own = file(list);
    let path = own.path().display().to_string();
    let by_variable = from_env(&[("TOLLGATE_PRICES", &path)]).unwrap();
    assert_eq!(price(&by_variable, "m"), Some(2_000_000_000));
    assert!(from_env(&[("TOLLGATE_PRICES", "/nowhere")]).unwrap().prices.load().is_err());
}

#[test]
fn wrong_prices_are_named() {
    for (text, said) in [
        (
            "prices: [{model: m, currency: USD, per_request: 2}]",
            "prices[0].per_request: must be a decimal",
        ),
        ("prices: [{model: m, currency: USD}]", "prices[0].per_million: is missing"),
        ("prices: {a: 1}", "prices: must be a list"),
        ("unpriced: free", "unpriced: must be reject or default_price"),
        ("unpriced: default_price", "default_price: is missing"),
        ("prices: prices.yaml\nunpriced: default_price", "unpriced: belongs into the price file"),
    ] {
        let problems = from_file(text).unwrap_err();
        assert!(problems.contains(said), "{text}: {problems}");
    }
}
