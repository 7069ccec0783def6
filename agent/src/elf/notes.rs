//! Build ids from notes: GNU's and Go's. Works with program headers alone.

use super::headers::Elf;
use super::source::u32_at;
use crate::limits::{ELF_NOTE_BYTES_MAX, ELF_NOTE_SEGMENTS_MAX};
use object::elf;
use proto::BuildId;

/// `NT_GNU_BUILD_ID` of owner `GNU` (elf.h).
const GNU_BUILD_ID: u32 = 3;
/// `ELF_NOTE_GOBUILDID_TAG` of owner `Go` (Go 1.26, cmd/link/internal/ld/elf.go).
const GO_BUILD_ID: u32 = 4;

/// What the notes say.
#[derive(Debug, Default)]
pub(crate) struct BuildIds {
    pub(crate) gnu: Option<BuildId>,
    pub(crate) go: Option<String>,
}

/// Reads the notes of `PT_NOTE` segments, and where those have no build id, of note sections.
pub(crate) fn build_ids(elf: &Elf<'_>) -> BuildIds {
    let mut found = BuildIds::default();
    let segments = elf.segments.iter().filter(|segment| segment.kind == elf::PT_NOTE.0);
    let sections = elf.sections.iter().filter(|section| section.kind == elf::SHT_NOTE.0);
    let ranges = segments
        .map(|segment| (segment.offset, segment.file_size))
        .chain(sections.map(|section| (section.offset, section.size)));
    for (offset, size) in ranges.take(ELF_NOTE_SEGMENTS_MAX) {
        if found.gnu.is_some() && found.go.is_some() {
            break;
        }
        let length = size.min(ELF_NOTE_BYTES_MAX);
        if let Ok(notes) = elf.source().read("notes", offset, length, ELF_NOTE_BYTES_MAX) {
            read_notes(&notes, &mut found);
        }
    }
    found
}

/// Walks one block of notes: three words (name size, descriptor size, type), name, descriptor, both
/// padded to 4 bytes.
fn read_notes(mut notes: &[u8], found: &mut BuildIds) {
    while let Some(Note { name, kind, descriptor, rest }) = split_note(notes) {
        match (name, kind) {
            (b"GNU\0", GNU_BUILD_ID) if found.gnu.is_none() => {
                found.gnu = BuildId::new(descriptor);
            }
            (b"Go\0\0", GO_BUILD_ID) if found.go.is_none() => {
                found.go = std::str::from_utf8(descriptor)
                    .ok()
                    .filter(|id| !id.is_empty())
                    .map(str::to_owned);
            }
            _ => {}
        }
        notes = rest;
    }
}

/// One note and the bytes after it.
struct Note<'a> {
    name: &'a [u8],
    kind: u32,
    descriptor: &'a [u8],
    rest: &'a [u8],
}

fn split_note(notes: &[u8]) -> Option<Note<'_>> {
    let name_size = usize::try_from(u32_at(notes, 0)?).ok()?;
    let descriptor_size = usize::try_from(u32_at(notes, 4)?).ok()?;
    let kind = u32_at(notes, 8)?;
    let body = notes.get(12..)?;
    let name = body.get(..name_size)?;
    let body = body.get(name_size.checked_next_multiple_of(4)?..)?;
    let descriptor = body.get(..descriptor_size)?;
    let end = descriptor_size.checked_next_multiple_of(4)?.min(body.len());
    Some(Note { name, kind, descriptor, rest: body.get(end..)? })
}
