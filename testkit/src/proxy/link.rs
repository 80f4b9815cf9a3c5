//! One connection through the proxy: two streams, each read at once and written when the faults allow.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Faults, Shared};

/// How much is read at once.
const CHUNK: usize = 64 * 1024;

/// How many chunks may be on their way before no more are read.
const CHUNKS_ON_THE_WAY: usize = 1024;

/// A throttled connection writes about this often in a second.
const WRITES_PER_SECOND: u64 = 50;

/// What was read, and when.
type Chunk = (Instant, Vec<u8>);

/// What a connection needs to know.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) upstream: SocketAddr,
    pub(super) faults: watch::Receiver<Faults>,
    pub(super) shared: Arc<Shared>,
}

impl Link {
    /// Serves one client until either side is done.
    pub(super) async fn serve(&self, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let (mut from_client, to_client) = client.into_split();
        if self.faults.borrow().is_silent {
            return drain(&mut from_client).await;
        }
        let upstream = TcpStream::connect(self.upstream).await?;
        upstream.set_nodelay(true)?;
        let (from_upstream, to_upstream) = upstream.into_split();
        // Whether something was dropped; what follows it would make no sense to the other side.
        let is_broken = AtomicBool::new(false);
        let (requests, on_the_way) = mpsc::channel(CHUNKS_ON_THE_WAY);
        let forth = async {
            tokio::try_join!(
                self.read_requests(from_client, requests),
                self.write(on_the_way, to_upstream, &is_broken, false),
            )
        };
        let (replies, on_the_way) = mpsc::channel(CHUNKS_ON_THE_WAY);
        let back = async {
            let result = tokio::try_join!(
                self.read_replies(from_upstream, replies),
                self.write(on_the_way, to_client, &is_broken, true),
            );
            if is_broken.load(Ordering::Relaxed) || self.faults.borrow().is_silent {
                // Who hears nothing does not hear either that the upstream has gone.
                return std::future::pending().await;
            }
            result
        };
        tokio::select! {
            result = forth => result.map(drop),
            result = back => result.map(drop),
        }
    }

    async fn read_requests(
        &self,
        mut from: OwnedReadHalf,
        to: mpsc::Sender<Chunk>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        loop {
            let length = from.read(&mut buffer).await?;
            if length == 0 || to.send((Instant::now(), buffer[..length].to_vec())).await.is_err() {
                return Ok(());
            }
        }
    }

    async fn read_replies(
        &self,
        mut from: OwnedReadHalf,
        to: mpsc::Sender<Chunk>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        let mut has_lost_one = false;
        loop {
            let all_swallowed = pin!(self.shared.all_swallowed.notified());
            let length = tokio::select! {
                () = all_swallowed, if has_lost_one => return Err(io::ErrorKind::Other.into()),
                length = from.read(&mut buffer) => length?,
            };
            if length == 0 {
                return Ok(());
            }
            if let Some(left) = self.swallow() {
                has_lost_one = true;
                if left == 0 {
                    self.shared.all_swallowed.notify_waiters();
                    return Err(io::ErrorKind::Other.into());
                }
            } else if to.send((Instant::now(), buffer[..length].to_vec())).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Whether a reply is to be dropped, and how many are to follow it.
    fn swallow(&self) -> Option<usize> {
        let count = &self.shared.to_swallow;
        let less = |left: usize| left.checked_sub(1);
        let before = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).ok()?;
        self.shared.swallowed.fetch_add(1, Ordering::AcqRel);
        Some(before - 1)
    }

    async fn write(
        &self,
        mut chunks: mpsc::Receiver<Chunk>,
        mut to: OwnedWriteHalf,
        is_broken: &AtomicBool,
        are_replies: bool,
    ) -> io::Result<()> {
        let mut faults = self.faults.clone();
        while let Some((read_at, bytes)) = chunks.recv().await {
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let now = *faults.borrow_and_update();
                if now.is_silent || is_broken.load(Ordering::Relaxed) {
                    is_broken.store(true, Ordering::Relaxed);
                    break;
                }
                if are_replies && now.holds_replies {
                    if faults.changed().await.is_err() {
                        return Ok(());
                    }
                    continue;
                }
                let due = read_at + now.delay;
                if due > Instant::now() {
                    tokio::select! {
                        () = sleep_until(due) => {}
                        _ = faults.changed() => {}
                    }
                    continue;
                }
                let rate = now.bytes_per_second.unwrap_or(u64::MAX);
                let at_once = usize::try_from((rate / WRITES_PER_SECOND).max(1));
                let (piece, others) = rest.split_at(at_once.unwrap_or(usize::MAX).min(rest.len()));
                to.write_all(piece).await?;
                rest = others;
                if now.bytes_per_second.is_some() {
                    let nanos = piece.len() as u64 * 1_000_000_000 / rate;
                    tokio::select! {
                        () = sleep(Duration::from_nanos(nanos)) => {}
                        _ = faults.changed() => {}
                    }
                }
            }
        }
        Ok(())
    }
}

/// Reads until the client has had enough.
async fn drain(from: &mut OwnedReadHalf) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    while from.read(&mut buffer).await? > 0 {}
    Ok(())
}
