//! The dictionary of OTLP Profiles 1.10: written by [`DictionaryBuilder`], read by [`DictionaryView`].
//! The rule that entry 0 of every table means "not set" lives here and nowhere else. Not the profiles
//! themselves, which are plain messages of `opentelemetry-proto`.

mod builder;
mod view;

#[cfg(test)]
mod tests;

pub use builder::{AttributeValue, DictionaryBuilder};
pub use view::{DictionaryError, DictionaryView, Table};

pub use opentelemetry_proto::tonic::collector::profiles::v1development as collector;
pub use opentelemetry_proto::tonic::common::v1 as common;
pub use opentelemetry_proto::tonic::profiles::v1development as profiles;
pub use opentelemetry_proto::tonic::resource::v1 as resource;

/// Names of attributes, as OpenTelemetry's semantic conventions spell them, and our own.
pub mod attribute {
    /// What runs a frame; the values are [`crate::FrameKind::as_str`].
    pub const FRAME_TYPE: &str = "profile.frame.type";
    /// GNU build id of a mapping's file, hex.
    pub const BUILD_ID_GNU: &str = "process.executable.build_id.gnu";
    /// Go build id of a mapping's file.
    pub const BUILD_ID_GO: &str = "process.executable.build_id.go";
    /// Build id computed from the contents of a mapping's file, hex of 16 bytes.
    pub const BUILD_ID_HTLHASH: &str = "process.executable.build_id.htlhash";
    /// Service.
    pub const SERVICE_NAME: &str = "service.name";
    /// Host.
    pub const HOST_NAME: &str = "host.name";
    /// Host, an id that survives renaming.
    pub const HOST_ID: &str = "host.id";
    /// Always `linux`.
    pub const OS_TYPE: &str = "os.type";
    /// Process id.
    pub const PROCESS_PID: &str = "process.pid";
    /// File name of the executable.
    pub const PROCESS_EXECUTABLE_NAME: &str = "process.executable.name";
    /// Path of the executable.
    pub const PROCESS_EXECUTABLE_PATH: &str = "process.executable.path";
    /// Container.
    pub const CONTAINER_ID: &str = "container.id";
    /// Thread id.
    pub const THREAD_ID: &str = "thread.id";
    /// Thread name.
    pub const THREAD_NAME: &str = "thread.name";
    /// CPU a sample was taken on.
    pub const CPU_LOGICAL_NUMBER: &str = "cpu.logical_number";

    /// Vesta's: what a thread waited for off its CPU: `lock`, `sleep`, `io` and so on.
    pub const OFF_CPU_REASON: &str = "off_cpu.reason";
    /// Vesta's: `mutex`, `rwlock`, `monitor` or `unknown`.
    pub const LOCK_KIND: &str = "lock.kind";
    /// Vesta's: where a lock lies in its process, hexadecimal.
    pub const LOCK_ADDRESS: &str = "lock.address";
    /// Vesta's: a lock in a file's data: `symbol+0x10`, or `file+0x` and its address in the file.
    pub const LOCK_NAME: &str = "lock.name";
    /// Vesta's: the thread that held a lock when the wait for it began.
    pub const LOCK_OWNER_TID: &str = "lock.owner.tid";

    /// Vesta's: start of a process in nanoseconds since the host's boot; with the pid it names one
    /// process instance.
    pub const PROCESS_START_TIME_NS: &str = "vesta.process.start_time_ns";
    /// Vesta's, on a location: its names are provisional; the value says where they come from.
    pub const SYMBOL_SOURCE: &str = "vesta.symbol.source";
}
