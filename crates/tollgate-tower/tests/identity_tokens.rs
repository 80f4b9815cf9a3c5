//! Bearer tokens: the table of attacks, and what good ones say.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tables and helpers of a test"
)]

mod tokens;

use std::time::Duration;

use http::HeaderMap;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use jsonwebtoken::Algorithm;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokens::{
    AUDIENCE, ISSUER, Issuer, NOW, RSA_PUBLIC_PEM, SECRET, ask, base64url, bearer, claims,
    identifier, jwks, options,
};
use tollgate_tower::Format;
use tollgate_tower::identity::{
    ClaimNames, Identifier, IdentityError, IdentityOptions, Jwks, JwksError, JwtOptions, KeySource,
};

/// What the table is tried against.
struct Bed {
    rsa: Issuer,
    elliptic: Issuer,
    edwards: Issuer,
    secret: Issuer,
    /// A set of three keys, all public.
    by_set: Identifier,
    /// The same set, and the document that attackers can read.
    document: Vec<u8>,
    /// One RSA key from a PEM file.
    by_pem: Identifier,
    by_secret: Identifier,
}

impl Bed {
    fn new() -> Self {
        let rsa = Issuer::rsa();
        let elliptic = Issuer::elliptic(Algorithm::ES256);
        let edwards = Issuer::edwards();
        let secret = Issuer::secret(SECRET, Algorithm::HS256);
        let document = jwks(&[
            rsa.named("rsa-1", json!({"alg": "RS256", "use": "sig"})),
            elliptic.named("ec-1", json!({})),
            edwards.named("ed-1", json!({"use": "sig"})),
        ]);
        let public = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
        let by_set = identifier(options(&public, KeySource::Jwks(document.clone())));
        let pem = KeySource::Pem(RSA_PUBLIC_PEM.into());
        let by_pem = identifier(options(&[Algorithm::RS256], pem));
        let key = KeySource::Secret(SECRET.to_vec());
        let by_secret = identifier(options(&[Algorithm::HS256], key));
        Self { rsa, elliptic, edwards, secret, by_set, document, by_pem, by_secret }
    }
}

enum Said {
    Ann,
    Refused(&'static str),
}
use Said::{Ann, Refused};

const HEADER: &str = "the header of the token cannot be read";
const ALGORITHM: &str = "the algorithm of the token is not accepted";
const SIGNATURE: &str = "the signature of the token does not match";
const KEY: &str = "the key of the token is not known";
const CLAIMS: &str = "the claims of the token cannot be read";
const TIME: &str = "not a number of seconds";

fn with_header(issuer: &Issuer, header: &str) -> String {
    issuer.sign(header, claims(json!({})).to_string().as_bytes())
}

fn unsigned(header: &str, signature: &str) -> String {
    let claims = claims(json!({})).to_string();
    format!("{}.{}.{signature}", base64url(header.as_bytes()), base64url(claims.as_bytes()))
}

/// Tokens whose header lies.
fn header_attacks(bed: &Bed) -> Vec<(&'static str, String, Said)> {
    let long = "k".repeat(257);
    let pem_as_secret = Issuer::secret(RSA_PUBLIC_PEM.as_bytes(), Algorithm::HS256);
    let set_as_secret = Issuer::secret(&bed.document, Algorithm::HS256);
    let other = Issuer::elliptic(Algorithm::ES256);
    let own_key = format!(r#"{{"alg":"ES256","kid":"ec-1","jwk":{}}}"#, other.jwk);
    let own_unnamed = format!(r#"{{"alg":"ES256","jwk":{}}}"#, other.jwk);
    let ec = &bed.elliptic;
    let mut rows = vec![
        ("none", unsigned(r#"{"alg":"none"}"#, ""), Refused(HEADER)),
        ("None", unsigned(r#"{"alg":"None"}"#, ""), Refused(HEADER)),
        ("NONE", unsigned(r#"{"alg":"NONE"}"#, ""), Refused(HEADER)),
        ("nOnE", unsigned(r#"{"alg":"nOnE"}"#, ""), Refused(HEADER)),
        ("none, signed", with_header(ec, r#"{"alg":"none","kid":"ec-1"}"#), Refused(HEADER)),
        ("empty alg", unsigned(r#"{"alg":""}"#, ""), Refused(HEADER)),
        ("no alg", unsigned("{}", ""), Refused(HEADER)),
        ("alg null", unsigned(r#"{"alg":null}"#, ""), Refused(HEADER)),
        ("alg a list", unsigned(r#"{"alg":["ES256"]}"#, ""), Refused(HEADER)),
        ("alg in lower case", with_header(ec, r#"{"alg":"es256","kid":"ec-1"}"#), Refused(HEADER)),
        ("alg with a space", with_header(ec, r#"{"alg":"ES256 ","kid":"ec-1"}"#), Refused(HEADER)),
        (
            "alg twice",
            with_header(ec, r#"{"alg":"none","alg":"ES256","kid":"ec-1"}"#),
            Refused(HEADER),
        ),
        ("alg not pinned", with_header(ec, r#"{"alg":"ES384","kid":"ec-1"}"#), Refused(ALGORITHM)),
        (
            "PS for RS",
            with_header(&bed.rsa, r#"{"alg":"PS256","kid":"rsa-1"}"#),
            Refused(ALGORITHM),
        ),
        (
            "public key as secret",
            pem_as_secret.token("rsa-1", &claims(json!({}))),
            Refused(ALGORITHM),
        ),
        ("key set as secret", set_as_secret.token("rsa-1", &claims(json!({}))), Refused(ALGORITHM)),
        (
            "alg of another key",
            with_header(ec, r#"{"alg":"RS256","kid":"ec-1"}"#),
            Refused("not for"),
        ),
        (
            "key of another alg",
            with_header(ec, r#"{"alg":"ES256","kid":"rsa-1"}"#),
            Refused("not for"),
        ),
        ("key of EdDSA", with_header(ec, r#"{"alg":"EdDSA","kid":"ed-1"}"#), Refused(SIGNATURE)),
        ("another's key", other.token("ec-1", &claims(json!({}))), Refused(SIGNATURE)),
        ("its own jwk", with_header(&other, &own_key), Refused(SIGNATURE)),
        ("its own jwk, no kid", with_header(&other, &own_unnamed), Refused(SIGNATURE)),
        (
            "its own jku",
            with_header(&other, r#"{"alg":"ES256","kid":"x","jku":"https://evil.test/jwks"}"#),
            Refused(KEY),
        ),
        (
            "its own x5u",
            with_header(&other, r#"{"alg":"ES256","kid":"ec-1","x5u":"https://evil.test/c"}"#),
            Refused(SIGNATURE),
        ),
        (
            "its own x5c",
            with_header(&other, r#"{"alg":"ES256","kid":"ec-1","x5c":["MIIB"]}"#),
            Refused(SIGNATURE),
        ),
        (
            "crit",
            with_header(ec, r#"{"alg":"ES256","kid":"ec-1","crit":["exp"]}"#),
            Refused("extensions"),
        ),
        (
            "crit b64",
            with_header(ec, r#"{"alg":"ES256","kid":"ec-1","crit":["b64"],"b64":false}"#),
            Refused("extensions"),
        ),
        ("crit empty", with_header(ec, r#"{"alg":"ES256","crit":[]}"#), Refused("extensions")),
        ("crit no list", with_header(ec, r#"{"alg":"ES256","crit":"exp"}"#), Refused(HEADER)),
        (
            "kid twice",
            with_header(ec, r#"{"alg":"ES256","kid":"x","kid":"ec-1"}"#),
            Refused(HEADER),
        ),
        ("kid a number", with_header(ec, r#"{"alg":"ES256","kid":1}"#), Refused(HEADER)),
        ("header no JSON", with_header(ec, "alg=ES256"), Refused(HEADER)),
        ("header a list", with_header(ec, r#"["ES256"]"#), Refused(HEADER)),
        ("header null", with_header(ec, "null"), Refused(HEADER)),
        ("kid too long", ec.token(&long, &claims(json!({}))), Refused("too long")),
        ("typ is not looked at", with_header(ec, r#"{"alg":"ES256","typ":"at+jwt"}"#), Ann),
    ];
    rows.push(("good, RSA", bed.rsa.token("rsa-1", &claims(json!({}))), Ann));
    rows.push(("good, Ed25519", bed.edwards.token("ed-1", &claims(json!({}))), Ann));
    rows
}

/// Tokens whose key has a name that is meant to be more than one.
fn name_attacks(bed: &Bed) -> Vec<(&'static str, String, Said)> {
    let names = [
        "../../../../dev/null",
        "/etc/passwd",
        "file:///etc/passwd",
        "https://evil.test/jwks.json",
        "ec-1' OR '1'='1",
        "x' UNION SELECT 'secret'; --",
        "ec-1\u{0}",
        "EC-1",
        " ec-1",
        "",
        "ec-1\n",
        "$(id)",
    ];
    let row = |name| (name, bed.elliptic.token(name, &claims(json!({}))), Refused(KEY));
    names.map(row).into()
}

/// Tokens that are cut, bent, or no tokens.
fn shape_attacks(bed: &Bed) -> Vec<(&'static str, String, Said)> {
    let good = bed.elliptic.token("ec-1", &claims(json!({})));
    let parts: Vec<&str> = good.split('.').collect();
    let (header, body, mac) = (parts[0], parts[1], parts[2]);
    let other_body = base64url(claims(json!({"sub": "root"})).to_string().as_bytes());
    let swapped = if mac.starts_with('A') { 'B' } else { 'A' };
    vec![
        ("good", good.clone(), Ann),
        ("claims changed", format!("{header}.{other_body}.{mac}"), Refused(SIGNATURE)),
        (
            "signature changed",
            format!("{header}.{body}.{swapped}{}", &mac[1..]),
            Refused(SIGNATURE),
        ),
        ("signature cut", good[..good.len() - 2].to_owned(), Refused(SIGNATURE)),
        ("no signature", format!("{header}.{body}."), Refused(SIGNATURE)),
        (
            "signature of zeros",
            format!("{header}.{body}.{}", base64url(&[0; 64])),
            Refused(SIGNATURE),
        ),
        ("two parts", format!("{header}.{body}"), Refused(HEADER)),
        ("one part", header.to_owned(), Refused(HEADER)),
        ("four parts", format!("{good}.{mac}"), Refused(HEADER)),
        ("five parts", format!("{good}.{body}.{mac}"), Refused(HEADER)),
        ("dots", "..".to_owned(), Refused(HEADER)),
        ("empty", String::new(), Refused(HEADER)),
        ("bad base64 in the header", format!("!{}.{body}.{mac}", &header[1..]), Refused(HEADER)),
        ("bad base64 in the claims", format!("{header}.!{}.{mac}", &body[1..]), Refused(SIGNATURE)),
        (
            "bad base64 in the signature",
            format!("{header}.{body}.!{}", &mac[1..]),
            Refused(SIGNATURE),
        ),
        ("padding", format!("{good}=="), Refused(SIGNATURE)),
        ("two tokens", format!("{good} {good}"), Refused(HEADER)),
        ("with a comma", format!("{good},{good}"), Refused(HEADER)),
        ("huge", format!("{header}.{}.{mac}", "A".repeat(9000)), Refused("8192 bytes")),
        ("a megabyte", "A".repeat(1 << 20), Refused("8192 bytes")),
    ]
}

/// Tokens that are signed well and say what they must not.
fn claim_attacks(bed: &Bed) -> Vec<(&'static str, String, Said)> {
    let ec = &bed.elliptic;
    let says = |changes: Value| ec.token("ec-1", &claims(changes));
    let raw = |text: &[u8]| ec.sign(r#"{"alg":"ES256","kid":"ec-1"}"#, text);
    let more = |text: &str| {
        let all = claims(json!({"exp": null})).to_string();
        raw(format!("{},{text}}}", all.strip_suffix('}').unwrap()).as_bytes())
    };
    vec![
        ("expired", says(json!({"exp": NOW - 31})), Refused("has expired")),
        ("expired at the leeway", says(json!({"exp": NOW - 30})), Refused("has expired")),
        ("expired within the leeway", says(json!({"exp": NOW - 29})), Ann),
        ("expired in 1970", says(json!({"exp": 0})), Refused("has expired")),
        ("no exp", says(json!({"exp": null})), Refused("has no expiry")),
        ("exp null", more(r#""exp":null"#), Refused(TIME)),
        ("exp text", says(json!({"exp": (NOW + 600).to_string()})), Refused(TIME)),
        ("exp nested", says(json!({"exp": {"$date": NOW + 600}})), Refused("of the token")),
        ("exp a list", says(json!({"exp": [NOW + 600]})), Refused("of the token")),
        ("exp true", says(json!({"exp": true})), Refused("of the token")),
        ("exp negative", says(json!({"exp": -1})), Refused("of the token")),
        ("exp a fraction, ahead", more(&format!(r#""exp":{}.5"#, NOW + 600)), Ann),
        ("exp a fraction, behind", more(&format!(r#""exp":{}.5"#, NOW - 600)), Refused("expired")),
        ("exp 2^64 - 1", says(json!({"exp": u64::MAX})), Ann),
        ("exp above 2^64", more(r#""exp":18446744073709551616"#), Refused("of the token")),
        ("exp infinite", more(r#""exp":1e400"#), Refused(CLAIMS)),
        ("exp NaN", more(r#""exp":NaN"#), Refused(CLAIMS)),
        ("exp twice", more(r#""exp":1,"exp":2000000000"#), Refused(CLAIMS)),
        ("sub twice", more(r#""exp":2000000000,"sub":"root""#), Refused(CLAIMS)),
        ("nested twice", more(r#""exp":2000000000,"x":{"a":1,"a":2}"#), Refused(CLAIMS)),
        ("nbf ahead", says(json!({"nbf": NOW + 31})), Refused("does not hold yet")),
        ("nbf within the leeway", says(json!({"nbf": NOW + 30})), Ann),
        ("nbf text", says(json!({"nbf": "0"})), Refused(TIME)),
        ("iat ahead", says(json!({"iat": NOW + 31})), Refused("in the future")),
        ("iat text", says(json!({"iat": "now"})), Refused(TIME)),
        ("no nbf, no iat", says(json!({"nbf": null, "iat": null})), Ann),
        ("other audience", says(json!({"aud": "admin"})), Refused("another audience")),
        ("other audiences", says(json!({"aud": ["admin", "ap"]})), Refused("another audience")),
        ("among audiences", says(json!({"aud": ["admin", AUDIENCE]})), Ann),
        ("audience no text", says(json!({"aud": {"api": true}})), Refused("another audience")),
        ("no audience", says(json!({"aud": null})), Refused("no audience")),
        ("empty audiences", says(json!({"aud": []})), Refused("another audience")),
        ("other issuer", says(json!({"iss": "https://evil.test"})), Refused("another issuer")),
        (
            "issuer with a tail",
            says(json!({"iss": format!("{ISSUER}/")})),
            Refused("another issuer"),
        ),
        ("issuers", says(json!({"iss": [ISSUER]})), Refused("another issuer")),
        ("no issuer", says(json!({"iss": null})), Refused("no issuer")),
        ("claims no object", raw(b"[]"), Refused(CLAIMS)),
        ("claims no JSON", raw(b"sub=ann"), Refused(CLAIMS)),
        ("claims not UTF-8", raw(b"{\"sub\":\"\xff\xfe\",\"exp\":2000000000}"), Refused(CLAIMS)),
        ("claims empty", raw(b""), Refused(CLAIMS)),
        ("claims nested deep", raw("[".repeat(4000).as_bytes()), Refused(CLAIMS)),
        ("sub empty", says(json!({"sub": ""})), Refused("empty or longer")),
        ("sub too long", says(json!({"sub": "x".repeat(257)})), Refused("empty or longer")),
        ("sub a list", says(json!({"sub": ["ann"]})), Refused("of the token")),
        ("sub a fraction", says(json!({"sub": 1.5})), Refused("neither text")),
        ("plan an object", says(json!({"plan": {"name": "pro"}})), Refused("neither text")),
    ]
}

fn try_table(identifier: &Identifier, rows: Vec<(&'static str, String, Said)>) -> usize {
    let count = rows.len();
    for (name, token, said) in rows {
        let headers = bearer(&token);
        let response = identifier.identify(&headers, None);
        let response = response.map_err(|rejection| rejection.into_response(Format::Json));
        match (said, response) {
            (Ann, Ok(identity)) => assert_eq!(identity.user_id.as_deref(), Some("ann"), "{name}"),
            (Ann, Err(response)) => panic!("{name}: refused: {response:?}"),
            (Refused(_), Ok(identity)) => panic!("{name}: accepted: {identity:?}"),
            (Refused(says), Err(response)) => {
                assert_eq!(response.status(), 401, "{name}");
                let challenge = response.headers().get(WWW_AUTHENTICATE).unwrap().to_str().unwrap();
                assert!(challenge.starts_with("Bearer error=\"invalid_token\""), "{challenge}");
                let body = std::str::from_utf8(response.body()).unwrap();
                assert!(body.contains("INVALID_TOKEN"), "{name}: {body}");
                assert!(body.contains(says), "{name}: {body}");
                let parts = token.split('.').filter(|part| part.len() > 8);
                for part in parts {
                    assert!(!body.contains(part), "{name}: the token is echoed");
                }
            }
        }
    }
    count
}

#[test]
fn attacks_on_tokens_are_refused() {
    let bed = Bed::new();
    let mut count = try_table(&bed.by_set, header_attacks(&bed));
    count += try_table(&bed.by_set, name_attacks(&bed));
    count += try_table(&bed.by_set, shape_attacks(&bed));
    count += try_table(&bed.by_set, claim_attacks(&bed));
    assert!(count >= 100, "{count} rows");
}

#[test]
fn no_key_serves_another_kind_of_algorithm() {
    let bed = Bed::new();
    let pem_as_secret = Issuer::secret(RSA_PUBLIC_PEM.as_bytes(), Algorithm::HS256);
    let forged = pem_as_secret.token("any", &claims(json!({})));
    let unnamed = with_header(&bed.elliptic, r#"{"alg":"RS256"}"#);
    let rows = vec![
        ("good", bed.rsa.token("whatever", &claims(json!({}))), Ann),
        ("public key as secret", forged.clone(), Refused(ALGORITHM)),
        ("signed by another", unnamed, Refused(SIGNATURE)),
    ];
    try_table(&bed.by_pem, rows);
    let rows = vec![
        ("good", bed.secret.token("whatever", &claims(json!({}))), Ann),
        ("other secret", forged, Refused(SIGNATURE)),
        ("public alg", bed.rsa.token("rsa-1", &claims(json!({}))), Refused(ALGORITHM)),
        ("longer hash", with_header(&bed.secret, r#"{"alg":"HS512"}"#), Refused(ALGORITHM)),
    ];
    try_table(&bed.by_secret, rows);
    let unnamed = with_header(&bed.elliptic, r#"{"alg":"ES256"}"#);
    // Several keys would do: which one is meant?
    let twin = Issuer::elliptic(Algorithm::ES256);
    let set = jwks(&[bed.elliptic.named("a", json!({})), twin.named("b", json!({}))]);
    let by_twins = identifier(options(&[Algorithm::ES256], KeySource::Jwks(set)));
    try_table(&by_twins, vec![("no kid", unnamed, Refused("does not say which key"))]);
}

#[test]
fn every_algorithm_verifies_what_it_signed() {
    let mut issuers = vec![Issuer::edwards()];
    for algorithm in [Algorithm::ES256, Algorithm::ES384] {
        issuers.push(Issuer::elliptic(algorithm));
    }
    for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
        issuers.push(Issuer::secret(SECRET, algorithm));
    }
    let rsa = [
        Algorithm::RS256,
        Algorithm::RS384,
        Algorithm::RS512,
        Algorithm::PS256,
        Algorithm::PS384,
        Algorithm::PS512,
    ];
    issuers.extend(rsa.map(|algorithm| Issuer { algorithm, ..Issuer::rsa() }));
    for issuer in issuers {
        let set = KeySource::Jwks(jwks(&[issuer.named("k", json!({}))]));
        let identifier = identifier(options(&[issuer.algorithm], set));
        let good = issuer.token("k", &claims(json!({})));
        let identity = ask(&identifier, &bearer(&good)).unwrap();
        assert_eq!(identity.user_id.as_deref(), Some("ann"), "{:?}", issuer.algorithm);
        let mut bytes = good.into_bytes();
        let place = bytes.len() - 20;
        bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
        let bent = String::from_utf8(bytes).unwrap();
        assert_eq!(ask(&identifier, &bearer(&bent)).unwrap_err().0, 401, "{:?}", issuer.algorithm);
    }
}

#[test]
fn a_token_that_another_library_signed_verifies() {
    // RFC 7515, appendix A.2 and A.3: keys and signatures of the standard's own authors.
    let body = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    let token = format!(
        "eyJhbGciOiJFUzI1NiJ9.{body}.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
    );
    let key = json!({
        "kty": "EC", "crv": "P-256",
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
    });
    let jwt = JwtOptions {
        leeway: Duration::from_secs(NOW),
        claims: ClaimNames { user_id: Some("iss".to_owned()), ..ClaimNames::default() },
        ..JwtOptions::new(vec![Algorithm::ES256], KeySource::Jwks(jwks(&[key])))
    };
    let identity = ask(&identifier(jwt), &bearer(&token)).unwrap();
    assert_eq!(identity.user_id.as_deref(), Some("joe"));
}

#[test]
fn claims_become_attributes() {
    let issuer = Issuer::secret(SECRET, Algorithm::HS256);
    let names = ClaimNames {
        client_type: Some("kind".to_owned()),
        tier: Some("https://acme.test/plan".to_owned()),
        attributes: vec![
            ("region".to_owned(), "place.region".to_owned()),
            ("seats".to_owned(), "place.seats".to_owned()),
            ("beta".to_owned(), "beta".to_owned()),
            ("absent".to_owned(), "place.region.x".to_owned()),
        ],
        ..ClaimNames::default()
    };
    let jwt = options(&[Algorithm::HS256], KeySource::Secret(SECRET.to_vec()));
    let identifier = identifier(JwtOptions { claims: names, ..jwt });
    let token = issuer.token(
        "",
        &claims(json!({
            "sub": 42, "kind": "PARTNER", "https://acme.test/plan": "gold", "tenant_id": null,
            "place": {"region": "eu", "seats": 7}, "beta": true,
        })),
    );
    let identity = ask(&identifier, &bearer(&token)).unwrap();
    assert_eq!(identity.user_id.as_deref(), Some("42"));
    assert_eq!(identity.tenant_id, None);
    assert_eq!(identity.tier.as_deref(), Some("gold"));
    assert_eq!(identity.client_type.as_deref(), Some("PARTNER"));
    let extra = [("region", "eu"), ("seats", "7"), ("beta", "true")];
    assert_eq!(identity.extra, extra.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

#[test]
fn absent_tokens_are_refused_only_where_they_are_required() {
    let jwt = options(&[Algorithm::HS256], KeySource::Secret(SECRET.to_vec()));
    let lax = identifier(jwt.clone());
    let strict = identifier(JwtOptions { required: true, ..jwt });
    let good = Issuer::secret(SECRET, Algorithm::HS256).token("", &claims(json!({})));
    let mut basic = HeaderMap::new();
    basic.insert(AUTHORIZATION, "Basic YTpi".parse().unwrap());
    for headers in [HeaderMap::new(), basic] {
        assert_eq!(ask(&lax, &headers).unwrap().user_id, None);
        let (status, code, _) = ask(&strict, &headers).unwrap_err();
        assert_eq!((status, code.as_str()), (401, "TOKEN_REQUIRED"));
    }
    for scheme in ["bearer", "BEARER", "Bearer  "] {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, format!("{scheme} {good}").parse().unwrap());
        assert_eq!(ask(&strict, &headers).unwrap().user_id.as_deref(), Some("ann"), "{scheme}");
    }
    let mut tab = HeaderMap::new();
    tab.insert(AUTHORIZATION, format!("Bearer\t{good}").parse().unwrap());
    assert_eq!(ask(&strict, &tab).unwrap().user_id.as_deref(), Some("ann"), "a tab is a space");
    let mut two = bearer(&good);
    two.append(AUTHORIZATION, format!("Bearer {good}").parse().unwrap());
    assert_eq!(ask(&lax, &two).unwrap_err().0, 400);
    let mut blank = HeaderMap::new();
    blank.insert(AUTHORIZATION, "Bearer".parse().unwrap());
    assert_eq!(ask(&lax, &blank).unwrap_err().1, "INVALID_TOKEN");
}

#[test]
fn an_audience_that_nobody_configured_is_not_ours() {
    let jwt = JwtOptions::new(vec![Algorithm::HS256], KeySource::Secret(SECRET.to_vec()));
    let identifier = identifier(jwt);
    let issuer = Issuer::secret(SECRET, Algorithm::HS256);
    let with = issuer.token("", &claims(json!({})));
    let without = issuer.token("", &claims(json!({"aud": null, "iss": null})));
    assert!(ask(&identifier, &bearer(&with)).unwrap_err().2.contains("none is configured"));
    assert_eq!(ask(&identifier, &bearer(&without)).unwrap().user_id.as_deref(), Some("ann"));
}

#[test]
fn configurations_that_cannot_be_right_are_refused() {
    use Algorithm::{ES256, HS256, RS256};
    let new = |algorithms: &[Algorithm], key: KeySource| {
        let jwt = Some(JwtOptions::new(algorithms.to_vec(), key));
        Identifier::new(IdentityOptions { jwt, ..IdentityOptions::default() }).unwrap_err()
    };
    let pem = || KeySource::Pem(RSA_PUBLIC_PEM.into());
    let url = |url: &str| KeySource::JwksUrl(url.to_owned());
    assert!(matches!(new(&[], pem()), IdentityError::NoAlgorithms));
    assert!(matches!(new(&[HS256, RS256], pem()), IdentityError::MixedAlgorithms));
    assert!(matches!(new(&[HS256], pem()), IdentityError::UnfitKey));
    assert!(matches!(new(&[ES256], pem()), IdentityError::UnfitKey));
    assert!(matches!(new(&[RS256], KeySource::Secret(SECRET.into())), IdentityError::UnfitKey));
    let short = KeySource::Secret(b"short".to_vec());
    assert!(matches!(new(&[HS256], short), IdentityError::Keys(JwksError::ShortSecret)));
    let private = include_bytes!("data/rsa-test-only.pem").to_vec();
    let private = new(&[RS256], KeySource::Pem(private));
    assert!(matches!(private, IdentityError::Keys(JwksError::PrivateKey)));
    let absent = KeySource::JwksFile("does/not/exist".into());
    assert!(matches!(new(&[RS256], absent), IdentityError::Unreadable(..)));
    assert!(matches!(new(&[HS256], url("https://a.test/")), IdentityError::SecretFromUrl));
    for wrong in ["http://a.test/", "ftp://a.test/", "/path", "https://u:p@a.test/", "https://", ""]
    {
        assert!(matches!(new(&[RS256], url(wrong)), IdentityError::Url(_)), "{wrong}");
    }
    for name in ["user_id", "", "ip"] {
        let mut jwt = JwtOptions::new(vec![RS256], pem());
        jwt.claims.attributes = vec![(name.to_owned(), "x".to_owned())];
        let options = IdentityOptions { jwt: Some(jwt), ..IdentityOptions::default() };
        assert!(matches!(Identifier::new(options), Err(IdentityError::AttributeName(_))));
    }
}

#[test]
fn only_keys_that_verify_signatures_are_taken_from_a_set() {
    let rsa = Issuer::rsa();
    let ec = Issuer::elliptic(Algorithm::ES256);
    let ed = Issuer::edwards();
    let long = "k".repeat(257);
    let rows = [
        (rsa.named("k", json!({})), 1),
        (rsa.named("k", json!({"use": "enc"})), 0),
        (rsa.named("k", json!({"use": "other"})), 0),
        (rsa.named("k", json!({"key_ops": ["encrypt"]})), 0),
        (rsa.named("k", json!({"key_ops": ["verify"]})), 1),
        (rsa.named("k", json!({"alg": "RSA-OAEP"})), 0),
        (rsa.named("k", json!({"alg": "ES256"})), 0),
        (rsa.named("k", json!({"alg": "HS256"})), 0),
        (rsa.named("k", json!({"n": "!!"})), 0),
        (rsa.named(&long, json!({})), 0),
        (ec.named("k", json!({"alg": "ES256"})), 1),
        (ec.named("k", json!({"alg": "ES384"})), 0),
        (ec.named("k", json!({"crv": "P-521"})), 0),
        (ec.named("k", json!({"crv": "secp256k1"})), 0),
        (ec.named("k", json!({"kty": "unknown"})), 0),
        (ed.named("k", json!({"crv": "X25519"})), 0),
        (ed.named("k", json!({"crv": "P-256"})), 0),
        (json!({"kty": "oct", "k": "c2hvcnQ"}), 0),
        (json!("text"), 0),
        (json!(null), 0),
    ];
    for (key, count) in rows {
        assert_eq!(Jwks::parse(&jwks(std::slice::from_ref(&key))).unwrap().len(), count, "{key}");
    }
    let many = vec![json!({}); 101];
    assert_eq!(Jwks::parse(&jwks(&many)).unwrap_err(), JwksError::TooManyKeys);
    assert_eq!(Jwks::parse(&vec![b' '; (1 << 20) + 1]).unwrap_err(), JwksError::TooLarge);
    for wrong in ["", "[]", "{}", "{\"keys\":{}}", "null"] {
        assert_eq!(Jwks::parse(wrong.as_bytes()).unwrap_err(), JwksError::Malformed, "{wrong}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn garbage_is_no_token(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        thread_local! { static BED: Bed = Bed::new(); }
        BED.with(|bed| {
            let mut headers = HeaderMap::new();
            let value = [b"Bearer ".as_slice(), &bytes].concat();
            let Ok(value) = http::HeaderValue::from_bytes(&value) else { return };
            headers.insert(AUTHORIZATION, value);
            let refused = bed.by_set.identify(&headers, None).unwrap_err();
            let refused = refused.into_response(Format::Json);
            assert_eq!(refused.status(), 401);
        });
    }

    #[test]
    fn garbage_in_a_signed_token_never_makes_somebody_else(
        header in "\\{(\"(alg|kid|crit|jwk|x)\":(\"[a-zA-Z0-9]{0,6}\"|null|1|\\[\\]|\\{\\}),?){0,4}\\}",
        claims in "\\{(\"(sub|exp|aud|iss|x)\":(\"[a-z]{0,4}\"|null|[0-9]{1,22}|\\[\\]|\\{\\}),?){0,5}\\}",
    ) {
        thread_local! { static BED: Bed = Bed::new(); }
        BED.with(|bed| {
            let token = bed.elliptic.sign(&header, claims.as_bytes());
            // This audience and issuer are five letters and more: none of these is for us.
            assert!(bed.by_set.identify(&bearer(&token), None).is_err());
            // Where the header is right, only the claims decide.
            let token = bed.elliptic.sign(r#"{"alg":"ES256","kid":"ec-1"}"#, claims.as_bytes());
            assert!(bed.by_set.identify(&bearer(&token), None).is_err());
        });
    }

    #[test]
    fn garbage_is_no_set_of_keys(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Jwks::parse(&bytes);
        let _ = Jwks::from_pem(&bytes);
    }

    #[test]
    fn any_json_is_read_as_a_set_without_a_panic(
        members in proptest::collection::vec(
            ("(kty|crv|x|y|n|e|k|alg|use|key_ops|kid|x5c)", "[A-Za-z0-9_\\-]{0,12}|RSA|EC|OKP|oct|P-256|Ed25519"),
            0..8,
        ),
    ) {
        let key: serde_json::Map<String, Value> =
            members.into_iter().map(|(name, value)| (name, value.into())).collect();
        let _ = Jwks::parse(&jwks(&[Value::Object(key)]));
    }
}
