//! Call frame information (`.eh_frame`, `.debug_frame`) into rows. One damaged function costs that
//! function only.

use super::builder::{Builder, Origin};
use super::rule::{Bytes, translate};
use crate::elf::ForeignFileError;
use crate::elf::source::{u32_at, u64_at};
use crate::limits::UNWIND_WORK_BYTES_MAX;
use agent_ebpf::{RuleKind, UnwindRule};
use gimli::{
    BaseAddresses, CommonInformationEntry, FrameDescriptionEntry, LittleEndian, UnwindContext,
    UnwindSection,
};
use hashbrown::HashMap;

/// The bytes of one section and where they lie in memory.
#[derive(Debug)]
pub(super) struct FrameSection {
    /// The bytes, from the first entry on.
    pub(super) bytes: Vec<u8>,
    /// Their address, for pointers relative to their place.
    pub(super) address: u64,
    /// Base of text-relative pointers (`.text`), 0 if unknown.
    pub(super) text: u64,
    /// Base of data-relative pointers (`.got`), 0 if unknown.
    pub(super) got: u64,
    /// The size is a bound only: an entry of length zero is the end.
    pub(super) ends_with_zero: bool,
}

/// Adds the rows of an `.eh_frame`; answers how many entries were damaged.
pub(super) fn add_eh_frame(
    builder: &mut Builder,
    section: &FrameSection,
) -> Result<usize, ForeignFileError> {
    let mut frame = gimli::EhFrame::new(&section.bytes, LittleEndian);
    frame.set_address_size(8);
    let mut compiler = Compiler::new(section, &frame, Origin::EhFrame);
    // In `.eh_frame` the word is 0 for a CIE, else the distance back to it.
    compiler.add_entries(builder, |word, _format| word == 0)?;
    Ok(compiler.damaged)
}

/// Adds the rows of a `.debug_frame`; answers how many entries were damaged.
pub(super) fn add_debug_frame(
    builder: &mut Builder,
    section: &FrameSection,
) -> Result<usize, ForeignFileError> {
    let mut frame = gimli::DebugFrame::new(&section.bytes, LittleEndian);
    frame.set_address_size(8);
    let mut compiler = Compiler::new(section, &frame, Origin::DebugFrame);
    compiler.add_entries(builder, |word, format| match format {
        gimli::Format::Dwarf32 => word & 0xffff_ffff == 0xffff_ffff,
        gimli::Format::Dwarf64 => word == u64::MAX,
    })?;
    Ok(compiler.damaged)
}

struct Compiler<'a, S: UnwindSection<Bytes<'a>>> {
    input: &'a FrameSection,
    section: &'a S,
    origin: Origin,
    bases: BaseAddresses,
    entries: HashMap<usize, CommonInformationEntry<Bytes<'a>>>,
    context: UnwindContext<usize>,
    damaged: usize,
    /// Bytes of instructions run so far.
    work_bytes: u64,
}

/// Length, format and the distinguishing word of one entry.
struct Entry {
    size: usize,
    format: gimli::Format,
    word: u64,
}

impl<'a, S: UnwindSection<Bytes<'a>>> Compiler<'a, S> {
    fn new(input: &'a FrameSection, section: &'a S, origin: Origin) -> Self {
        let bases = BaseAddresses::default()
            .set_eh_frame(input.address)
            .set_text(input.text)
            .set_got(input.got);
        Self {
            input,
            section,
            origin,
            bases,
            entries: HashMap::new(),
            context: UnwindContext::new(),
            damaged: 0,
            work_bytes: 0,
        }
    }

    /// Walks the entries by their lengths, so that one that gimli refuses does not hide the rest.
    fn add_entries(
        &mut self,
        builder: &mut Builder,
        is_cie: impl Fn(u64, gimli::Format) -> bool,
    ) -> Result<(), ForeignFileError> {
        let mut offset = 0;
        while let Some(entry) = entry_at(&self.input.bytes, offset) {
            if entry.size == 4 && self.input.ends_with_zero {
                break;
            }
            if entry.size > 4 && !is_cie(entry.word, entry.format) {
                self.add_fde(builder, offset)?;
            }
            offset += entry.size;
        }
        if offset < self.input.bytes.len() && !self.input.ends_with_zero {
            self.damaged += 1;
        }
        Ok(())
    }

    fn add_fde(&mut self, builder: &mut Builder, offset: usize) -> Result<(), ForeignFileError> {
        let entries = &mut self.entries;
        let fde =
            self.section.partial_fde_from_offset(&self.bases, offset.into()).and_then(|fde| {
                fde.parse(|section, bases, offset| {
                    let at: usize = gimli::UnwindOffset::into(offset);
                    if let Some(cie) = entries.get(&at) {
                        return Ok(cie.clone());
                    }
                    let cie = section.cie_from_offset(bases, offset)?;
                    entries.insert(at, cie.clone());
                    Ok(cie)
                })
            });
        match fde {
            Ok(fde) => self.add_function(builder, &fde),
            Err(_) => {
                self.damaged += 1;
                Ok(())
            }
        }
    }

    fn add_function(
        &mut self,
        builder: &mut Builder,
        fde: &FrameDescriptionEntry<Bytes<'a>>,
    ) -> Result<(), ForeignFileError> {
        // Each function runs its CIE's instructions too: a huge CIE shared by many would take hours.
        let bytes = (fde.entry_len() as u64).saturating_add(fde.cie().entry_len() as u64);
        self.work_bytes = self.work_bytes.saturating_add(bytes);
        if self.work_bytes > UNWIND_WORK_BYTES_MAX {
            let max = UNWIND_WORK_BYTES_MAX;
            return Err(ForeignFileError::Limit { what: "bytes of call frame instructions", max });
        }
        let start = fde.initial_address();
        let range = start..start.saturating_add(fde.len());
        let Some(mut function) = builder.function(range, self.origin)? else {
            return Ok(());
        };
        let signal = fde.is_signal_trampoline();
        let return_address = fde.cie().return_address_register();
        let unsupported = UnwindRule::plain(RuleKind::Unsupported);
        match fde.rows(self.section, &self.bases, &mut self.context) {
            Ok(mut rows) => loop {
                match rows.next_row() {
                    Ok(Some(row)) => {
                        let rule = translate(self.section, row, return_address, signal);
                        function.push(row.start_address(), rule)?;
                    }
                    Ok(None) => break,
                    Err(_) => {
                        self.damaged += 1;
                        function.replace(unsupported)?;
                        break;
                    }
                }
            },
            Err(_) => {
                self.damaged += 1;
                function.replace(unsupported)?;
            }
        }
        function.finish();
        Ok(())
    }
}

/// The entry at `offset`, if it lies inside.
fn entry_at(bytes: &[u8], offset: usize) -> Option<Entry> {
    let length = u32_at(bytes, offset)?;
    let (format, header, length) = match length {
        0 => return Some(Entry { size: 4, format: gimli::Format::Dwarf32, word: 0 }),
        u32::MAX => {
            let length = usize::try_from(u64_at(bytes, offset.checked_add(4)?)?).ok()?;
            (gimli::Format::Dwarf64, 12, length)
        }
        length => (gimli::Format::Dwarf32, 4, usize::try_from(length).ok()?),
    };
    let size = length.checked_add(header)?;
    bytes.get(offset..offset.checked_add(size)?)?;
    let word_at = offset.checked_add(header)?;
    let word = match format {
        gimli::Format::Dwarf32 => u64::from(u32_at(bytes, word_at)?),
        gimli::Format::Dwarf64 => u64_at(bytes, word_at)?,
    };
    Some(Entry { size, format, word })
}
