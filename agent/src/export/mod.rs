//! Towards the collector: [`otlp`] writes sealed windows as OTLP Profiles, [`queue`] keeps what is not
//! acknowledged yet within bounds, [`sender`] talks gRPC. No sample is looked at here twice: the bytes
//! that are queued are the bytes that are sent and, after a failure, sent again.

pub mod otlp;
//pub mod queue;
//pub mod sender;
