//! ELF files made here, for tests: one executable segment and the call frame information that is asked
//! for.

/// An `.eh_frame` with one CIE, for code that lies at 0x1000.
#[derive(Debug)]
pub(crate) struct Frames {
    bytes: Vec<u8>,
}

/// Address of the section, far behind the code.
const SECTION: u64 = 0x7000_0000;
/// Where things lie in the file.
const HEADERS: u64 = 64 + 3 * 56;

impl Frames {
    /// The CIE has `padding` bytes of instructions that do nothing.
    pub(crate) fn new(padding: u64) -> Self {
        let mut cie = vec![0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b];
        cie.extend([0x0c, 7, 8, 0x90, 1]); // CFA = rsp + 8, rip at CFA - 8
        cie.resize((cie.len() + usize::try_from(padding).unwrap()).next_multiple_of(4), 0);
        let mut bytes = u32::try_from(cie.len()).unwrap().to_le_bytes().to_vec();
        bytes.extend(cie);
        Self { bytes }
    }

    /// Adds a function.
    pub(crate) fn function(&mut self, start: u64, length: u32, instructions: &[u8]) {
        let at = self.bytes.len();
        let size = (4 + 4 + 4 + 1 + instructions.len()).next_multiple_of(4);
        self.bytes.extend(u32::try_from(size).unwrap().to_le_bytes());
        self.bytes.extend(u32::try_from(at + 4).unwrap().to_le_bytes());
        let field = SECTION + at as u64 + 8;
        self.bytes.extend(start.wrapping_sub(field).to_le_bytes()[..4].iter());
        self.bytes.extend(length.to_le_bytes());
        self.bytes.push(0); // no augmentation data
        self.bytes.extend(instructions);
        self.bytes.resize(at + 4 + size, 0);
    }

    /// The file, whose code has `code_bytes` bytes that are not in it. No section headers: the segment
    /// `PT_GNU_EH_FRAME` says where the section is.
    pub(crate) fn file(&self, code_bytes: u64) -> Vec<u8> {
        let mut file = header();
        file.extend(segment(1, 5, HEADERS, 0x1000, 0, code_bytes));
        let length = self.bytes.len() as u64 + 16 + 4;
        file.extend(segment(1, 4, HEADERS, SECTION - 16, length, length));
        file.extend(segment(0x6474_e550, 4, HEADERS, SECTION - 16, 12, 12));
        file.resize(usize::try_from(HEADERS).unwrap(), 0);
        // Version, pointer as pcrel sdata4, no table.
        file.extend([1, 0x1b, 0xff, 0xff]);
        file.extend(12u32.to_le_bytes());
        file.extend([0; 8]);
        file.extend(&self.bytes);
        file.extend([0; 4]);
        file
    }
}

fn header() -> Vec<u8> {
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for half in [3u16, 62] {
        bytes.extend(half.to_le_bytes()); // a shared object for x86-64
    }
    bytes.extend(1u32.to_le_bytes());
    for word in [0u64, 64, 0] {
        bytes.extend(word.to_le_bytes()); // entry, program headers, section headers
    }
    bytes.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 3, 64, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    bytes
}

fn segment(kind: u32, flags: u32, offset: u64, address: u64, size: u64, memory: u64) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(flags.to_le_bytes());
    for word in [offset, address, address, size, memory, 0x1000] {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

/// A file whose code of 0x300 bytes begins where the file does.
pub(crate) fn made_file() -> Vec<u8> {
    let mut file = Frames::new(0).file(0x300);
    let offset = 64 + 8; // p_offset of the first segment
    file.get_mut(offset..offset + 8).expect("it has segments").fill(0);
    file.resize(0x300, 0);
    file
}
