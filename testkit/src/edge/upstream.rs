//! A service behind a proxy: it counts requests, and answers all but those that ask it not to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a connection may be idle.
const IDLE: Duration = Duration::from_secs(60);

/// The beginning of paths that are not answered: the connection is closed instead.
const HANG_UP: &str = "/hang-up";

/// What every answer's body is.
const BODY: &str = "from the service";

/// A running service; gone when dropped.
pub struct Upstream {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// Further lines of every answer's head.
    head: String,
    /// The heads of the requests that came, with lower-case names.
    heads: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl Shared {
    fn heads(&self) -> MutexGuard<'_, Vec<String>> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upstream {
    /// Starts one, whose answers have these headers.
    pub fn start(headers: &[(&str, &str)]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let addr = listener.local_addr().expect("an address");
        let lines: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = lines.concat();
        let shared =
            Arc::new(Shared { head, heads: Mutex::default(), is_over: AtomicBool::new(false) });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.is_over.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(stream) = stream else { continue };
                let shared = Arc::clone(&serving);
                // An error is the proxy's closing the connection.
                std::thread::spawn(move || serve(&shared, &stream));
            }
        });
        Self { addr, shared }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many requests came.
    pub fn count(&self) -> usize {
        self.shared.heads().len()
    }

    /// The head of the last request, its names in lower case.
    pub fn last_head(&self) -> String {
        self.shared.heads().last().cloned().unwrap_or_default()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // So that the listener looks.
        let _ = TcpStream::connect(self.addr);
    }
}

fn serve(shared: &Shared, stream: &TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim_end().is_empty() {
                break;
            }
            match line.split_once(": ") {
                Some((name, value)) => {
                    head.push_str(&name.to_ascii_lowercase());
                    head.push_str(": ");
                    head.push_str(value);
                }
                None => head.push_str(&line),
            }
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
        std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
        let hangs_up = head.split(' ').nth(1).is_some_and(|path| path.starts_with(HANG_UP));
        shared.heads().push(head);
        if hangs_up {
            return Ok(());
        }
        let answer = format!(
            "HTTP/1.1 200 OK\r\n{}content-length: {}\r\n\r\n{BODY}",
            shared.head,
            BODY.len()
        );
        (&mut &*stream).write_all(answer.as_bytes())?;
    }
}
