//! Goal: no file takes more than its limits. Method: programs laid out by hand, whose functions are what their makers want.

use crate::elf::ForeignFileError;
use crate::elf::headers::Elf;
use crate::elf::source::Source;
use crate::limits::{PROBED_CALLS_MAX, PROBED_CODE_BYTES_MAX, PROBED_FUNCTIONS_MAX};
use crate::probes::effort::Effort;
use crate::probes::libc::{WaitingCall, search, waiting_calls};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;

/// Where the code lies in the file, and in memory.
const CODE_AT: u64 = 0x1000;
const CODE_ADDRESS: u64 = 0x40_1000;

/// `mov $202, %eax`.
const LOADS_FUTEX: [u8; 5] = [0xb8, 202, 0, 0, 0];
const RET: u8 = 0xc3;

/// A program that is linked statically: a header, segments of code, and the sections that describe functions.
struct Program {
    /// Segments that show the code, each at an address of its own.
    segments: u64,
    functions: Vec<Vec<u8>>,
}

impl Program {
    fn of(functions: Vec<Vec<u8>>) -> Self {
        Self { segments: 1, functions }
    }

    /// One entry for all, and one for each function: absolute addresses, no augmentation.
    fn frames(&self) -> Vec<u8> {
        let common = [
            &12_u32.to_le_bytes()[..], // length
            &0_u32.to_le_bytes(),
            // Version, augmentation, alignment of code and of data, return address, padding.
            &[1, 0, 1, 0x78, 16, 0, 0, 0],
        ];
        let mut bytes = common.concat();
        let mut address = CODE_ADDRESS;
        for function in &self.functions {
            let back = u32::try_from(bytes.len() + 4).unwrap();
            bytes.extend(20_u32.to_le_bytes());
            bytes.extend(back.to_le_bytes());
            bytes.extend(address.to_le_bytes());
            bytes.extend((function.len() as u64).to_le_bytes());
            address += function.len() as u64;
        }
        bytes.extend(0_u32.to_le_bytes());
        bytes
    }

    fn file(&self) -> File {
        let code = self.functions.concat();
        let frames = self.frames();
        let names = b"\0.eh_frame\0.shstrtab\0";
        let frames_at = CODE_AT + code.len() as u64;
        let names_at = frames_at + frames.len() as u64;
        let sections_at = names_at + names.len() as u64;
        let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
        header.resize(16, 0);
        for half in [2_u16, 62] {
            header.extend(half.to_le_bytes());
        }
        header.extend(1_u32.to_le_bytes());
        for word in [CODE_ADDRESS, 64, sections_at] {
            header.extend(word.to_le_bytes());
        }
        header.extend(0_u32.to_le_bytes());
        let segments = u16::try_from(self.segments).unwrap();
        for half in [64, 56, segments, 64, 3, 2] {
            header.extend(half.to_le_bytes());
        }
        for segment in 0..self.segments {
            let (size, address) = (code.len() as u64, CODE_ADDRESS + (segment << 32));
            header.extend([1_u32.to_le_bytes(), 5_u32.to_le_bytes()].concat());
            for word in [CODE_AT, address, address, size, size, 0x1000] {
                header.extend(word.to_le_bytes());
            }
        }
        header.resize(usize::try_from(CODE_AT).unwrap(), 0);
        let mut sections = vec![0; 64];
        let frames_size = frames.len() as u64;
        for (name, kind, flags, at, size) in [
            (1_u32, 1_u32, 2_u64, frames_at, frames_size),
            (11, 3, 0, names_at, names.len() as u64),
        ] {
            sections.extend([name.to_le_bytes(), kind.to_le_bytes()].concat());
            for word in [flags, at, at, size] {
                sections.extend(word.to_le_bytes());
            }
            sections.resize(sections.len() + 24, 0);
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[&header[..], &code, &frames, names, &sections].concat()).unwrap();
        file
    }
}

/// What glibc's function does that waits.
fn waits() -> Vec<u8> {
    let marks = [0xba, 2, 0, 0, 0, 0x87, 0x07]; // mov $2, %edx; xchg %eax, (%rdi)
    [&LOADS_FUTEX[..], &marks, &[0x0f, 0x05, RET]].concat()
}

/// Calls what lies before it as often.
fn calls(count: usize, before: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for call in 0..count {
        let back = i32::try_from(before + 5 * (call + 1)).unwrap();
        bytes.push(0xe8);
        bytes.extend((-back).to_le_bytes());
    }
    bytes.push(RET);
    bytes
}

fn found(program: &Program) -> Result<Vec<WaitingCall>, ForeignFileError> {
    waiting_calls(program.file().as_fd())
}

#[track_caller]
fn assert_limit(found: &Result<Vec<WaitingCall>, ForeignFileError>, expected: usize) {
    let Err(ForeignFileError::Limit { max, .. }) = found else { panic!("{found:?}") };
    assert_eq!(*max, expected as u64);
}

#[test]
fn a_file_with_more_places_than_a_c_library_is_not_probed() {
    let program = |count| Program::of(vec![waits(), calls(count, waits().len())]);
    let few = found(&program(3)).unwrap();
    let places: Vec<u64> = few.iter().map(|call| call.place.0).collect();
    let first = CODE_AT + waits().len() as u64;
    assert_eq!(places, [first, first + 5, first + 10]);
    assert_eq!(found(&program(PROBED_CALLS_MAX)).unwrap().len(), PROBED_CALLS_MAX);
    assert_limit(&found(&program(PROBED_CALLS_MAX + 1)), PROBED_CALLS_MAX);
}

/// Segments that show the same bytes cost as much as others.
#[test]
fn the_code_of_all_segments_is_limited() {
    let max = usize::try_from(PROBED_CODE_BYTES_MAX).unwrap();
    let program = |segments| Program { segments, functions: vec![vec![RET; max / 4]] };
    assert_eq!(found(&program(4)).unwrap(), []);
    assert_limit(&found(&program(5)), max);
}

/// A function that loads the number as often as it has room for, and thousands that do it once.
#[test]
fn each_function_is_decoded_once_and_not_too_many() {
    let program = Program::of(vec![LOADS_FUTEX.repeat(3000), vec![RET; 8]]);
    let file = program.file();
    let elf = Elf::parse(Source::file(file.as_fd()).unwrap()).unwrap();
    let effort = Effort::begin();
    assert_eq!(search(&elf, &effort).unwrap(), []);
    assert_eq!(effort.functions.get(), 1);

    let loads = [&LOADS_FUTEX[..], &[RET]].concat();
    assert_eq!(found(&Program::of(vec![loads.clone(); PROBED_FUNCTIONS_MAX])).unwrap(), []);
    let many = found(&Program::of(vec![loads; PROBED_FUNCTIONS_MAX + 1]));
    assert_limit(&many, PROBED_FUNCTIONS_MAX);
}

#[test]
fn a_search_ends_with_its_time() {
    let program = Program::of(vec![waits(), calls(3, waits().len())]);
    let file = program.file();
    let elf = Elf::parse(Source::file(file.as_fd()).unwrap()).unwrap();
    let effort = Effort::until(0);
    assert_eq!(search(&elf, &effort).unwrap(), []);
    assert!(matches!(effort.end(), Err(ForeignFileError::Limit { .. })));
}
