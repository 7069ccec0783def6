//! Reads the machine code of one function, instruction by instruction.

use crate::address::FileOffset;
use crate::elf::headers::Elf;
use crate::limits::{PROBED_FUNCTION_BYTES_MAX, PROBED_RETURNS_MAX};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use std::ops::Range;

/// The instructions of the code in `range`, up to the padding behind it. `None` if it cannot be read, is too long, or
/// holds what is no instruction.
pub(crate) fn instructions(elf: &Elf<'_>, range: &Range<u64>) -> Option<Vec<Instruction>> {
    let length = range.end.checked_sub(range.start)?;
    let max = PROBED_FUNCTION_BYTES_MAX;
    let bytes = elf.read_address("probed function", range.start, length, max).ok()?;
    let decoder = Decoder::with_ip(64, &bytes, range.start, DecoderOptions::NONE);
    let mut found = Vec::new();
    for instruction in decoder {
        if instruction.mnemonic() == Mnemonic::Int3 {
            break;
        }
        if instruction.is_invalid() {
            return None;
        }
        found.push(instruction);
    }
    Some(found)
}

/// Where in the file the function in `range` returns.
pub(crate) fn returns(elf: &Elf<'_>, range: &Range<u64>) -> Option<Vec<FileOffset>> {
    let returns: Option<Vec<FileOffset>> = instructions(elf, range)?
        .iter()
        .filter(|instruction| instruction.flow_control() == FlowControl::Return)
        .map(|instruction| file_offset(elf, instruction.ip()))
        .collect();
    returns.filter(|returns| (1..=PROBED_RETURNS_MAX).contains(&returns.len()))
}

/// Where in the file an address lies.
pub(crate) fn file_offset(elf: &Elf<'_>, address: u64) -> Option<FileOffset> {
    elf.file_range(address).map(|(offset, _)| FileOffset(offset))
}
