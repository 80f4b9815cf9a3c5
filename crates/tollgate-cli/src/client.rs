//! Speaks HTTP/1.1 to a server: one call on a connection of its own.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use tollgate_engine::{Clock as _, SystemClock};

use crate::failure::Failure;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest answer that is read.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// What is asked.
pub(crate) struct Call<'c> {
    pub(crate) method: &'static str,
    /// With its query.
    pub(crate) path: &'c str,
    /// JSON.
    pub(crate) body: Option<&'c str>,
    /// The only revision or version that may be changed.
    pub(crate) if_match: Option<i64>,
    /// How long the answer may take.
    pub(crate) timeout: Duration,
}

/// An answer: its status and its body.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Asks the server behind a URL.
pub(crate) fn ask(url: &str, token: Option<&str>, call: &Call<'_>) -> Result<Answer, Failure> {
    let target = Target::parse(url)
        .with_context(|| format!("{url:?} is no URL such as http://127.0.0.1:8080"))
        .map_err(Failure::Usage)?;
    if token.is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err(Failure::usage(anyhow!("a token has no spaces and only ASCII characters")));
    }
    let stream = connect(&target).map_err(|error| {
        anyhow!(
            "cannot connect to {url}: {error:#}\n\
             hint: is that where it listens? `tollgate serve` starts a server"
        )
    })?;
    let answer = exchange(stream, &target.request(token, call), call.timeout)
        .with_context(|| format!("asking {url}"))?;
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
            Some("https") => bail!(
                "https is not spoken here; ask the server by http, on its own machine or network"
            ),
            _ => bail!("it must begin with http://"),
        }
        let authority = uri.authority().ok_or_else(|| anyhow!("it names no host"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let base = uri.path().trim_end_matches('/').to_owned();
        let port = authority.port_u16().unwrap_or(80);
        Ok(Self { host, port, authority: authority.as_str().to_owned(), base })
    }

    fn request(&self, token: Option<&str>, call: &Call<'_>) -> String {
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let condition = call.if_match.map(|version| format!("If-Match: \"{version}\"\r\n"));
        let body = call.body.unwrap_or_default();
        let kind = call.body.map_or("", |_| "Content-Type: application/json\r\n");
        format!(
            "{} {}{} HTTP/1.1\r\nHost: {}\r\n{kind}Content-Length: {}\r\n{}{}\
             Connection: close\r\n\r\n{body}",
            call.method,
            self.base,
            call.path,
            self.authority,
            body.len(),
            token.unwrap_or_default(),
            condition.unwrap_or_default(),
        )
    }
}

/// Sends a request and reads until the server hangs up, all of it within the time.
fn exchange(mut stream: TcpStream, request: &str, timeout: Duration) -> anyhow::Result<Vec<u8>> {
    let clock = SystemClock::new();
    let deadline = clock.now().saturating_add(timeout.as_nanos() as u64);
    stream.set_write_timeout(Some(timeout))?;
    // A server that refuses a large body may answer and hang up before it has read all of it.
    let sent = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        let left = Duration::from_nanos(deadline.saturating_sub(clock.now()));
        if left.is_zero() {
            bail!("no whole answer came within {} s", timeout.as_secs());
        }
        stream.set_read_timeout(Some(left))?;
        let count = match stream.read(&mut part) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if is_late(&error) => continue,
            Err(_) if !answer.is_empty() => break,
            Err(error) => return Err(sent.err().unwrap_or(error).into()),
        };
        answer.extend_from_slice(part.get(..count).unwrap_or_default());
        if answer.len() as u64 > MAX_ANSWER_BYTES {
            bail!("the answer is larger than {} MiB", MAX_ANSWER_BYTES >> 20);
        }
    }
    match sent {
        Err(error) if answer.is_empty() => Err(error.into()),
        _ => Ok(answer),
    }
}

/// The deadline says whether it is too late, or a signal came between.
fn is_late(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
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
