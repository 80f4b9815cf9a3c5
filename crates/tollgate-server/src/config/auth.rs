//! Who may ask for decisions.

use std::net::SocketAddr;

use sha2::{Digest as _, Sha256};

use super::problem::Origin;
use super::read::{Reader, Said};
use super::{ClientCertificates, DataAuth, TlsConfig};

/// The most tokens that are compared with a request's.
const MAX_TOKENS: usize = 10_000;

/// What `data_auth` says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Choice {
    Unsaid,
    Open,
    Token,
    Mtls,
}

/// Reads `data_auth` and the tokens, and checks that they fit each other and the listeners.
pub(super) fn check(
    reader: &mut Reader,
    listeners: &[Option<&Said<SocketAddr>>],
    tls: &TlsConfig,
) -> DataAuth {
    let tokens = tokens(reader);
    let wanted = "none, token, mtls or null";
    let said = reader.optional_text("data_auth", wanted);
    let choice = match said.as_ref().map(|said| said.value.as_str()) {
        None => Choice::Unsaid,
        Some("none") => Choice::Open,
        Some("token") => Choice::Token,
        Some("mtls") => Choice::Mtls,
        Some(other) => {
            let message = format!("must be {wanted}, not {other:?}");
            if let Some(said) = &said {
                reader.wrong(&said.origin, "data_auth", message);
            }
            return DataAuth::None;
        }
    };
    match choice {
        Choice::Open => DataAuth::None,
        Choice::Unsaid => {
            check_unsaid(reader, listeners, tokens.first());
            DataAuth::None
        }
        Choice::Mtls => {
            let asks = tls.client_certificates != ClientCertificates::Off;
            if let (Some(said), false) = (&said, tls.client_ca_file.is_some() && asks) {
                let message = "mtls needs tls.client_ca_file, and tls.client_certificates optional \
                               or required";
                reader.wrong(&said.origin, "data_auth", message);
            }
            DataAuth::Mtls
        }
        Choice::Token => {
            if let (Some(said), true) = (&said, tokens.is_empty()) {
                let message = "token needs at least one token in data_tokens or data_token_file";
                reader.wrong(&said.origin, "data_auth", message);
            }
            DataAuth::Token(tokens.into_iter().map(|said| said.value).collect())
        }
    }
}

/// Nothing was said: fine on loopback, where no one else can call.
fn check_unsaid(
    reader: &mut Reader,
    listeners: &[Option<&Said<SocketAddr>>],
    token: Option<&Said<[u8; 32]>>,
) {
    if let Some(token) = token {
        let message = "is missing although data_tokens are configured: set token to require one, or none to require none";
        reader.wrong(&token.origin, "data_auth", message);
    } else if let Some(http) = listeners
        .iter()
        .flatten()
        .find(|listener| !listener.value.ip().to_canonical().is_loopback())
    {
        let message = format!(
            "is missing although a listener ({}) is not on loopback: set token (with data_tokens) to \
             require a token, or none to serve every caller that can connect",
            http.value
        );
        reader.wrong(&http.origin, "data_auth", message);
    }
}

fn tokens(reader: &mut Reader) -> Vec<Said<[u8; 32]>> {
    let mut digests = Vec::new();
    let key = "data_tokens";
    for Said { value, origin } in reader.texts(key, MAX_TOKENS) {
        match parse_digest(&value) {
            Some(value) => digests.push(Said { value, origin }),
            // The value is not repeated: it may be the token itself.
            None => reader.wrong(
                &origin,
                key,
                "must be SHA-256 digests, 64 hex digits each: printf %s \"$TOKEN\" | sha256sum",
            ),
        }
    }
    file_tokens(reader, &mut digests);
    digests
}

fn file_tokens(reader: &mut Reader, digests: &mut Vec<Said<[u8; 32]>>) {
    let key = "data_token_file";
    let Some(Said { value: path, origin }) = reader.optional_path(key) else { return };
    let text = match super::read_file(&path) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("{} cannot be read: {error}", path.display());
            reader.wrong(&origin, key, message);
            return;
        }
    };
    let before = digests.len();
    for (index, line) in text.lines().enumerate() {
        let token = line.trim();
        if token.is_empty() {
            continue;
        }
        let name = path.display().to_string();
        let origin = Origin::File { name, line: index as u64 + 1, column: 1 };
        if token.bytes().all(|byte| byte.is_ascii_graphic()) {
            digests.push(Said { value: Sha256::digest(token).into(), origin });
        } else {
            reader.wrong(&origin, key, "a token has no spaces and only ASCII characters");
        }
    }
    if digests.len() == before {
        reader.wrong(&origin, key, format!("{} has no token in it", path.display()));
    } else if digests.len() > MAX_TOKENS {
        reader.wrong(&origin, key, format!("there are more than {MAX_TOKENS} tokens"));
    }
}

/// 32 bytes of 64 hex digits.
fn parse_digest(text: &str) -> Option<[u8; 32]> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let mut digest = [0; 32];
    if !rest.is_empty() || pairs.len() != digest.len() {
        return None;
    }
    for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(digest)
}
