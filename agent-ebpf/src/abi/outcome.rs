//! How a walk of the user stack ended. A stable, numbered catalogue: numbers are never reused, because
//! they travel with samples and are shown as frames.

/// The end of one walk.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The outermost frame was reached: a row says that the return address is undefined, or the
    /// frame-pointer chain ended with zero.
    Complete = 0,
    /// A kernel thread, or a task without user registers: there is no user stack.
    NoUserStack = 1,
    /// The process has no mapping table yet.
    ProcessUnknown = 2,
    /// The address lies in no known mapping.
    MappingUnknown = 3,
    /// The mapping is known, its unwind table is not loaded yet.
    TablePending = 4,
    /// The row needs something the walker cannot do.
    RuleUnsupported = 5,
    /// No row and no plausible frame pointer.
    NoUnwindInfo = 6,
    /// Reading the stack failed (page not present, or not mapped).
    StackUnreadable = 7,
    /// The stack pointer did not grow: a corrupt stack or a wrong row.
    StackNotGrowing = 8,
    /// More frames than the limit.
    DepthLimit = 9,
    /// Longer than the time limit.
    TimeLimit = 10,
    /// A return address below the first page or not canonical.
    ReturnAddressInvalid = 11,
    /// A table that the mapping points to was missing: a defect of the loader, counted as such.
    TableCorrupt = 12,
    /// There was no walk: the time of a wait is known, and stacks are taken of some waits only.
    NotSampled = 13,
}

impl Outcome {
    /// Every outcome, in the order of its number.
    pub const ALL: [Self; 14] = [
        Self::Complete,
        Self::NoUserStack,
        Self::ProcessUnknown,
        Self::MappingUnknown,
        Self::TablePending,
        Self::RuleUnsupported,
        Self::NoUnwindInfo,
        Self::StackUnreadable,
        Self::StackNotGrowing,
        Self::DepthLimit,
        Self::TimeLimit,
        Self::ReturnAddressInvalid,
        Self::TableCorrupt,
        Self::NotSampled,
    ];

    /// The outcome with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The name used in metrics labels and in frames (`[unwind: <name>]`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::NoUserStack => "no user stack",
            Self::ProcessUnknown => "process unknown",
            Self::MappingUnknown => "mapping unknown",
            Self::TablePending => "table pending",
            Self::RuleUnsupported => "rule unsupported",
            Self::NoUnwindInfo => "no unwind info",
            Self::StackUnreadable => "stack unreadable",
            Self::StackNotGrowing => "stack not growing",
            Self::DepthLimit => "depth limit",
            Self::TimeLimit => "time limit",
            Self::ReturnAddressInvalid => "return address invalid",
            Self::TableCorrupt => "table corrupt",
            Self::NotSampled => "not sampled",
        }
    }
}
