//! Copies of a program, each a file of its own: another path and another build id.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// One copy.
#[derive(Clone, Debug)]
pub struct Copy {
    /// Where it is.
    pub path: PathBuf,
    /// Its GNU build id, hexadecimal.
    pub build_id: String,
}

/// The header of a GNU build id of 20 bytes: name size, description size, `NT_GNU_BUILD_ID`, name
/// (<https://refspecs.linuxfoundation.org/elf/gabi4+/ch5.pheader.html#note_section>).
const NOTE: [u8; 16] = [4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0, b'G', b'N', b'U', 0];

/// Writes `count` copies of `program` into `folder`, called `PREFIX-NUMBER`.
///
/// # Panics
/// If the program has no build id of 20 bytes, or the folder cannot be written.
#[must_use]
pub fn copies(program: &Path, folder: &Path, prefix: &str, count: u32) -> Vec<Copy> {
    let original = std::fs::read(program).expect("the program can be read");
    let note = original.windows(NOTE.len()).position(|window| window == NOTE);
    let at = note.expect("the program has a build id") + NOTE.len();
    let one = |number: u32| {
        let mut bytes = original.clone();
        let mut id = [0x5e_u8; 20];
        id[..4].copy_from_slice(&number.to_le_bytes());
        id[4..8].copy_from_slice(&std::process::id().to_le_bytes());
        bytes[at..at + id.len()].copy_from_slice(&id);
        let path = folder.join(format!("{prefix}-{number:04}"));
        std::fs::write(&path, bytes).expect("the folder can be written");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, executable).expect("the file is ours");
        Copy { path, build_id: id.iter().map(|byte| format!("{byte:02x}")).collect() }
    };
    (0..count).map(one).collect()
}
