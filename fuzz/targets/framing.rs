//! The watch over HTTP/1.1 connections: it says the same however the bytes come in, and changes none.
#![no_main]

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncRead, ReadBuf};
use tollgate_fuzz::choice;
use tollgate_gateway::WatchedStream;

/// Reads so many bytes at a time until nothing is left; says what came, and whether it was ambiguous.
fn watch(bytes: &[u8], at_once: usize) -> (Vec<u8>, bool) {
    let (mut stream, watch) = WatchedStream::new(bytes);
    let mut context = Context::from_waker(Waker::noop());
    let (mut all, mut space) = (Vec::new(), vec![0; at_once]);
    loop {
        let mut buffer = ReadBuf::new(&mut space);
        let read = Pin::new(&mut stream).poll_read(&mut context, &mut buffer);
        assert!(matches!(read, Poll::Ready(Ok(()))));
        if buffer.filled().is_empty() {
            return (all, watch.is_ambiguous());
        }
        all.extend_from_slice(buffer.filled());
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((size, bytes)) = choice(input) else { return };
    let (whole, is_ambiguous) = watch(bytes, bytes.len().max(1));
    assert_eq!(whole, bytes);
    for at_once in [1, usize::from(size).max(1)] {
        assert_eq!(watch(bytes, at_once), (whole.clone(), is_ambiguous), "{at_once} at a time");
    }
});
