//! The decoder of the ring of waits on bytes: known records, truncated ones, random ones.

use crate::address::{AbsAddr, Pid, Tid};
use crate::bpf::{Record, decode};
use crate::clock::MonotonicNs;
use agent_ebpf::wait::{CHANCE_ONE, LockWords, WAIT_CLASSES, WAIT_SITES};
use agent_ebpf::{FRAME_EXACT, Outcome, RecordKind, ThreadEnd, WaitClass, WaitEnd, WaitFacts};

/// Facts, the words of a lock, then one kernel frame and one of the user's.
fn wait_bytes(class: u32, chance: u32, kernel_frames: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [RecordKind::Wait as u32, 3, 100, 101] {
        bytes.extend(word.to_ne_bytes());
    }
    for word in [5_000_u64, 77] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(9_u32.to_ne_bytes());
    for half in [Outcome::Complete as u16, kernel_frames, 1, 0] {
        bytes.extend(half.to_ne_bytes());
    }
    bytes.extend(1234_u32.to_ne_bytes());
    bytes.extend(b"worker\0xxxxxxxxx");
    bytes.extend([class, chance].map(u32::to_ne_bytes).concat());
    let words = [
        202_u64,
        0x7000,
        0x80,
        2,
        0,
        0x7fff_1000,
        0x40_1000,
        2,
        4711,
        0,
        0,
        0xffff_ffff_8100_0000,
        0x40_1000 | FRAME_EXACT,
    ];
    bytes.extend(words.map(u64::to_ne_bytes).concat());
    bytes
}

#[test]
fn a_wait_is_decoded_whole_or_not_at_all() {
    let bytes = wait_bytes(WaitClass::Futex as u32, 77, 13);
    let Some((time, Record::Wait(wait))) = decode::wait(&bytes) else { panic!("a wait") };
    assert_eq!((time, wait.sample.time), (MonotonicNs(5_000), MonotonicNs(5_000)));
    assert_eq!((wait.sample.pid, wait.sample.tid), (Pid(100), Tid(101)));
    assert_eq!((wait.class, wait.chance), (WaitClass::Futex, 77));
    let facts = WaitFacts {
        class: WaitClass::Futex as u32,
        chance: 77,
        syscall: 202,
        arguments: [0x7000, 0x80, 2],
        form: 0,
        stack_pointer: 0x7fff_1000,
        ip: 0x40_1000,
    };
    assert_eq!(wait.facts, facts);
    assert_eq!(wait.words, LockWords([2, 0, 4711, 0, 0, 0, 0, 0]));
    assert_eq!(wait.sample.kernel, [AbsAddr(0xffff_ffff_8100_0000)]);
    assert_eq!(wait.sample.user.len(), 1);
    for length in 0..bytes.len() {
        assert_eq!(decode::wait(&bytes[..length]), None, "{length} bytes");
    }
    // A class that does not exist, no chance at all, more than certain, too few words for the facts.
    for (class, chance, kernel_frames) in
        [(8, 77, 13), (4, 0, 13), (4, CHANCE_ONE + 1, 13), (4, 77, 11)]
    {
        assert_eq!(
            decode::wait(&wait_bytes(class, chance, kernel_frames)),
            None,
            "{class} {chance}"
        );
    }
}

#[test]
fn ends_are_decoded() {
    let end = |since: u64, end: u64| {
        let mut bytes = [RecordKind::WaitEnd as u32, 7].map(u32::to_ne_bytes).concat();
        bytes.extend([since, end].map(u64::to_ne_bytes).concat());
        bytes
    };
    let expected = Record::WaitEnd { tid: Tid(7), since: MonotonicNs(5), end: MonotonicNs(9) };
    assert_eq!(decode::wait(&end(5, 9)), Some((MonotonicNs(9), expected)));
    assert_eq!(decode::wait(&end(9, 5)), None, "nobody waits backwards");
    assert_eq!(decode::wait(&end(5, 9)[..size_of::<WaitEnd>() - 1]), None);
    let mut bytes = [RecordKind::ThreadEnd as u32, 7].map(u32::to_ne_bytes).concat();
    bytes.extend(11_u64.to_ne_bytes());
    for number in 0..2 * WAIT_CLASSES as u64 {
        bytes.extend((100 + number).to_ne_bytes());
    }
    bytes.extend(b"worker\0xxxxxxxxx");
    bytes.extend([12_u64; WAIT_SITES].map(u64::to_ne_bytes).concat());
    bytes.extend([100_u32, 1, 0, 0].map(u32::to_ne_bytes).concat());
    bytes.extend(13_u64.to_ne_bytes());
    assert_eq!(bytes.len(), size_of::<ThreadEnd>());
    let Some((time, Record::ThreadEnd { tid, thread, .. })) = decode::wait(&bytes) else {
        panic!("the end of a thread")
    };
    assert_eq!((time, tid, thread.tgid), (MonotonicNs(11), Tid(7), 100));
    assert_eq!((thread.sums[1].ns, thread.sums[3].count, thread.since_ns), (102, 107, 13));
    assert_eq!(decode::wait(&bytes[..bytes.len() - 8]), None);
}

proptest::proptest! {
    #[test]
    fn random_bytes_are_refused_or_decoded(
        kind in 4_u32..9,
        mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 4..300),
    ) {
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        std::hint::black_box(decode::wait(&bytes));
    }
}
