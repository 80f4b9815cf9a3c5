//! Tollgate as its users meet it: the real binary, over real sockets.

mod bounds;
mod clusters;
mod decisions;
mod defaults;
mod docs;
mod input;
mod lifecycle;
mod many_nodes;
mod outages;
mod persistence;
mod proxies;
mod regions;
mod reload;
