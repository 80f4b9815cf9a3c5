//! A client that reads an answer as it comes: what a browser or a library does with server-sent events.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::PATIENCE;

/// An answer being read.
pub struct EventStream {
    reader: BufReader<TcpStream>,
    pub status: u16,
    headers: Vec<(String, String)>,
    /// What has been read of the chunk at hand, and not yet been looked at.
    pending: Vec<u8>,
    length: Option<usize>,
    is_over: bool,
}

impl EventStream {
    /// Sends a request and reads the head of the answer.
    pub fn post(
        addr: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> std::io::Result<Self> {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let body = body.to_string();
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        );
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
        stream.write_all(head.as_bytes())?;
        let mut reader = BufReader::new(stream);
        let status = line(&mut reader)?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut headers = Vec::new();
        loop {
            let line = line(&mut reader)?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let status = status.ok_or(std::io::ErrorKind::InvalidData)?;
        let mut answer =
            Self { reader, status, headers, pending: Vec::new(), length: None, is_over: false };
        answer.length = answer.header("content-length").and_then(|length| length.parse().ok());
        Ok(answer)
    }

    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The next bytes as they came; None at the proper end. An error is an answer that broke off.
    pub fn piece(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        if self.is_over {
            return Ok(None);
        }
        if let Some(length) = self.length {
            let mut body = vec![0; length];
            self.reader.read_exact(&mut body)?;
            self.is_over = true;
            return Ok(Some(body));
        }
        let size = line(&mut self.reader)?;
        let size = usize::from_str_radix(size.trim(), 16)
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::UnexpectedEof))?;
        let mut chunk = vec![0; size + 2];
        self.reader.read_exact(&mut chunk)?;
        chunk.truncate(size);
        self.is_over = size == 0;
        Ok((size > 0).then_some(chunk))
    }

    /// The data of the next event; None at the proper end.
    pub fn event(&mut self) -> std::io::Result<Option<String>> {
        loop {
            let text = String::from_utf8_lossy(&self.pending).replace("\r\n", "\n");
            if let Some((event, rest)) = text.split_once("\n\n") {
                let data: Vec<&str> =
                    event.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
                let data = data.join("\n");
                self.pending = rest.as_bytes().to_vec();
                return Ok(Some(data));
            }
            match self.piece()? {
                Some(piece) => self.pending.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
    }

    /// Everything that is left, as text; the error where it broke off.
    pub fn rest(&mut self) -> (String, Option<std::io::Error>) {
        let mut all = std::mem::take(&mut self.pending);
        loop {
            match self.piece() {
                Ok(Some(piece)) => all.extend_from_slice(&piece),
                Ok(None) => return (String::from_utf8_lossy(&all).into_owned(), None),
                Err(error) => return (String::from_utf8_lossy(&all).into_owned(), Some(error)),
            }
        }
    }

    /// The answer's body as JSON.
    pub fn json(&mut self) -> Value {
        let (text, error) = self.rest();
        assert!(error.is_none(), "{error:?} after {text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

fn line(reader: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}
