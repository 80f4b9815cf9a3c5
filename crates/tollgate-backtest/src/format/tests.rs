//! Every format with its real quirks.

use tollgate_core::SECOND;
use tollgate_policy::Known;

use super::*;
use crate::extract::Extract;

fn parse_with(
    format: Format,
    mapping: &Mapping,
    header: &str,
    line: &str,
) -> Result<Record, Malformed> {
    let mut parser = Parser::new(format, mapping, header).unwrap();
    let mut record = Record::default();
    parser.parse(line, &mut record).map(|()| record)
}

fn parse(line: &str) -> Result<Record, Malformed> {
    let format = Format::detect(line, &Mapping::default(), true).unwrap();
    parse_with(format, &Mapping::default(), "", line)
}

/// Address, user, method, endpoint, domain.
fn shown(record: &Record) -> [&str; 5] {
    [Known::Ip, Known::UserId, Known::Method, Known::Endpoint, Known::Domain]
        .map(|known| record.get(known))
}

const AT: u64 = 971_211_336 * SECOND;

#[test]
fn combined_and_common() {
    for (line, fields) in [
        (
            r#"127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326"#,
            ["127.0.0.1", "frank", "GET", "/apache_pb.gif", ""],
        ),
        (
            r#"2001:db8::17 - - [10/Oct/2000:20:55:36 +0000] "POST /a?b=%2F HTTP/2.0" 429 0 "-" "Mozilla/5.0 (X; \"quoted\" \\ agent)""#,
            ["2001:db8::/64", "", "POST", "/a", ""],
        ),
        // A user with spaces, and fields that were appended.
        (
            r#"203.0.113.9 - John Doe [10/Oct/2000:20:55:36 +0000] "GET /x HTTP/1.1" 200 5 "https://a/" "curl" "198.51.100.7" 0.012"#,
            ["203.0.113.9", "John Doe", "GET", "/x", ""],
        ),
        // nginx writes quotation marks as \x22; no size is -.
        (
            r#"203.0.113.9 - - [10/Oct/2000:20:55:36 +0000] "GET /\x22x\x22 HTTP/1.1" 304 - "-" "\x22agent\x22""#,
            ["203.0.113.9", "", "GET", "/\"x\"", ""],
        ),
        (
            r#"203.0.113.9 - - [10/Oct/2000:20:55:36 +0000] "GET http://shop.example/x HTTP/1.1" 200 1"#,
            ["203.0.113.9", "", "GET", "/x", "shop.example"],
        ),
    ] {
        let record = parse(line).unwrap();
        assert_eq!((shown(&record), record.at), (fields, AT), "{line}");
    }
    let combined = r#"1.2.3.4 - - [10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1" 200 1 "-" "x""#;
    assert_eq!(Format::detect(combined, &Mapping::default(), false), Some(Format::Combined));
    let common = r#"1.2.3.4 - - [10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1" 200 1"#;
    assert_eq!(Format::detect(common, &Mapping::default(), false), Some(Format::Common));
    assert_eq!(parse(combined).unwrap().status, Some(200));
}

#[test]
fn lines_of_proxies_that_saw_no_request() {
    for request in ["-", "", r"\x16\x03\x01\x02", "GET"] {
        let line = format!(r#"1.2.3.4 - - [10/Oct/2000:20:55:36 +0000] "{request}" 400 0 "-" "-""#);
        assert_eq!(parse(&line).unwrap_err(), Malformed::NoRequest, "{line}");
    }
}

#[test]
fn broken_lines_of_common_format() {
    let clf = |line: &str| parse_with(Format::Combined, &Mapping::default(), "", line).unwrap_err();
    for line in [
        "",
        "x",
        "1.2.3.4 - -",
        "1.2.3.4 - - [10/Oct/2000:20:55:36 +0000",
        r#"1.2.3.4 - - [10/Oct/2000:20:55:36 +0000] "GET / HTTP/1.1"#,
        "1.2.3.4 - - [10/Oct/2000:20:55:36 +0000] GET / HTTP/1.1",
    ] {
        assert!(matches!(clf(line), Malformed::Form(_)), "{line}");
    }
    let line = r#"1.2.3.4 - - [not a time] "GET / HTTP/1.1" 200 1"#;
    assert_eq!(clf(line), Malformed::Time);
}

#[test]
fn json_of_nginx_envoy_caddy_and_traefik() {
    for (line, fields) in [
        (
            r#"{"time_local":"10/Oct/2000:13:55:36 -0700","remote_addr":"203.0.113.9","remote_user":"","request":"GET /a?x HTTP/1.1","status":"200","http_user_agent":"a \"b\"","request_time":"0.005"}"#,
            ["203.0.113.9", "", "GET", "/a", ""],
        ),
        (
            r#"{"msec":"971211336.000","time_iso8601":"1999-01-01T00:00:00+00:00","remote_addr":"2001:db8::1","request_method":"POST","request_uri":"/v1/chat","host":"api.example"}"#,
            ["2001:db8::/64", "", "POST", "/v1/chat", "api.example"],
        ),
        (
            r#"{"start_time":"2000-10-10T20:55:36.000Z","method":"GET","path":"/a?b","authority":"api.example:8443","response_code":200,"downstream_remote_address":"203.0.113.9:4711","duration":12,"x_forwarded_for":"198.51.100.1","user_agent":null}"#,
            ["203.0.113.9", "", "GET", "/a", "api.example"],
        ),
        (
            r#"{"level":"info","ts":971211336.000,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"127.0.0.1","client_ip":"203.0.113.9","proto":"HTTP/2.0","method":"GET","host":"localhost","uri":"/a?b","headers":{"User-Agent":["curl"]}},"user_id":"ann","duration":0.000929675,"status":200}"#,
            ["203.0.113.9", "ann", "GET", "/a", "localhost"],
        ),
        (
            r#"{"ClientAddr":"203.0.113.9:50000","ClientHost":"203.0.113.9","ClientUsername":"-","DownstreamStatus":200,"Duration":1500000,"RequestAddr":"a.example","RequestHost":"a.example","RequestMethod":"GET","RequestPath":"/a?q","StartUTC":"2000-10-10T20:55:36.000000000Z","StartLocal":"2000-10-10T22:55:36+02:00","time":"2000-10-10T20:55:37Z"}"#,
            ["203.0.113.9", "", "GET", "/a", "a.example"],
        ),
    ] {
        let record = parse(line).unwrap();
        assert_eq!((shown(&record), record.at), (fields, AT), "{line}");
    }
}

#[test]
fn json_of_tollgate_has_all_attributes() {
    let line = r#"{"time":971211336000000000,"userId":"ann","tenantId":"acme","ip":"2001:DB8::17","endpoint":"/a","cost":3,"tokens":40,"attributes":{"region":"eu","user_id":"forged"},"nested":{"deep":[{"x":1}]}}"#;
    let record = parse(line).unwrap();
    assert_eq!((record.at, record.amounts.cost, record.amounts.tokens), (AT, Some(3), Some(40)));
    let attributes = record.attributes();
    assert_eq!(attributes.by_name("region"), Some("eu"));
    assert_eq!(attributes.get(Known::UserId), Some("ann"));
    assert_eq!(attributes.get(Known::Ip), Some("2001:db8::17"));
}

#[test]
fn json_by_mapping() {
    let maps = ["meta.org=tenant_id", "headers.X-Api-Key=api_key", "when=time", "zone=region"];
    let mapping = Mapping::new(&maps.map(str::to_owned), &[]).unwrap();
    let line = r#"{"when":"2000-10-10T20:55:36Z","meta":{"org":"acme","x":{}},"headers":{"X-Api-Key":["sk-1","sk-2"]},"zone":"eu"}"#;
    let record = parse_with(Format::Json, &mapping, "", line).unwrap();
    assert_eq!((record.get(Known::TenantId), record.get(Known::ApiKey)), ("acme", "sk-1"));
    assert_eq!((record.at, record.attributes().by_name("region")), (AT, Some("eu")));
    for (broken, problem) in [
        ("{", None),
        ("[]", None),
        (r#"{"when":"x"} trailing"#, None),
        (r#"{"when":"x"}"#, Some(Malformed::Time)),
        (r#"{"when":"2000-10-10T20:55:36Z","attributes":{"a":{}}}"#, None),
    ] {
        let found = parse_with(Format::Json, &mapping, "", broken).unwrap_err();
        assert_eq!(found, problem.unwrap_or(Malformed::Form("it is no JSON object")), "{broken}");
    }
}

#[test]
fn load_balancers_of_aws() {
    let line = r#"https 2000-10-10T20:55:37.186641Z app/my-lb/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://www.example.com:443/a?b HTTP/1.1" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 "Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.com" "arn:aws:acm:us-east-2:123456789012:certificate/12345678-1234-1234-1234-123456789012" 1 2000-10-10T20:55:36.000000Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-" TID_123"#;
    let record = parse(line).unwrap();
    assert_eq!(shown(&record), ["192.168.131.39", "", "GET", "/a", "www.example.com"]);
    // The time at which it came, not the one at which it was answered.
    assert_eq!((record.at, record.status), (AT, Some(200)));
    assert_eq!(record.duration, Some(171_000_000));
    // No target took it, and an old log has no more fields.
    let line = r#"h2 2000-10-10T20:55:36.000000Z app/lb/1 [2001:db8::17]:443 - -1 -1 -1 503 - 0 0 "GET https://www.example.com:443/a HTTP/2.0" "-" - -"#;
    let record = parse(line).unwrap();
    assert_eq!(shown(&record), ["2001:db8::/64", "", "GET", "/a", "www.example.com"]);
    assert_eq!((record.at, record.duration, record.status), (AT, None, Some(503)));
    let line = r#"http 2000-10-10T20:55:36.000000Z app/lb/1 192.0.2.1:443 - -1 -1 -1 400 - 0 0 "- http://lb.example:80- -" "-" - -"#;
    assert_eq!(parse(line).unwrap_err(), Malformed::NoRequest);
    let short = "http 2000-10-10T20:55:36.000000Z app/lb/1 192.0.2.1:443";
    assert!(matches!(parse(short), Err(Malformed::Form(_))));
}

#[test]
fn csv_with_quotes_and_other_separators() {
    let mapping = Mapping::new(&["org=tenant_id".to_owned()], &[]).unwrap();
    for (header, line) in [
        ("time,org,method,path", r#"971211336,"a ""b"", c",GET,/x"#),
        ("path;time;org;method", r#"/x;2000-10-10 20:55:36;"a ""b"", c";GET"#),
        ("org\ttime\tmethod\tpath", "a \"b\", c\t971211336000\tGET\t/x"),
    ] {
        assert_eq!(Format::detect(header, &mapping, true), Some(Format::Csv), "{header}");
        let record = parse_with(Format::Csv, &mapping, header, line).unwrap();
        assert_eq!((record.at, record.get(Known::TenantId)), (AT, "a \"b\", c"), "{line}");
        assert_eq!((record.get(Known::Method), record.get(Known::Endpoint)), ("GET", "/x"));
    }
    for (line, problem) in [
        ("971211336,x", Malformed::Form("it has fewer values than the header")),
        ("971211336,x,GET,/,y", Malformed::Form("it has more values than the header")),
        ("971211336,\"x,GET,/", Malformed::Form("a quoted value does not end")),
        ("x,x,GET,/", Malformed::Time),
    ] {
        let header = "time,org,method,path";
        assert_eq!(parse_with(Format::Csv, &mapping, header, line).unwrap_err(), problem, "{line}");
    }
    assert_eq!(Parser::new(Format::Csv, &mapping, "a,b").err(), Some("a, b".to_owned()));
    assert_eq!(Format::detect("a,b", &mapping, true), None);
}

#[test]
fn attributes_from_parts_of_fields() {
    let extract = Extract::parse("request=* /t/{tenant_id}/* HTTP/*").unwrap();
    let mapping = Mapping::new(&[], &[extract]).unwrap();
    let line = r#"1.2.3.4 - - [10/Oct/2000:20:55:36 +0000] "GET /t/acme/users HTTP/1.1" 200 1"#;
    let record = parse_with(Format::Common, &mapping, "", line).unwrap();
    assert_eq!(
        (record.get(Known::TenantId), record.get(Known::Endpoint)),
        ("acme", "/t/acme/users")
    );
}

#[test]
fn values_beyond_bounds_are_not_replayed() {
    let long = "x".repeat(300);
    let line = format!(r#"{{"time":971211336,"user_id":"{long}"}}"#);
    assert_eq!(parse(&line).unwrap_err(), Malformed::TooLong);
}
