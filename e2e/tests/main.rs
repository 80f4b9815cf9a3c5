//! Tollgate as its users meet it: the real binary, over real sockets.

mod bounds;
mod decisions;
mod defaults;
mod docs;
mod input;
mod lifecycle;
mod persistence;
mod proxies;
mod reload;
