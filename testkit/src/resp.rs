//! A connection that speaks as much of Redis' protocol as it takes to watch over servers.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a server may take for one answer. One that is paused does not answer.
const DEADLINE: Duration = Duration::from_secs(5);

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Nothing there.
    Nil,
    /// A number.
    Int(i64),
    /// A status or a string.
    Text(String),
    /// An error, with its code in front.
    Error(String),
    /// Several.
    List(Vec<Reply>),
}

impl Reply {
    /// The text of it, and of a number; empty for what has none.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) | Self::Error(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Nil | Self::List(_) => String::new(),
        }
    }

    /// What it lists; nothing for what is no list.
    pub fn list(&self) -> &[Reply] {
        if let Self::List(items) = self { items } else { &[] }
    }

    /// The error, if it is one.
    pub fn ok(self) -> Result<Self, String> {
        if let Self::Error(error) = self { Err(error) } else { Ok(self) }
    }
}

/// One connection.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, DEADLINE)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub(crate) fn call(&mut self, words: &[&str]) -> io::Result<Reply> {
        let mut message = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            write!(message, "${}\r\n{word}\r\n", word.len())?;
        }
        self.stream.get_mut().write_all(&message)?;
        self.read()
    }

    fn read(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end_matches(['\r', '\n']);
        let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
        let number = || rest.parse::<i64>().map_err(io::Error::other);
        match kind {
            "+" => Ok(Reply::Text(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Int(number()?)),
            "$" => match usize::try_from(number()?) {
                Err(_) => Ok(Reply::Nil),
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
                }
            },
            "*" => match usize::try_from(number()?) {
                Err(_) => Ok(Reply::Nil),
                Ok(length) => {
                    (0..length).map(|_| self.read()).collect::<Result<_, _>>().map(Reply::List)
                }
            },
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
