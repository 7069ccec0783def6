//! Compiles the rows of one file: finds the sections, even where the section table was stripped, asks
//! each source, closes the root.

use super::builder::Builder;
use super::callee::Callees;
use super::code::CodeRows;
use super::entries::{Entries, Format, FrameSection};
use super::go::GoRows;
use super::{RowLosses, RowTable, cfi, known};
use crate::clock::{charge_thread, thread_cpu_ns};
use crate::elf::ForeignFileError;
use crate::elf::dynamic::DynamicSymbols;
use crate::elf::go::GoTable;
use crate::elf::headers::{Elf, Section};
use crate::elf::source::{Source, malformed, u64_at};
use crate::elf::unwind_digest;
use crate::limits::{
    ELF_DYNAMIC_BYTES_MAX, UNWIND_BLOCK_FUNCTIONS, UNWIND_BLOCKS_AHEAD, UNWIND_CODE_LARGE_BYTES,
    UNWIND_CODE_SOON_BYTES, UNWIND_DECOMPRESSED_BYTES_MAX, UNWIND_ENTRY_BYTES_MAX,
    UNWIND_HELPED_FUNCTIONS_MIN, UNWIND_LOADER_ENTRY_BYTES_MAX, UNWIND_PADDING_BYTES_MAX,
    UNWIND_SECTION_BYTES_MAX, UNWIND_SECTIONS_MAX,
};
use object::elf;
use std::sync::mpsc::{Receiver, sync_channel};

/// Compiles the rows of a file in memory, the vDSO.
///
/// # Errors
/// See [`ForeignFileError`].
pub fn unwind_rows_from_bytes(bytes: &[u8]) -> Result<RowTable, ForeignFileError> {
    unwind_rows(Source::memory(bytes))
}

/// See [`crate::elf::ForeignFiles::unwind_rows`].
pub(crate) fn unwind_rows(source: Source<'_>) -> Result<RowTable, ForeignFileError> {
    unwind_rows_by(source, u64::MAX)
}

/// See [`crate::elf::ForeignFiles::unwind_rows_soon`].
pub(crate) fn unwind_rows_soon(source: Source<'_>) -> Result<RowTable, ForeignFileError> {
    unwind_rows_by(source, UNWIND_CODE_SOON_BYTES)
}

/// Looks into so many bytes of code that nothing describes, and puts off the others.
fn unwind_rows_by(source: Source<'_>, code_bytes: u64) -> Result<RowTable, ForeignFileError> {
    let elf = Elf::parse(source)?;
    let mut builder = Builder::new(elf.executable_segments());
    describe_roots(&elf, &mut builder)?;
    // A table that is kept on disk has no rows from code. What is linked into every file is no reason to keep none.
    let kept = unwind_digest::has_digest(&elf);
    let bytes_min = if kept { UNWIND_CODE_LARGE_BYTES } else { UNWIND_PADDING_BYTES_MAX + 1 };
    builder.look_into(CodeRows::new(&elf, bytes_min).only(code_bytes));
    let mut decompressed = Vec::new();
    let sections = frame_sections(&elf, &mut decompressed, &mut builder.losses)?;
    let entries = Entries::find(sections, &builder)?;
    // Damaged Go tables cost the Go code, not the C code beside it.
    let go = match GoTable::find(&elf) {
        Ok(go) => go,
        Err(error) => {
            tracing::debug!(%error, "Go tables not readable");
            builder.losses.damaged += 1;
            None
        }
    };
    let callees = (!kept).then(|| Callees::new(&elf));
    let table = merge(builder, cfi::Compiler::new(callees), entries, go.as_ref())?;
    let losses = table.losses();
    if losses != RowLosses::default() {
        tracing::debug!(?losses, "unwind rows of a file are not whole");
    }
    Ok(table)
}

/// Adds the functions of all sources in the order of their addresses. Of a large file another thread reads most
/// entries of call frame information ahead, in blocks; what becomes of them is the same.
fn merge(
    builder: Builder<'_>,
    compiler: cfi::Compiler<'_>,
    entries: Entries<'_>,
    go: Option<&GoTable<'_, '_>>,
) -> Result<RowTable, ForeignFileError> {
    let count = entries.len();
    let helper = if count < UNWIND_HELPED_FUNCTIONS_MIN { None } else { compiler.ahead() };
    let Some(mut helper) = helper else {
        return in_order(builder, compiler, entries, go, None);
    };
    let mut ahead = entries.twin();
    let (sender, blocks) = sync_channel(UNWIND_BLOCKS_AHEAD);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("unwind-ahead".to_owned());
        let helper = thread.spawn_scoped(scope, move || {
            for first in (0..count).step_by(UNWIND_BLOCK_FUNCTIONS).filter(|&n| is_ahead(n)) {
                let numbers = first..count.min(first + UNWIND_BLOCK_FUNCTIONS);
                let block = helper.read(&mut ahead, numbers);
                if sender.send(block).is_err() {
                    break; // whoever wanted them has ended
                }
            }
            (ahead.check(), thread_cpu_ns())
        });
        // It takes the other end with it, so the helper never waits for nobody.
        let blocks = helper.is_ok().then_some(blocks);
        let made = in_order(builder, compiler, entries, go, blocks);
        match helper.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok((read, cpu_ns))) => {
                charge_thread(cpu_ns);
                read.and(made)
            }
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_no_thread) => made,
        }
    })
}

/// True for a function that the helper reads: of each three blocks two, because the other thread puts all rows in
/// their places besides.
fn is_ahead(number: usize) -> bool {
    !(number / UNWIND_BLOCK_FUNCTIONS).is_multiple_of(3)
}

fn in_order(
    mut builder: Builder<'_>,
    mut compiler: cfi::Compiler<'_>,
    mut entries: Entries<'_>,
    go: Option<&GoTable<'_, '_>>,
    mut blocks: Option<Receiver<cfi::Block>>,
) -> Result<RowTable, ForeignFileError> {
    let base = builder.base();
    let mut go = go.map(|go| GoRows::new(go, &mut builder));
    let mut block = None;
    for number in 0..entries.len() {
        if builder.losses.out_of_time > 0 {
            builder.losses.left_out += (entries.len() - number) as u64;
            break;
        }
        let Some(start) = entries.start(number) else { break };
        let start = base.saturating_add(u64::from(start));
        if let Some(go) = &mut go {
            while go.start().is_some_and(|first| first <= start) {
                go.add(&mut builder);
            }
        }
        let index = number % UNWIND_BLOCK_FUNCTIONS;
        if index == 0 {
            // The helper ends when nobody takes what it reads.
            blocks = blocks.filter(|_| builder.losses.out_of_time == 0);
            let blocks = blocks.as_ref().filter(|_| is_ahead(number));
            block = blocks.and_then(|blocks| blocks.recv().ok());
        }
        let is_read = block.as_ref().is_some_and(|block| block.add(index, &mut builder));
        if !is_read {
            compiler.add(&mut builder, &mut entries, number);
        }
    }
    if let Some(go) = &mut go {
        while go.start().is_some() {
            go.add(&mut builder);
        }
    }
    entries.check()?;
    builder.losses.damaged += entries.damaged;
    builder.losses.left_out += entries.left_out;
    Ok(builder.finish())
}

/// Every section of call frame information, in the order in which they are believed.
fn frame_sections<'a>(
    elf: &Elf<'a>,
    decompressed: &'a mut Vec<u8>,
    losses: &mut RowLosses,
) -> Result<Vec<FrameSection<'a>>, ForeignFileError> {
    let address_of = |name: &str| elf.section(name).map_or(0, |section| section.address);
    let base = FrameSection {
        source: elf.source(),
        offset: 0,
        size: 0,
        address: 0,
        text: address_of(".text"),
        got: address_of(".got"),
        ends_with_zero: false,
        format: Format::EhFrame,
    };
    let mut found = Vec::new();
    // BOLT keeps the original section under another name, for functions it left alone.
    let named = elf.sections_named(".eh_frame").chain(elf.sections_named(".bolt.org.eh_frame"));
    for section in named.filter(|section| section.kind != elf::SHT_NOBITS.0) {
        let Section { offset, size, address, .. } = *section;
        found.push(FrameSection { offset, size, address, ..base });
    }
    if found.is_empty() {
        found.extend(eh_frame_by_header(elf, base)?);
    }
    if let Some(section) = elf.section(".debug_frame") {
        let format = Format::DebugFrame;
        let Section { offset, size, .. } = *section;
        if section.flags & elf::SHF_COMPRESSED.0 == 0 {
            found.push(FrameSection { offset, size, format, ..base });
        } else {
            let max = UNWIND_DECOMPRESSED_BYTES_MAX;
            *decompressed = elf.section_bytes(".debug_frame", section, max)?;
            let source = Source::memory(decompressed);
            found.push(FrameSection { source, size: source.size(), format, ..base });
        }
    }
    bound(&mut found, losses);
    Ok(found)
}

/// Leaves out what lies beyond the file's end, and what is more than one file may have.
fn bound(sections: &mut Vec<FrameSection<'_>>, losses: &mut RowLosses) {
    let mut left = UNWIND_SECTION_BYTES_MAX;
    let count = sections.len();
    sections.truncate(UNWIND_SECTIONS_MAX);
    losses.left_out += (count - sections.len()) as u64;
    sections.retain_mut(|section| {
        let FrameSection { source, offset, size, .. } = *section;
        if offset.checked_add(size).is_none_or(|end| end > source.size()) {
            losses.damaged += 1;
            return false;
        }
        if section.ends_with_zero {
            section.size = size.min(left);
        }
        let Some(rest) = left.checked_sub(section.size) else {
            losses.left_out += 1;
            return false;
        };
        left = rest;
        true
    });
}

/// `.eh_frame` through `PT_GNU_EH_FRAME`, as the C++ runtime finds it.
fn eh_frame_by_header<'a>(
    elf: &Elf<'a>,
    base: FrameSection<'a>,
) -> Result<Option<FrameSection<'a>>, ForeignFileError> {
    let Some(header) = elf.segment(elf::PT_GNU_EH_FRAME) else {
        return Ok(None);
    };
    // Version, three encodings, then the pointer: at most 12 bytes (LSB 5.0, section 10.6.2).
    let length = header.file_size.min(12);
    let bytes = elf.source().read(".eh_frame_hdr", header.offset, length, 12)?;
    let bases = gimli::BaseAddresses::default().set_eh_frame_hdr(header.address);
    let pointer = bytes.get(1).zip(bytes.get(4..)).and_then(|(&encoding, _)| {
        // gimli parses a whole header; the table behind is not needed, so it is declared absent.
        let mut head = bytes.clone();
        *head.get_mut(1)? = encoding;
        *head.get_mut(2)? = gimli::constants::DW_EH_PE_omit.0;
        *head.get_mut(3)? = gimli::constants::DW_EH_PE_omit.0;
        let header = gimli::EhFrameHdr::new(&head, gimli::LittleEndian);
        header.parse(&bases, 8).ok()?.eh_frame_ptr().direct().ok()
    });
    let address = pointer.ok_or_else(|| malformed(".eh_frame_hdr", "no pointer to .eh_frame"))?;
    let (offset, size) = elf
        .file_range(address)
        .ok_or_else(|| malformed(".eh_frame_hdr", "points outside of the file"))?;
    let got = header.address;
    Ok(Some(FrameSection { offset, size, address, got, ends_with_zero: true, ..base }))
}

/// Tells the builder of the code at the roots of stacks that may have no information of its own.
fn describe_roots(elf: &Elf<'_>, builder: &mut Builder<'_>) -> Result<(), ForeignFileError> {
    let dynamic = Dynamic::read(elf);
    if elf.kind == elf::ET_EXEC.0 || elf.segment(elf::PT_INTERP).is_some() || dynamic.is_program {
        builder.set_entry(elf.entry, UNWIND_ENTRY_BYTES_MAX);
    } else if is_loader(elf) {
        builder.add_root(elf.entry, UNWIND_LOADER_ENTRY_BYTES_MAX);
    }
    let is_static = elf.segment(elf::PT_INTERP).is_none() && !dynamic.needs_others;
    let makes_contexts =
        || DynamicSymbols::of(elf).is_some_and(|symbols| symbols.defines("makecontext"));
    let (known, cut) = known::find(elf, is_static || makes_contexts())?;
    builder.losses.left_out += u64::from(cut);
    builder.add_known(known);
    builder.add_known(known::stubs(elf));
    Ok(())
}

/// True for the dynamic loader: a library that the kernel starts at its entry. glibc's has no call frame
/// information there (`RTLD_START`, sysdeps/x86_64/dl-machine.h), and all that a program does before `main` has it
/// as root.
fn is_loader(elf: &Elf<'_>) -> bool {
    let text = elf.section(".text").map(|section| section.address);
    elf.entry != 0 && text.is_some_and(|text| text != elf.entry)
}

/// What the dynamic table says of the kind of file.
#[derive(Clone, Copy, Debug, Default)]
struct Dynamic {
    /// The kernel starts the file at its entry. Linkers write the start of `.text` there in libraries,
    /// where an ordinary function lies.
    is_program: bool,
    needs_others: bool,
}

impl Dynamic {
    fn read(elf: &Elf<'_>) -> Self {
        /// `DT_NEEDED`, and `DT_FLAGS_1` with its bit `DF_1_PIE` (glibc elf/elf.h), the mark of a static
        /// position-independent program.
        const NEEDED: u64 = 1;
        const FLAGS_1: u64 = 0x6fff_fffb;
        const FLAG_PIE: u64 = 0x0800_0000;
        let mut found = Self::default();
        let Some(segment) = elf.segment(elf::PT_DYNAMIC) else { return found };
        let length = segment.file_size.min(ELF_DYNAMIC_BYTES_MAX);
        let bytes = elf.source().read("dynamic", segment.offset, length, ELF_DYNAMIC_BYTES_MAX);
        for entry in bytes.unwrap_or_default().as_chunks::<16>().0 {
            match (u64_at(entry, 0), u64_at(entry, 8)) {
                (Some(NEEDED), _) => found.needs_others = true,
                (Some(FLAGS_1), Some(flags)) => found.is_program = flags & FLAG_PIE != 0,
                _ => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;
