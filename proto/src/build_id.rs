//! The identity of an executable file's contents. Only the bytes; which scheme they follow (GNU note,
//! htlhash) is said by where they stand.

use std::fmt;

/// Longest build id accepted, in bytes (GNU notes have 20; 64 leaves room for SHA-512).
pub const BUILD_ID_BYTES_MAX: usize = 64;

/// Bytes of a build id, shown as lower-case hex.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildId(Vec<u8>);

impl BuildId {
    /// Takes 1 to [`BUILD_ID_BYTES_MAX`] bytes that are not all zero, else nothing.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let fits = (1..=BUILD_ID_BYTES_MAX).contains(&bytes.len());
        (fits && bytes.iter().any(|&byte| byte != 0)).then(|| Self(bytes.to_vec()))
    }

    /// Reads hex of either case.
    #[must_use]
    pub fn from_hex(hex: &str) -> Option<Self> {
        if !hex.len().is_multiple_of(2) || !hex.is_ascii() {
            return None;
        }
        let bytes: Option<Vec<u8>> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok())
            .collect();
        Self::new(&bytes?)
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}
