use std::collections::BTreeMap;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Sends so many requests to a server, each on a connection of its own, and counts the answers by status.
pub(crate) async fn flood(address: SocketAddr, requests: usize) -> BTreeMap<u16, usize> {
    let mut answers = BTreeMap::new();
    for _ in 0..requests {
        *answers.entry(get(address).await).or_default() += 1;
    }
    answers
}

/// The status of the answer to `GET /`; 0 for an answer that cannot be read.
async fn get(address: SocketAddr) -> u16 {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = asked.await.unwrap_or_default();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.unwrap_or(0)
}
