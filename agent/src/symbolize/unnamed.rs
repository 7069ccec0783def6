//! Why a frame has no name: a reason with a number, so that it can be counted.

/// Why nothing is known of one location. The numbers are stable: they travel in metrics and on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum UnnamedReason {
    /// No symbol covers the address: the file is stripped, or this is no function.
    NoSymbol = 0,
    /// Nobody has the file any more.
    FileGone = 1,
    /// The file could not be read, or is not what its format says.
    NotReadable = 2,
    /// Looking it up would have passed a limit (`limits.rs`).
    Limit = 3,
    /// No file backs the code, and its program tells no names.
    AnonymousCode = 4,
    /// The kernel hides its addresses (`kernel.kptr_restrict`, or the capability SYSLOG is missing).
    KernelHidden = 5,
}

impl UnnamedReason {
    /// Every reason, in the order of their numbers (append only).
    pub const ALL: [Self; 6] = [
        Self::NoSymbol,
        Self::FileGone,
        Self::NotReadable,
        Self::Limit,
        Self::AnonymousCode,
        Self::KernelHidden,
    ];

    /// The reason in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSymbol => "no symbol",
            Self::FileGone => "file gone",
            Self::NotReadable => "not readable",
            Self::Limit => "limit",
            Self::AnonymousCode => "anonymous code",
            Self::KernelHidden => "kernel addresses hidden",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::UnnamedReason;

    #[test]
    fn numbers_are_places_in_the_list() {
        for (at, reason) in UnnamedReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at, "{}", reason.name());
        }
    }
}
