//! Hands the diagnostics of the programs to this process's own log, where a person asked for them.

use super::BpfError;
use aya::Ebpf;
use aya_log::EbpfLogger;

/// Reads the programs' messages.
pub(super) struct ProgramLog(EbpfLogger<Forward>);

impl ProgramLog {
    pub(super) fn open(ebpf: &mut Ebpf) -> Result<Self, BpfError> {
        let missing = |_no_map| BpfError::Missing { kind: "map", name: "AYA_LOGS" };
        EbpfLogger::init_with_logger(ebpf, Forward).map(Self).map_err(missing)
    }

    /// Writes what has come since the last time.
    pub(super) fn flush(&mut self) {
        self.0.flush();
    }
}

/// From the `log` crate, which aya-log writes to, into `tracing`.
struct Forward;

impl log::Log for Forward {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        tracing::info!(target: "bpf", "{}", record.args());
    }

    fn flush(&self) {}
}
