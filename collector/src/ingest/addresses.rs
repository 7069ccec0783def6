//! Addresses as senders write them, to addresses as the ELF file counts.

use proto::FrameKind;

/// Addresses of executables and libraries as the kernel loads them begin above this; the addresses inside
/// an ELF file lie below (position dependent x86-64 code begins at `0x40_0000`).
const LOADED_ADDRESS_MIN: u64 = 1 << 32;

/// Where a mapping lies, as its sender writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::ingest) struct MappedRange {
    pub(in crate::ingest) memory_start: u64,
    pub(in crate::ingest) memory_limit: u64,
    pub(in crate::ingest) file_offset: u64,
}

impl MappedRange {
    /// An address as the ELF file counts. Senders that normalize (the OpenTelemetry eBPF profiler, with
    /// `memory_start` 0, and Vesta's agent, with `memory_start` = `p_vaddr`) send such addresses. The
    /// address of a running process lies inside a mapping far above any file's addresses: there the
    /// start goes off and the offset into the file comes on, which is the ELF address wherever
    /// `p_vaddr` = `p_offset`, and within one page of it else.
    pub(in crate::ingest) fn normalize(self, address: u64, kind: FrameKind) -> u64 {
        let Self { memory_start, memory_limit, file_offset } = self;
        let is_loaded = kind != FrameKind::Kernel
            && memory_start >= LOADED_ADDRESS_MIN
            && (memory_start..memory_limit).contains(&address);
        if is_loaded { (address - memory_start).saturating_add(file_offset) } else { address }
    }
}
