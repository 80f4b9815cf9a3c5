//! Each kind of server is started once, and does what tests of others rely on.

mod cluster;
mod postgres;
mod prometheus;
mod proxy;
mod redis;
mod sentinel;
