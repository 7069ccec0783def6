//! What the agent and the collector say to each other, and the words for it: the dictionary of OTLP
//! Profiles (`otlp`), pprof messages (`pprof`) and small value types. It does no I/O.

pub mod otlp;
pub mod pprof;

mod build_id;
mod frame_kind;

pub use build_id::{BUILD_ID_BYTES_MAX, BuildId};
pub use frame_kind::FrameKind;
pub use opentelemetry_proto;
