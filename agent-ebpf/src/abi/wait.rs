//! Time that threads spend off their CPU: what is known of each thread, and the records about it. Layouts and
//! the classes of waits; `programs/switches.rs` fills them.

/// What a thread waits for, as far as the kernel tells without its stack. Numbers are places in
/// [`WaitingThread`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WaitClass {
    /// None of the others: another system call, a signal, a debugger.
    Other = 0,
    /// A time, by its own wish.
    Sleep = 1,
    /// A file, a pipe or a socket.
    Io = 2,
    /// One of many files.
    Poll = 3,
    /// A futex: locks and all that is built like them.
    Futex = 4,
    /// Memory that is not there yet.
    PageFault = 5,
    /// Nothing: another thread has the CPU.
    Preempted = 6,
    /// A lock: a futex wait that a probe of the C library told of ([`crate::lock::LockForm`]).
    Lock = 7,
    /// A lock, by a goroutine whose thread does other work meanwhile: told by probes, never by a switch.
    Goroutine = 8,
}

/// Places of a thread's waits that are told apart; a power of two, because the programs mask the index.
pub const WAIT_SITES: usize = 8;
/// Places for classes: a power of two, because the programs mask the index.
pub const WAIT_CLASSES: usize = 8;

impl WaitClass {
    /// Every class that switches tell of, in the order of its number.
    pub const ALL: [Self; WAIT_CLASSES] = [
        Self::Other,
        Self::Sleep,
        Self::Io,
        Self::Poll,
        Self::Futex,
        Self::PageFault,
        Self::Preempted,
        Self::Lock,
    ];

    /// The class of a switch with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// Numbers of system calls that have a class of their own, x86-64 (kernel
/// `arch/x86/entry/syscalls/syscall_64.tbl`). A power of two, because the programs mask the index.
pub const SYSCALL_NUMBERS: usize = 512;

const SLEEP: [u16; 2] = [35, 230];
const POLL: [u16; 7] = [7, 23, 232, 270, 271, 281, 441];
const FUTEX: [u16; 3] = [202, 449, 455];
/// Read and write in all their forms, sockets, directories, what waits for a disk or for a lock of a file.
const IO: [u16; 70] = [
    0, 1, 2, 3, 4, 5, 6, 8, 17, 18, 19, 20, 26, 40, 42, 43, 44, 45, 46, 47, 69, 70, 72, 73, 74, 75,
    76, 77, 78, 82, 83, 84, 85, 86, 87, 88, 89, 162, 187, 206, 208, 209, 217, 242, 243, 257, 258,
    262, 263, 264, 267, 275, 276, 277, 278, 285, 288, 295, 296, 299, 306, 307, 316, 326, 327, 328,
    332, 333, 426, 437,
];

/// The class of a blocking system call, by its number.
pub const SYSCALL_CLASSES: [u8; SYSCALL_NUMBERS] = {
    let mut classes = [WaitClass::Other as u8; SYSCALL_NUMBERS];
    mark(&mut classes, &SLEEP, WaitClass::Sleep);
    mark(&mut classes, &IO, WaitClass::Io);
    mark(&mut classes, &POLL, WaitClass::Poll);
    mark(&mut classes, &FUTEX, WaitClass::Futex);
    classes
};

const fn mark(classes: &mut [u8; SYSCALL_NUMBERS], numbers: &[u16], class: WaitClass) {
    let mut at = 0;
    while at < numbers.len() {
        classes[numbers[at] as usize] = class as u8;
        at += 1;
    }
}

/// What a thread waited in all, in one class.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassTotals {
    /// Nanoseconds off the CPU in waits that ended.
    pub ns: u64,
    /// How many waits those were.
    pub count: u64,
}

/// What is known of a thread that was off its CPU once: the value of the map of threads. Written where the
/// thread leaves and gets a CPU, one after the other; read by the agent at any time. What a switch touches lies
/// together, because it is in no cache, as a rule.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingThread {
    /// By class.
    pub sums: [ClassTotals; WAIT_CLASSES],
    /// Name of the thread, NUL padded, as of its first wait.
    pub comm: [u8; 16],
    /// When the thread left its CPU for the last time in each of its places, `CLOCK_MONOTONIC`, nanoseconds.
    pub left_ns: [u64; WAIT_SITES],
    /// Process id in the initial PID namespace.
    pub tgid: u32,
    /// The [`WaitClass`] of the wait that lasts, or of the last one.
    pub class: u32,
    /// 1 if the stack of the wait that lasts was sent.
    pub sampled: u32,
    /// Zero.
    pub reserved: u32,
    /// When the wait that lasts began; 0 while the thread runs. The last field: the kernel copies a value from
    /// its start to its end, and a program clears this before it adds to the sums, so that no copy holds a
    /// wait twice.
    pub since_ns: u64,
}

/// What the program knows of a wait whose stack it sends: stands in front of the frames.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitFacts {
    /// A [`WaitClass`].
    pub class: u32,
    /// The chance with which this stack was to be sent, in parts of [`CHANCE_ONE`].
    pub chance: u32,
    /// Number of the system call; `u64::MAX` if the thread was not in one.
    pub syscall: u64,
    /// Its first three arguments.
    pub arguments: [u64; 3],
    /// For [`WaitClass::Lock`] the [`crate::lock::LockForm`], else 0.
    pub form: u64,
    /// The user stack pointer.
    pub stack_pointer: u64,
    /// The user instruction pointer.
    pub ip: u64,
}

/// What lay at the word of a futex wait and behind it when the thread left its CPU: locks keep their holder there.
/// Stands behind [`WaitFacts`]; zero in other waits, and where it cannot be read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockWords(pub [u32; LOCK_WORDS]);

/// Words of 4 bytes: up to the writer of a rwlock of glibc's.
pub const LOCK_WORDS: usize = 8;

/// The chance of what is certain.
pub const CHANCE_ONE: u32 = 1 << 16;
/// [`WaitFacts`] in the record, in words of 8 bytes.
pub const WAIT_FACTS_WORDS: usize = size_of::<WaitFacts>() / 8;
/// What stands in front of the frames of a wait, in words of 8 bytes.
pub const WAIT_FRONT_WORDS: usize = WAIT_FACTS_WORDS + size_of::<LockWords>() / 8;

/// A wait whose stack was sent is over.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitEnd {
    /// [`crate::RecordKind::WaitEnd`].
    pub kind: u32,
    /// Thread id in the initial PID namespace.
    pub tid: u32,
    /// When it began: with the thread it names the wait.
    pub since_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// A thread that had waited is over; its last word.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadEnd {
    /// [`crate::RecordKind::ThreadEnd`].
    pub kind: u32,
    /// Thread id in the initial PID namespace.
    pub tid: u32,
    /// When, `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
    /// Its sums.
    pub thread: WaitingThread,
}

/// What the programs of waits count on each CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCounters {
    /// Switches between threads.
    pub switches: u64,
    /// Waits that ended and are in the sums of their thread.
    pub waits: u64,
    /// Waits not kept because they would have ended before they began.
    pub negative: u64,
    /// Waits not kept because they were longer than `limits::WAIT_NS_MAX`.
    pub absurd: u64,
    /// Waits whose end no switch told: each ends half-way between the last moment that its CPU was seen with another
    /// thread and the next switch.
    pub ends_unseen: u64,
    /// Waits not kept because the map of threads was full.
    pub threads_refused: u64,
    /// Stacks sent.
    pub stacks: u64,
    /// Stacks not sent, by chance: the waits are in the sums.
    pub stacks_held: u64,
    /// Stacks lost because the ring buffer was full.
    pub stacks_lost: u64,
    /// Ends of waits lost because the ring buffer was full.
    pub ends_lost: u64,
    /// Last words of threads lost because the ring buffer was full.
    pub threads_lost: u64,
    /// Nanoseconds of the runs that sent a stack.
    pub stacks_ns: u64,
    /// Other runs whose time was taken, one of `limits::SWITCHES_PER_CLOCK_READ`.
    pub timed: u64,
    /// Nanoseconds of those.
    pub timed_ns: u64,
    /// When the CPU switched last: nothing to count, but every switch looks here.
    pub switched_ns: u64,
}

const _: () = assert!(size_of::<WaitingThread>() == 16 * WAIT_CLASSES + 8 * WAIT_SITES + 40);
const _: () = assert!(size_of::<WaitFacts>() == 64);
const _: () = assert!(size_of::<WaitEnd>() == 24);
const _: () = assert!(size_of::<ThreadEnd>() == 16 + size_of::<WaitingThread>());
const _: () = assert!(WaitClass::ALL.len() <= WAIT_CLASSES);
