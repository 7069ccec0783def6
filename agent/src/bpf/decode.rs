//! Decodes records of the BPF ring buffer. Pure; every length is checked, though the writer is our own
//! program: a reader that trusts its writer hides the writer's defects.

use super::{CopiedStack, RawLockWait, RawSample, RawWait, Record, UserFrame};
use crate::address::{AbsAddr, Generation, Pid, Tid};
use crate::clock::MonotonicNs;
use agent_ebpf::limits::STACK_BYTES_MAX;
use agent_ebpf::limits::THIN_SHIFT_MAX;
use agent_ebpf::lock::{LOCK_FACTS_WORDS, LockFacts};
use agent_ebpf::wait::{CHANCE_ONE, LockWords, WAIT_CLASSES, WAIT_FRONT_WORDS};
use agent_ebpf::{
    ClassTotals, FRAME_EXACT, Inherited, Outcome, ProcessEntry, REGISTERS, RecordKind,
    SampleHeader, StackTail, ThreadEnd, UnknownMapping, WaitClass, WaitEnd, WaitFacts,
    WaitingThread,
};
use std::mem::offset_of;

/// Reads a little-endian number of `N` bytes at `offset`, if it lies inside.
pub(super) fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

pub(super) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes_at(bytes, offset).map(u16::from_ne_bytes)
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes_at(bytes, offset).map(u32::from_ne_bytes)
}

pub(super) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes_at(bytes, offset).map(u64::from_ne_bytes)
}

/// Bytes up to the first NUL.
pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// True if the record says that it is a note, not a sample.
pub(super) fn is_note(bytes: &[u8]) -> bool {
    let kind = u32_at(bytes, 0);
    kind == Some(RecordKind::UnknownMapping as u32) || kind == Some(RecordKind::Inherited as u32)
}

/// The record in `bytes`; `None` if it is none of ours.
pub(super) fn record(bytes: &[u8]) -> Option<Record> {
    let kind = u32_at(bytes, 0)?;
    if kind == RecordKind::Sample as u32 || kind == RecordKind::SampleWithStack as u32 {
        sample(bytes, kind == RecordKind::SampleWithStack as u32).map(Record::Sample)
    } else if kind == RecordKind::UnknownMapping as u32 {
        unknown_mapping(bytes)
    } else if kind == RecordKind::Inherited as u32 {
        inherited(bytes)
    } else {
        None
    }
}

fn sample(bytes: &[u8], with_stack: bool) -> Option<RawSample> {
    let kernel_frames = usize::from(u16_at(bytes, offset_of!(SampleHeader, kernel_frames))?);
    let user_frames = usize::from(u16_at(bytes, offset_of!(SampleHeader, user_frames))?);
    let root_frames = u16_at(bytes, offset_of!(SampleHeader, root_frames))?;
    let frames = bytes.get(size_of::<SampleHeader>()..)?;
    let (frames, rest) = frames.split_at_checked((kernel_frames + user_frames) * 8)?;
    if usize::from(root_frames) > user_frames || with_stack == rest.is_empty() {
        return None;
    }
    let stack = if with_stack { Some(copied_stack(rest, user_frames == 1)?) } else { None };
    let (words, _) = frames.as_chunks::<8>();
    let (kernel, user) = words.split_at(kernel_frames);
    let comm = bytes_at::<16>(bytes, offset_of!(SampleHeader, comm))?;
    Some(RawSample {
        cpu: u32_at(bytes, offset_of!(SampleHeader, cpu))?,
        pid: Pid(u32_at(bytes, offset_of!(SampleHeader, tgid))?),
        tid: Tid(u32_at(bytes, offset_of!(SampleHeader, tid))?),
        time: MonotonicNs(u64_at(bytes, offset_of!(SampleHeader, time_ns))?),
        cgroup_id: u64_at(bytes, offset_of!(SampleHeader, cgroup_id))?,
        generation: Generation(u32_at(bytes, offset_of!(SampleHeader, generation))?),
        outcome: Outcome::from_number(u16_at(bytes, offset_of!(SampleHeader, outcome))?)?,
        run_ns: u32_at(bytes, offset_of!(SampleHeader, run_ns))?,
        comm: until_nul(&comm).to_vec(),
        kernel: kernel.iter().map(|word| AbsAddr(u64::from_ne_bytes(*word))).collect(),
        user: user.iter().map(|word| user_frame(u64::from_ne_bytes(*word))).collect(),
        root_frames,
        stack,
    })
}

/// The record of a goroutine's wait in `bytes`; `None` if it is none, or ends before it begins.
pub(super) fn lock_wait(bytes: &[u8]) -> Option<RawLockWait> {
    if u32_at(bytes, 0)? != RecordKind::LockWait as u32 {
        return None;
    }
    let mut sample = sample(bytes, false)?;
    let facts = bytes.get(size_of::<SampleHeader>()..)?;
    if sample.kernel.len() != LOCK_FACTS_WORDS {
        return None;
    }
    sample.kernel.clear();
    let word = AbsAddr(u64_at(facts, offset_of!(LockFacts, word))?);
    let since = MonotonicNs(u64_at(facts, offset_of!(LockFacts, since_ns))?);
    let weight = u32_at(facts, offset_of!(LockFacts, weight))?;
    let is_sound = since <= sample.time && (1..=1 << THIN_SHIFT_MAX).contains(&weight);
    is_sound.then_some(RawLockWait { sample, word, since, weight })
}

/// The record of the ring of waits in `bytes`, and its time; `None` if it is none of ours.
pub(super) fn wait(bytes: &[u8]) -> Option<(MonotonicNs, Record)> {
    let kind = u32_at(bytes, 0)?;
    if kind == RecordKind::Wait as u32 || kind == RecordKind::WaitWithStack as u32 {
        let wait = raw_wait(bytes, kind == RecordKind::WaitWithStack as u32)?;
        Some((wait.sample.time, Record::Wait(wait)))
    } else if kind == RecordKind::WaitEnd as u32 && bytes.len() == size_of::<WaitEnd>() {
        let time = MonotonicNs(u64_at(bytes, offset_of!(WaitEnd, end_ns))?);
        let tid = Tid(u32_at(bytes, offset_of!(WaitEnd, tid))?);
        let since = MonotonicNs(u64_at(bytes, offset_of!(WaitEnd, since_ns))?);
        (since <= time).then_some((time, Record::WaitEnd { tid, since, end: time }))
    } else if kind == RecordKind::ThreadEnd as u32 && bytes.len() == size_of::<ThreadEnd>() {
        let time = MonotonicNs(u64_at(bytes, offset_of!(ThreadEnd, time_ns))?);
        let tid = Tid(u32_at(bytes, offset_of!(ThreadEnd, tid))?);
        let thread = waiting_thread(bytes.get(offset_of!(ThreadEnd, thread)..)?)?;
        Some((time, Record::ThreadEnd { tid, time, thread: Box::new(thread) }))
    } else {
        None
    }
}

/// A sample whose first words are the facts of the wait.
fn raw_wait(bytes: &[u8], with_stack: bool) -> Option<RawWait> {
    let mut sample = sample(bytes, with_stack)?;
    let facts = bytes.get(size_of::<SampleHeader>()..)?;
    let argument = |at: usize| u64_at(facts, offset_of!(WaitFacts, arguments) + at * 8);
    let mut words = LockWords::default();
    for (place, word) in words.0.iter_mut().enumerate() {
        *word = u32_at(facts, size_of::<WaitFacts>() + place * 4)?;
    }
    let facts = WaitFacts {
        class: u32_at(facts, offset_of!(WaitFacts, class))?,
        chance: u32_at(facts, offset_of!(WaitFacts, chance))?,
        syscall: u64_at(facts, offset_of!(WaitFacts, syscall))?,
        arguments: [argument(0)?, argument(1)?, argument(2)?],
        form: u64_at(facts, offset_of!(WaitFacts, form))?,
        stack_pointer: u64_at(facts, offset_of!(WaitFacts, stack_pointer))?,
        ip: u64_at(facts, offset_of!(WaitFacts, ip))?,
    };
    if sample.kernel.len() < WAIT_FRONT_WORDS || !(1..=CHANCE_ONE).contains(&facts.chance) {
        return None;
    }
    sample.kernel.drain(..WAIT_FRONT_WORDS);
    let class = WaitClass::from_number(facts.class)?;
    Some(RawWait { sample, class, chance: facts.chance, facts, words })
}

fn waiting_thread(bytes: &[u8]) -> Option<WaitingThread> {
    let mut thread = WaitingThread {
        tgid: u32_at(bytes, offset_of!(WaitingThread, tgid))?,
        class: u32_at(bytes, offset_of!(WaitingThread, class))?,
        sampled: u32_at(bytes, offset_of!(WaitingThread, sampled))?,
        comm: bytes_at(bytes, offset_of!(WaitingThread, comm))?,
        since_ns: u64_at(bytes, offset_of!(WaitingThread, since_ns))?,
        ..WaitingThread::default()
    };
    for class in 0..WAIT_CLASSES {
        let at = offset_of!(WaitingThread, sums) + class * size_of::<ClassTotals>();
        thread.sums[class] = ClassTotals {
            ns: u64_at(bytes, at + offset_of!(ClassTotals, ns))?,
            count: u64_at(bytes, at + offset_of!(ClassTotals, count))?,
        };
    }
    Some(thread)
}

fn copied_stack(tail: &[u8], innermost: bool) -> Option<CopiedStack> {
    let bytes = tail.get(size_of::<StackTail>()..)?;
    let length = usize::try_from(u32_at(tail, offset_of!(StackTail, bytes))?).ok()?;
    if length != bytes.len() || length > STACK_BYTES_MAX {
        return None;
    }
    let general = tail.get(offset_of!(StackTail, general)..)?.as_chunks::<8>().0;
    Some(CopiedStack {
        ip: AbsAddr(u64_at(tail, offset_of!(StackTail, ip))?),
        sp: AbsAddr(u64_at(tail, offset_of!(StackTail, sp))?),
        bp: u64_at(tail, offset_of!(StackTail, bp))?,
        exact: u32_at(tail, offset_of!(StackTail, exact))? == 1,
        innermost,
        general: Box::new(general.first_chunk::<REGISTERS>()?.map(u64::from_ne_bytes)),
        bytes: bytes.to_vec(),
    })
}

fn user_frame(word: u64) -> UserFrame {
    UserFrame { address: AbsAddr(word & !FRAME_EXACT), exact: word & FRAME_EXACT != 0 }
}

fn unknown_mapping(bytes: &[u8]) -> Option<Record> {
    if bytes.len() != size_of::<UnknownMapping>() {
        return None;
    }
    let address = u64_at(bytes, offset_of!(UnknownMapping, address))?;
    Some(Record::UnknownMapping {
        pid: Pid(u32_at(bytes, offset_of!(UnknownMapping, tgid))?),
        address: (address != 0).then_some(AbsAddr(address)),
        time: MonotonicNs(u64_at(bytes, offset_of!(UnknownMapping, time_ns))?),
    })
}

fn inherited(bytes: &[u8]) -> Option<Record> {
    const ENTRY: usize = offset_of!(Inherited, entry);
    if bytes.len() != size_of::<Inherited>() {
        return None;
    }
    let entry = ProcessEntry {
        generation: u32_at(bytes, ENTRY + offset_of!(ProcessEntry, generation))?,
        first_page: u16_at(bytes, ENTRY + offset_of!(ProcessEntry, first_page))?,
        pages: u16_at(bytes, ENTRY + offset_of!(ProcessEntry, pages))?,
    };
    Some(Record::Inherited {
        pid: Pid(u32_at(bytes, offset_of!(Inherited, tgid))?),
        entry,
        time: MonotonicNs(u64_at(bytes, offset_of!(Inherited, time_ns))?),
    })
}
