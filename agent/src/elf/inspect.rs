//! The facts of a file that identity and normalization need. Reads headers, notes and 8 KiB of content.

use super::dynamic::DynamicSymbols;
use super::headers::Elf;
use super::source::{Source, malformed};
use super::{FileFacts, ForeignFileError, Runtime, notes};
use crate::limits::ELF_RUNTIME_SCAN_BYTES_MAX;
use object::elf;
use proto::BuildId;
use sha2::{Digest as _, Sha256};

/// Bytes of head and of tail that the `htlhash` covers.
const HTLHASH_PART_BYTES: u64 = 4096;

/// See [`super::ForeignFiles::inspect`].
pub(crate) fn inspect(source: Source<'_>) -> Result<FileFacts, ForeignFileError> {
    let elf = Elf::parse(source)?;
    let ids = notes::build_ids(&elf);
    let runtime = runtime(&elf, ids.go.is_some());
    Ok(FileFacts {
        segments: elf.executable_segments(),
        data: elf.writable_segments().collect(),
        gnu_build_id: ids.gnu,
        go_build_id: ids.go,
        htlhash: htlhash(source)?,
        runtime,
        is_static: elf.segment(elf::PT_INTERP).is_none() && elf.segment(elf::PT_DYNAMIC).is_none(),
    })
}

/// SHA-256(first 4096 bytes, last 4096 bytes, length as big-endian u64), first 16 bytes. Parts of a
/// short file overlap, as in OpenTelemetry's profiler (libpf/fileid.go).
pub(super) fn htlhash(source: Source<'_>) -> Result<BuildId, ForeignFileError> {
    let size = source.size();
    let part = size.min(HTLHASH_PART_BYTES);
    let head = source.read("file head", 0, part, HTLHASH_PART_BYTES)?;
    let tail = source.read("file tail", size - part, part, HTLHASH_PART_BYTES)?;
    let mut hash = Sha256::new();
    hash.update(&head);
    hash.update(&tail);
    hash.update(size.to_be_bytes());
    let digest = hash.finalize();
    digest
        .get(..16)
        .and_then(BuildId::new)
        .ok_or_else(|| malformed("htlhash", "the hash is all zero"))
}

/// Who runs the code, from what the file exports: names that the debuggers of each runtime rely on.
fn runtime(elf: &Elf<'_>, has_go_build_id: bool) -> Runtime {
    if has_go_build_id || is_go(elf) {
        return Runtime::Go;
    }
    if elf.section(".PyRuntime").is_some() {
        return Runtime::Python;
    }
    let Some(symbols) = DynamicSymbols::of(elf) else {
        return Runtime::Native;
    };
    if symbols.defines("_PyRuntime") {
        return Runtime::Python;
    }
    if symbols.defines("gHotSpotVMStructs") {
        return Runtime::Java;
    }
    // V8's post-mortem metadata; builds without it still export Node's or V8's entry points.
    let v8 = ["v8dbg_SmiTag", "_ZN4node5StartEiPPc", "_ZN2v87Isolate10GetCurrentEv"];
    if v8.iter().any(|name| symbols.defines(name)) {
        return Runtime::Node;
    }
    Runtime::Native
}

/// Go's linker writes these sections; without a section table its build information stands at the start
/// of the writable data (Go 1.26, debug/buildinfo).
fn is_go(elf: &Elf<'_>) -> bool {
    const SECTIONS: [&str; 3] = [".go.buildinfo", ".gopclntab", ".data.rel.ro.gopclntab"];
    if SECTIONS.iter().any(|name| elf.section(name).is_some()) {
        return true;
    }
    if !elf.sections.is_empty() {
        return false;
    }
    let writable = elf.segments.iter().find(|segment| {
        segment.kind == elf::PT_LOAD.0 && segment.flags & (elf::PF_X.0 | elf::PF_W.0) == elf::PF_W.0
    });
    let Some(writable) = writable else {
        return false;
    };
    let length = writable.file_size.min(ELF_RUNTIME_SCAN_BYTES_MAX);
    let data =
        elf.source().read("data segment", writable.offset, length, ELF_RUNTIME_SCAN_BYTES_MAX);
    data.is_ok_and(|data| data.windows(14).any(|window| window == b"\xff Go buildinf:"))
}
