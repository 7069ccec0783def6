//! Where functions begin and end, by the search table of the call frame information (`.eh_frame_hdr`): it is
//! there in stripped files too. Only the forms that linkers write (LSB 5.0, "Exception Frames"); anything
//! else is "not known".

use crate::elf::headers::Elf;
use crate::elf::source::{u32_at, u64_at};
use crate::limits::FRAME_ENTRY_BYTES_MAX;
use object::elf;
use std::ops::Range;

/// `DW_EH_PE_udata4`.
const UDATA4: u8 = 0x03;
/// `DW_EH_PE_datarel | DW_EH_PE_sdata4`.
const DATAREL_SDATA4: u8 = 0x3b;
/// The low four bits of an encoding say the size, the high ones what it is relative to.
const PCREL: u8 = 0x10;

/// The range of the function at `address`.
pub(crate) fn containing(elf: &Elf<'_>, address: u64) -> Option<Range<u64>> {
    let header = elf.segment(elf::PT_GNU_EH_FRAME)?;
    let read = |at: u64, length: u64| {
        elf.read_address("call frame information", at, length, FRAME_ENTRY_BYTES_MAX).ok()
    };
    let start = read(header.address, 12)?;
    if start.get(..4).map(|bytes| (bytes[0], bytes[2], bytes[3]))
        != Some((1, UDATA4, DATAREL_SDATA4))
    {
        return None;
    }
    let count = u64::from(u32_at(&start, 8)?);
    let table = header.address.checked_add(12)?;
    let entry = |index: u64| {
        let bytes = read(table.checked_add(index.checked_mul(8)?)?, 8)?;
        let relative = |at| {
            Some(
                header
                    .address
                    .wrapping_add(i64::from(u32_at(&bytes, at)?.cast_signed()).cast_unsigned()),
            )
        };
        Some((relative(0)?, relative(4)?))
    };
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if entry(middle)?.0 <= address {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let (begin, at) = entry(low.checked_sub(1)?)?;
    let length = function_bytes(at, &read)?;
    let range = begin..begin.checked_add(length)?;
    range.contains(&address).then_some(range)
}

/// The length of code that the entry at `at` describes.
fn function_bytes(at: u64, read: &impl Fn(u64, u64) -> Option<Vec<u8>>) -> Option<u64> {
    let head = read(at, 8)?;
    let length = u64::from(u32_at(&head, 0)?);
    let back = u64::from(u32_at(&head, 4)?);
    // 0xffffffff announces 64-bit lengths, which no linker writes here.
    if !(12..=FRAME_ENTRY_BYTES_MAX).contains(&length) || back == 0 {
        return None;
    }
    let encoding = pointer_encoding(at.checked_add(4)?.checked_sub(back)?, read)?;
    let size = match encoding & 0x0f {
        0x03 | 0x0b => 4,
        0x00 | 0x04 | 0x0c => 8,
        _ => return None,
    };
    if encoding & 0x70 > PCREL {
        return None;
    }
    // The length follows the start and is encoded likewise, relative to nothing.
    let range = read(at.checked_add(8 + size)?, size)?;
    if size == 4 { Some(u64::from(u32_at(&range, 0)?)) } else { u64_at(&range, 0) }
}

/// How a common entry says that its functions' addresses are written.
fn pointer_encoding(at: u64, read: &impl Fn(u64, u64) -> Option<Vec<u8>>) -> Option<u8> {
    let head = read(at, 8)?;
    let length = u64::from(u32_at(&head, 0)?);
    if !(5..=FRAME_ENTRY_BYTES_MAX).contains(&length) || u32_at(&head, 4)? != 0 {
        return None;
    }
    let body = read(at.checked_add(8)?, length - 4)?;
    let (&version, rest) = body.split_first()?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    let augmentation = rest.get(..end)?;
    let mut data = rest.get(end + 1..)?;
    skip_leb128(&mut data)?; // code alignment
    skip_leb128(&mut data)?; // data alignment
    if version == 1 {
        data = data.get(1..)?; // return address
    } else {
        skip_leb128(&mut data)?;
    }
    let Some(letters) = augmentation.strip_prefix(b"z") else { return Some(0) };
    skip_leb128(&mut data)?; // length of what follows
    for letter in letters {
        match letter {
            b'R' => return data.first().copied(),
            b'L' => data = data.get(1..)?,
            b'P' => {
                let size = match data.first()? & 0x0f {
                    0x02 | 0x0a => 2,
                    0x03 | 0x0b => 4,
                    0x00 | 0x04 | 0x0c => 8,
                    _ => return None,
                };
                data = data.get(1 + size..)?;
            }
            b'S' | b'B' => {}
            _ => return None,
        }
    }
    Some(0)
}

fn skip_leb128(data: &mut &[u8]) -> Option<()> {
    let end = data.iter().position(|&byte| byte & 0x80 == 0)?;
    *data = data.get(end + 1..)?;
    Some(())
}
