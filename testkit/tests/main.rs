//! Each kind of server is started once, and does what tests of others rely on.

mod cluster;
mod proxy;
mod redis;
mod sentinel;
