//! Takes profiles in: caps, decodes, validates, converts into the domain model and hands it to the store.
//!
//! [`otlp`] reads bytes, [`receiver`] is what all transports share, [`http`] and [`grpc`] are the
//! transports.

pub mod compression;
pub mod grpc;
pub mod http;
pub mod otlp;
pub mod receiver;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
