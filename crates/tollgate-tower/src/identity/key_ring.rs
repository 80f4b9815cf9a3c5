//! The keys that verify tokens at this moment, and how they are kept up to date.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use jsonwebtoken::{Algorithm, AlgorithmFamily};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::IdentityError;
use super::fetch::JwksFetcher;
use super::jwks::{Jwks, MAX_JWKS_BYTES};

/// A key that is not known makes the set be read again, but not sooner than this after the last time.
const MIN_GAP: Duration = Duration::from_secs(10);

/// The shortest pause between two readings, whatever the issuer says.
const MIN_INTERVAL: Duration = Duration::from_secs(10);

/// A failed reading is repeated after this, then after twice as much, and so on.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The longest pause between failed readings.
const MAX_RETRY: Duration = Duration::from_secs(60);

/// Where the keys that verify tokens are.
#[derive(Clone)]
pub enum KeySource {
    /// A public key in PEM.
    Pem(Vec<u8>),
    /// A file with a public key in PEM.
    PemFile(PathBuf),
    /// A secret for HMAC.
    Secret(Vec<u8>),
    /// A file with a secret for HMAC. A newline at the end of text is not part of it.
    SecretFile(PathBuf),
    /// A JWKS document.
    Jwks(Vec<u8>),
    /// A file with a JWKS document; read again from time to time.
    JwksFile(PathBuf),
    /// A URL of a JWKS document; read again from time to time.
    JwksUrl(String),
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pem(_) => f.write_str("Pem"),
            Self::Secret(_) => f.write_str("Secret"),
            Self::Jwks(_) => f.write_str("Jwks"),
            Self::PemFile(path) => f.debug_tuple("PemFile").field(path).finish(),
            Self::SecretFile(path) => f.debug_tuple("SecretFile").field(path).finish(),
            Self::JwksFile(path) => f.debug_tuple("JwksFile").field(path).finish(),
            Self::JwksUrl(_) => f.write_str("JwksUrl"),
        }
    }
}

/// How keys are kept up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefreshOptions {
    /// How often the set is read again. An issuer's `Cache-Control: max-age` makes it more often.
    pub interval: Duration,
    /// For how long keys are used while the set cannot be read.
    pub max_stale: Duration,
    /// Whether a URL may be plain HTTP also where it is not on this machine.
    pub allow_http: bool,
    /// Whom to trust at the URL, in PEM, in place of the system's authorities.
    pub ca_file: Option<PathBuf>,
}

impl Default for RefreshOptions {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(300),
            max_stale: Duration::from_secs(24 * 3600),
            allow_http: false,
            ca_file: None,
        }
    }
}

/// The keys in force, and where they come from.
#[derive(Debug)]
pub(super) struct KeyRing {
    current: ArcSwapOption<Jwks>,
    source: Source,
    wanted: Notify,
    options: RefreshOptions,
    /// Those that tokens may use.
    algorithms: Vec<Algorithm>,
}

#[derive(Debug)]
enum Source {
    Fixed,
    File(PathBuf),
    Url(Box<JwksFetcher>),
}

impl KeyRing {
    /// The keys of tokens with these algorithms. Secrets, which those of HMAC are, are never fetched.
    pub(super) fn new(
        source: KeySource,
        options: RefreshOptions,
        algorithms: Vec<Algorithm>,
    ) -> Result<Self, IdentityError> {
        let is_secret =
            algorithms.iter().all(|algorithm| algorithm.family() == AlgorithmFamily::Hmac);
        let fixed = |keys: Jwks| (Some(keys), Source::Fixed);
        let (keys, source) = match source {
            KeySource::Pem(pem) => fixed(Jwks::from_pem(&pem)?),
            KeySource::PemFile(path) => fixed(Jwks::from_pem(&read(&path)?)?),
            KeySource::Secret(secret) => fixed(Jwks::from_secret(&secret)?),
            KeySource::SecretFile(path) => fixed(Jwks::from_secret(line(&read(&path)?))?),
            KeySource::Jwks(document) => fixed(Jwks::parse(&document)?),
            KeySource::JwksFile(path) => (Some(Jwks::parse(&read(&path)?)?), Source::File(path)),
            KeySource::JwksUrl(_) if is_secret => return Err(IdentityError::SecretFromUrl),
            KeySource::JwksUrl(url) => {
                (None, Source::Url(Box::new(JwksFetcher::new(&url, &options)?)))
            }
        };
        let current = ArcSwapOption::from(keys.map(Arc::new));
        Ok(Self { current, source, wanted: Notify::new(), options, algorithms })
    }

    /// The keys in force. None where they have never been read, or are too old.
    pub(super) fn current(&self) -> Option<Arc<Jwks>> {
        self.current.load_full()
    }

    /// A token named a key that is not here; it may be new.
    pub(super) fn ask_for_refresh(&self) {
        if !matches!(self.source, Source::Fixed) {
            self.wanted.notify_one();
        }
    }

    /// Keeps the keys up to date. Ends at once where they cannot change.
    pub(super) async fn refresh_loop(&self) {
        let mut read_at = Instant::now();
        let mut retry = FIRST_RETRY;
        loop {
            let pause = match self.load().await {
                Ok(None) => return,
                Ok(Some((keys, max_age))) => {
                    self.current.store(Some(Arc::new(keys)));
                    (read_at, retry) = (Instant::now(), FIRST_RETRY);
                    let interval = self.options.interval;
                    max_age.map_or(interval, |age| age.min(interval)).max(MIN_INTERVAL)
                }
                Err(error) => {
                    self.complain(&error, read_at.elapsed());
                    let pause = retry;
                    retry = (retry * 2).min(MAX_RETRY);
                    pause
                }
            };
            let earliest = Instant::now() + MIN_GAP;
            let asked_for = async {
                self.wanted.notified().await;
                sleep_until(earliest).await;
            };
            // Either way it is time.
            let _ = timeout(pause, asked_for).await;
        }
    }

    /// The set as it is at its source. A set without any key for the algorithms of tokens counts as one that cannot be
    /// read: issuers publish such sets by mistake, and keys that were good stay in use until they are too old.
    async fn load(&self) -> Result<Option<(Jwks, Option<Duration>)>, IdentityError> {
        let (keys, max_age) = match &self.source {
            Source::Fixed => return Ok(None),
            Source::File(path) => {
                let path = path.clone();
                let bytes = tokio::task::spawn_blocking(move || read(&path)).await;
                let bytes = bytes.map_err(|error| IdentityError::Fetch(error.to_string()))??;
                (Jwks::parse(&bytes)?, None)
            }
            Source::Url(fetcher) => fetcher.fetch().await?,
        };
        if !self.algorithms.iter().any(|algorithm| keys.serves(*algorithm)) {
            let problem = "the set has no key that verifies tokens";
            return Err(IdentityError::Fetch(problem.to_owned()));
        }
        Ok(Some((keys, max_age)))
    }

    fn complain(&self, error: &IdentityError, age: Duration) {
        let age_seconds = age.as_secs();
        if self.current.load().is_none() {
            tracing::warn!(%error, "the keys that verify tokens cannot be read");
        } else if age > self.options.max_stale {
            tracing::error!(%error, age_seconds, "the keys that verify tokens are too old: dropped");
            self.current.store(None);
        } else {
            tracing::warn!(%error, age_seconds, "the keys that verify tokens cannot be read; old ones stay");
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    use std::io::Read;
    let unreadable = |error: std::io::Error| IdentityError::Unreadable(path.to_owned(), error);
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    // One byte more than is taken, so that what is too large is seen to be.
    file.take(MAX_JWKS_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// Text without the newline that editors put behind it. Other bytes are as they are.
fn line(bytes: &[u8]) -> &[u8] {
    if std::str::from_utf8(bytes).is_err() {
        return bytes;
    }
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    bytes.strip_suffix(b"\r").unwrap_or(bytes)
}
