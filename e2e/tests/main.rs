//! Tollgate as its users meet it: the real binary, over real sockets.

mod access;
mod admin;
mod bounds;
mod changes;
mod cli;
mod clusters;
mod decisions;
mod defaults;
mod docs;
mod input;
mod lifecycle;
mod many_nodes;
mod outages;
mod persistence;
mod propagation;
mod proxies;
mod regions;
mod reload;
