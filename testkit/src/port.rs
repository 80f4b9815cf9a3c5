//! Ports for servers that cannot choose a free one themselves.
//!
//! They are taken from below the range from which the system gives ports to outgoing connections: a
//! server that was killed can then have its port back. A port may still be taken by the time its
//! server binds it, so the caller must be ready to ask for another one.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// The first port given out.
const FIRST: u16 = 10_240;

/// How many there are. With [`BUS`] more they stay below 32768, where the system's own range begins, and
/// apart from the ports that are given out.
const COUNT: u16 = 10_000;

/// How far a node's cluster bus is from its port.
const BUS: u16 = 10_000;

/// A port that is free now, together with the one of its cluster bus.
pub(crate) fn free() -> u16 {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    // Each process starts at a random port, so that tests which run in parallel seldom collide.
    let next = NEXT.get_or_init(|| AtomicU16::new(RandomState::new().hash_one(0_u8) as u16));
    for _ in 0..COUNT {
        let port = FIRST + next.fetch_add(1, Ordering::Relaxed) % COUNT;
        if is_free(port) && is_free(port + BUS) {
            return port;
        }
    }
    panic!("no port from {FIRST} on is free");
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
