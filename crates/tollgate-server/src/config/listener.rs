//! Where the HTTP listener of a configuration is: for commands that ask the server on this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use super::problem::ConfigProblems;
use super::read::Reader;
use super::{Config, TlsConfig, check, edge};

/// The HTTP listener that a configuration describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpListener {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its TLS.
    pub tls: TlsConfig,
}

impl HttpListener {
    /// The listener that a file and the environment describe. Other keys may be wrong, or be given to
    /// the server as flags: they do not matter here.
    pub fn load(
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigProblems> {
        let mut problems = ConfigProblems::default();
        let raw = Config::layers(file, env, &mut problems);
        let mut reader = Reader::new(raw, problems);
        let address = check::http_address(&mut reader);
        let tls = edge::tls(&mut reader);
        let mut problems = reader.problems;
        let matters = |key: &Option<String>| {
            key.as_ref().is_none_or(|key| key == "http" || key.starts_with("tls."))
        };
        problems.0.retain(|problem| matters(&problem.key));
        match address {
            Some(said) if problems.0.is_empty() => Ok(Self { address: said.value, tls }),
            _ => Err(problems),
        }
    }

    /// The URL that reaches it from this machine.
    pub fn url(&self) -> String {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        let scheme = if self.tls.cert_file.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", SocketAddr::new(ip, self.address.port()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(variables: &[(&str, &str)]) -> Result<String, ConfigProblems> {
        let pairs = variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        HttpListener::load(None, pairs).map(|listener| listener.url())
    }

    #[test]
    fn the_url_follows_address_and_tls() {
        assert_eq!(load(&[]).unwrap(), "http://127.0.0.1:8080");
        // Who may ask does not matter: the server may have got it as a flag.
        assert_eq!(load(&[("TOLLGATE_HTTP", "0.0.0.0:81")]).unwrap(), "http://127.0.0.1:81");
        assert_eq!(load(&[("TOLLGATE_HTTP", "[::]:81")]).unwrap(), "http://[::1]:81");
        let tls = [("TOLLGATE_TLS_CERT_FILE", "c.pem"), ("TOLLGATE_TLS_KEY_FILE", "k.pem")];
        assert_eq!(load(&tls).unwrap(), "https://127.0.0.1:8080");
        assert!(load(&tls[..1]).is_err());
        assert!(load(&[("TOLLGATE_HTTP", "here")]).is_err());
        assert!(HttpListener::load(Some(Path::new("/nowhere.yaml")), std::iter::empty()).is_err());
    }
}
