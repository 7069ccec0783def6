//! Vesta's collector: receives, stores, merges and shows profiles.
//!
//! The life of a profile from the wire to the page:
//! 1. [`ingest`] caps, decodes and validates a request and turns it into a [`profile::WriteBatch`];
//! 2. [`store`] appends the batch to its WAL (acknowledged = durable) and keeps it queryable at once;
//! 3. [`query`] selects, merges and shapes what the store answers;
//! 4. [`api`] writes it as JSON and serves the page.
//!
//! What is deleted goes the other way: [`deletion`] notes it in [`meta`], has it hidden, and has it removed.
//!
//! [`client`] is the other side of the API: `vesta flamegraph`, `vesta top`, `vesta local`.
#![forbid(unsafe_code)]

#[cfg(fuzzing)]
pub mod fuzzing;
pub mod limits;
pub mod profile;

pub mod api;
pub mod client;
pub mod deletion;
pub mod ingest;
pub mod meta;
pub mod query;
pub mod store;

pub mod metrics;
pub mod options;
