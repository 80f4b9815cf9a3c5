//! What both databases have in common: nearly everything. The statements are written once, in the part
//! of SQL that SQLite and PostgreSQL share; where they differ, a [`Dialect`](driver::Dialect) says how.
//!
//! Many rows travel as one parameter, a JSON array of arrays that the database takes apart again. So a
//! change of ten thousand entries is a handful of statements, and the same ones in both databases.

mod audit_bound;
mod batch;
mod chain;
mod checkpoints;
mod commit;
mod decisions;
pub(crate) mod driver;
mod entries;
mod failure;
mod figures;
mod history;
mod load;
mod migrate;
pub(crate) mod query;
mod repository;
mod search;
pub(crate) mod session;
mod table;
mod usage;
mod usage_open;
mod verify;

pub(crate) use driver::{Access, Dialect, Driver, Migration};
pub(crate) use failure::failure;
