//! Takes profiles in: caps, decodes, validates, converts into the domain model and hands it to the store.
//!
//! [`otlp`] and [`pprof`] read bytes, [`receiver`] is what all transports share, [`http`] and [`grpc`] are
//! OTLP's transports; the route of pprof is in [`crate::api`], for its answers are JSON.

mod addresses;
pub mod compression;
mod fitting;
pub mod grpc;
pub mod http;
pub mod otlp;
pub mod pprof;
pub mod receiver;
pub(crate) mod times;
mod units;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
