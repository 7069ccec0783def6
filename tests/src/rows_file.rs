//! Libraries that are nothing but unwind rows, as many as wanted. Their code is a hole that nobody runs.

use crate::process::Running;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rows of a function.
const ROWS: u64 = 10;
/// Bytes of a function: a row each four bytes.
const FUNCTION_BYTES: u64 = ROWS * 4;
/// Where the code begins, in the file and in memory.
const TEXT_OFFSET: u64 = 0x1000;

/// Such a library. Two with different numbers of functions have different rows.
#[derive(Clone, Debug)]
pub struct RowsFile {
    path: PathBuf,
    functions: u64,
}

impl RowsFile {
    /// Writes it, if it is not there yet.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn written(path: PathBuf, functions: u64) -> Self {
        if !path.is_file() {
            let half = path.with_extension("half");
            write(&half, functions).expect("write a file of rows");
            std::fs::rename(&half, &path).expect("rename a file of rows");
        }
        Self { path, functions }
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Rows of the table that is compiled of it, about.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.functions * ROWS
    }

    /// Starts a process that maps its code, keeps a CPU busy for so long, and then sleeps for so long.
    #[must_use]
    pub fn mapped(&self, busy_seconds: u64, asleep_seconds: u64) -> Running {
        const MAP: &str = "
import mmap, sys, time
with open(sys.argv[1], 'rb') as f:
    m = mmap.mmap(f.fileno(), int(sys.argv[2]), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC,
                  offset=int(sys.argv[3]))
end = time.time() + float(sys.argv[4])
while time.time() < end: sum(i * i for i in range(1000))
time.sleep(float(sys.argv[5]))
";
        let mut python = Command::new("python3");
        python.arg("-c").arg(MAP).arg(&self.path);
        let text_bytes = self.functions * FUNCTION_BYTES;
        python.args([text_bytes, TEXT_OFFSET].map(|number| number.to_string()));
        python.args([busy_seconds, asleep_seconds].map(|seconds| seconds.to_string()));
        Running::start(python)
    }
}

fn write(path: &Path, functions: u64) -> std::io::Result<()> {
    let text_bytes = functions * FUNCTION_BYTES;
    let file = std::fs::File::create(path)?;
    let frame_offset = TEXT_OFFSET + text_bytes;
    let frames = frames(frame_offset, functions);
    let names = b"\0.eh_frame\0.shstrtab\0";
    let names_offset = frame_offset + frames.len() as u64;
    let sections_offset = (names_offset + names.len() as u64).next_multiple_of(8);
    let mut head = Vec::new();
    head.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    head.extend_from_slice(&[3, 0, 62, 0, 1, 0, 0, 0]); // ET_DYN, EM_X86_64
    words(&mut head, &[TEXT_OFFSET, 64, sections_offset]);
    head.extend_from_slice(&[0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 3, 0, 2, 0]);
    head.extend_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]); // PT_LOAD, R and X
    words(&mut head, &[TEXT_OFFSET, TEXT_OFFSET, TEXT_OFFSET, text_bytes, text_bytes, 0x1000]);
    let mut out = BufWriter::new(file);
    out.write_all(&head)?;
    out.flush()?;
    let mut file = out.into_inner()?;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(frame_offset))?;
    file.write_all(&frames)?;
    let mut tail = names.to_vec();
    tail.resize(usize::try_from(sections_offset - names_offset).expect("a few bytes") + 64, 0);
    let frame_bytes = frames.len() as u64;
    section(&mut tail, (1, 1), (frame_offset, frame_offset), frame_bytes);
    section(&mut tail, (11, 3), (0, names_offset), names.len() as u64);
    file.write_all(&tail)
}

/// One header: name and kind, address and offset, size.
fn section(out: &mut Vec<u8>, (name, kind): (u32, u32), (address, offset): (u64, u64), size: u64) {
    out.extend_from_slice(&name.to_le_bytes());
    out.extend_from_slice(&kind.to_le_bytes());
    words(out, &[0, address, offset, size, 0, 8, 0]);
}

fn words(out: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

/// `.eh_frame` at this address: one common entry, then one for each function, whose stack grows by eight
/// bytes a row and from function to function (LSB 5.0, section 10.6.1).
fn frames(address: u64, functions: u64) -> Vec<u8> {
    let mut out = Vec::new();
    // CIE: version 1, "zR", factors 1 and -8, return address in 16, pointers relative and of 4 bytes;
    // CFA = rsp + 8, return address at CFA - 8.
    out.extend_from_slice(&[20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b]);
    out.extend_from_slice(&[0x0c, 7, 8, 0x90, 1, 0, 0]);
    for function in 0..functions {
        let entry = out.len() as u64;
        let length = 4 + 4 + 4 + 1 + 3 * (ROWS - 1);
        let padded = (length + 4).next_multiple_of(8) - 4;
        let number = |value: u64| u32::try_from(value & 0xffff_ffff).expect("masked").to_le_bytes();
        out.extend_from_slice(&number(padded));
        out.extend_from_slice(&number(entry + 4)); // back to the common entry
        let place = address + entry + 8;
        out.extend_from_slice(&number(
            (TEXT_OFFSET + function * FUNCTION_BYTES).wrapping_sub(place),
        ));
        out.extend_from_slice(&number(FUNCTION_BYTES));
        out.push(0); // no augmentation
        for row in 1..ROWS {
            let offset = u8::try_from((function + row) % 12 * 8 + 16).expect("below 128");
            out.extend_from_slice(&[0x44, 0x0e, offset]); // advance 4, def_cfa_offset
        }
        out.resize(usize::try_from(entry + 4 + padded).expect("fits into memory"), 0);
    }
    words(&mut out, &[0]);
    out
}
