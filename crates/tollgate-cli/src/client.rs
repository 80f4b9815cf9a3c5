//! Asks a running server: one HTTP/1.1 call on a connection of its own.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};

use super::{Answer, Call};
use crate::failure::Failure;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest answer that is read.
const MAX_ANSWER_BYTES: u64 = 4 << 20;

pub(super) fn ask(url: &str, token: Option<&str>, call: &Call) -> Result<Answer, Failure> {
    let target = Target::parse(url)
        .with_context(|| format!("{url:?} is no URL such as http://127.0.0.1:8080"))
        .map_err(Failure::Usage)?;
    if token.is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err(Failure::usage(anyhow!("a token has no spaces and only ASCII characters")));
    }
    let answer = exchange(&target, &target.request(token, call))
        .with_context(|| format!("asking {url}; `tollgate serve` starts a server"))?;
    Ok(parse(&answer).with_context(|| format!("the answer of {url}"))?)
}

/// Where a server is.
struct Target {
    host: String,
    port: u16,
    /// As given, for the Host header.
    authority: String,
    /// What comes before the call's own path.
    base: String,
}

impl Target {
    fn parse(url: &str) -> anyhow::Result<Self> {
        let uri: http::Uri = url.parse()?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => bail!("https is not spoken here; ask the server by http"),
            _ => bail!("it must begin with http://"),
        }
        let authority = uri.authority().ok_or_else(|| anyhow!("it names no host"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let base = uri.path().trim_end_matches('/').to_owned();
        let port = authority.port_u16().unwrap_or(80);
        Ok(Self { host, port, authority: authority.as_str().to_owned(), base })
    }

    fn request(&self, token: Option<&str>, call: &Call) -> String {
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        format!(
            "POST {}{} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n{}Connection: close\r\n\r\n{}",
            self.base,
            call.path,
            self.authority,
            call.body.len(),
            token.unwrap_or_default(),
            call.body,
        )
    }
}

/// Sends a request and reads until the server hangs up.
fn exchange(target: &Target, request: &str) -> anyhow::Result<Vec<u8>> {
    let mut stream = connect(target)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
    Ok(answer)
}

fn connect(target: &Target) -> anyhow::Result<TcpStream> {
    let mut failure = anyhow!("{} has no address", target.host);
    for address in (target.host.as_str(), target.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = anyhow::Error::from(error),
        }
    }
    Err(failure)
}

/// Takes an answer apart. Its body ends where its length or its chunks say, else with the stream.
fn parse(answer: &[u8]) -> anyhow::Result<Answer> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let (head, rest) = end
        .and_then(|end| answer.split_at_checked(end))
        .ok_or_else(|| anyhow!("it is not HTTP, or was cut off"))?;
    let head = std::str::from_utf8(head).context("its head is not text")?;
    let body = rest.get(4..).unwrap_or_default();
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1."))
        .and_then(|line| line.split(' ').nth(1)?.parse().ok())
        .ok_or_else(|| anyhow!("it is not HTTP"))?;
    let header = |wanted: &str| {
        let pairs = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        let mut named = pairs.filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        named.next().map(|(_, value)| value.trim())
    };
    if header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        return Ok(Answer { status, body: join_chunks(body)? });
    }
    let length = match header("content-length") {
        Some(length) => length.parse().context("its length")?,
        None => body.len(),
    };
    let body = body.get(..length).ok_or_else(|| anyhow!("it was cut off"))?;
    Ok(Answer { status, body: body.to_vec() })
}

fn join_chunks(mut rest: &[u8]) -> anyhow::Result<Vec<u8>> {
    let cut = || anyhow!("it was cut off");
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|bytes| bytes == b"\r\n").ok_or_else(cut)?;
        let (size, after) = rest.split_at_checked(end).ok_or_else(cut)?;
        let size = std::str::from_utf8(size)?.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).context("the size of a chunk")?;
        if size == 0 {
            return Ok(body);
        }
        let (chunk, after) =
            after.get(2..).and_then(|it| it.split_at_checked(size)).ok_or_else(cut)?;
        body.extend_from_slice(chunk);
        rest = after.get(2..).ok_or_else(cut)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_end_by_length_by_chunks_or_with_the_stream() {
        let body = |text: &str| parse(text.as_bytes()).map(|answer| (answer.status, answer.body));
        let plain = body("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nabc").unwrap();
        assert_eq!(plain, (200, b"ab".to_vec()));
        let open = body("HTTP/1.0 404 Not Found\r\n\r\nabc").unwrap();
        assert_eq!(open, (404, b"abc".to_vec()));
        let chunks =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x\r\nc\r\n0\r\n\r\n";
        assert_eq!(body(chunks).unwrap(), (200, b"abc".to_vec()));
    }

    #[test]
    fn what_is_cut_off_or_not_http_is_an_error() {
        for text in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nab\r\n",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn urls_name_host_port_and_base() {
        let target = Target::parse("http://[::1]:81/limits/").unwrap();
        assert_eq!(
            (target.host.as_str(), target.port, target.base.as_str()),
            ("::1", 81, "/limits")
        );
        assert_eq!(Target::parse("http://a.example").unwrap().port, 80);
        assert!(Target::parse("https://a.example").is_err());
        assert!(Target::parse("a.example:80").is_err());
    }
}
