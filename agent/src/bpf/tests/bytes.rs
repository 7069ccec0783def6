//! The decoders on bytes: known records, truncated ones, random ones.

use crate::address::{AbsAddr, Generation, Pid, Tid};
use crate::bpf::lifecycle::{self, Malformed};
use crate::bpf::order::Order;
use crate::bpf::{
    CopiedStack, KernelSymbolEvent, ProcessEvent, RawSample, Record, UserFrame, decode,
};
use crate::clock::MonotonicNs;
use crate::limits::ORDER_SLACK_NS;
use agent_ebpf::{FRAME_EXACT, Outcome, ProcessEntry, RecordKind};

/// A sample with one kernel frame, an exact user frame and a return address.
fn sample_bytes() -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [RecordKind::Sample as u32, 3, 100, 101] {
        bytes.extend(word.to_ne_bytes());
    }
    for word in [5_000_u64, 77] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(9_u32.to_ne_bytes());
    for half in [Outcome::TimeLimit as u16, 1, 2, 1] {
        bytes.extend(half.to_ne_bytes());
    }
    bytes.extend(1234_u32.to_ne_bytes());
    bytes.extend(b"worker\0xxxxxxxxx");
    for frame in [0xffff_ffff_8100_0000, 0x40_1000 | FRAME_EXACT, 0x40_2000] {
        bytes.extend(u64::to_ne_bytes(frame));
    }
    bytes
}

#[test]
fn a_sample_is_decoded_whole_or_not_at_all() {
    let bytes = sample_bytes();
    let expected = Record::Sample(RawSample {
        cpu: 3,
        pid: Pid(100),
        tid: Tid(101),
        time: MonotonicNs(5_000),
        cgroup_id: 77,
        generation: Generation(9),
        outcome: Outcome::TimeLimit,
        run_ns: 1234,
        comm: b"worker".to_vec(),
        kernel: vec![AbsAddr(0xffff_ffff_8100_0000)],
        user: vec![
            UserFrame { address: AbsAddr(0x40_1000), exact: true },
            UserFrame { address: AbsAddr(0x40_2000), exact: false },
        ],
        root_frames: 1,
        stack: None,
    });
    assert_eq!(decode::record(&bytes), Some(expected));
    for length in 0..bytes.len() {
        assert_eq!(decode::record(&bytes[..length]), None, "{length} bytes");
    }
    let longer = [bytes.as_slice(), &[0; 8]].concat();
    assert_eq!(decode::record(&longer), None, "one frame more than stated");
}

#[test]
fn a_copied_stack_follows_the_frames() {
    let with_stack = |stated: u32, stack: &[u8]| {
        let mut bytes = sample_bytes();
        bytes[..4].copy_from_slice(&(RecordKind::SampleWithStack as u32).to_ne_bytes());
        for word in [0x40_2000_u64, 0x7000_1000, 16] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend([stated, 0].map(u32::to_ne_bytes).concat());
        bytes.extend((0..16_u64).flat_map(u64::to_ne_bytes));
        bytes.extend(stack);
        bytes
    };
    let bytes = with_stack(5, b"12345");
    let Some(Record::Sample(sample)) = decode::record(&bytes) else { panic!("a sample") };
    let expected = CopiedStack {
        ip: AbsAddr(0x40_2000),
        sp: AbsAddr(0x7000_1000),
        bp: 16,
        exact: false,
        innermost: false,
        general: Box::new(std::array::from_fn(|number| number as u64)),
        bytes: b"12345".to_vec(),
    };
    assert_eq!((sample.stack, sample.user.len()), (Some(expected), 2));
    for length in 0..bytes.len() {
        assert_eq!(decode::record(&bytes[..length]), None, "{length} bytes");
    }
    assert_eq!(decode::record(&with_stack(4, b"12345")), None, "more than stated");
    let limit = agent_ebpf::limits::STACK_BYTES_MAX;
    let stated = |length: usize| u32::try_from(length).unwrap();
    assert!(decode::record(&with_stack(stated(limit), &vec![0; limit])).is_some());
    let long = with_stack(stated(limit + 1), &vec![0; limit + 1]);
    assert_eq!(decode::record(&long), None, "more than the limit");
}

#[test]
fn root_frames_are_user_frames() {
    let mut bytes = sample_bytes();
    let place = std::mem::offset_of!(agent_ebpf::SampleHeader, root_frames);
    bytes[place] = 3;
    assert_eq!(decode::record(&bytes), None, "3 of 2");
}

#[test]
fn a_note_has_an_address_or_means_the_process() {
    let note = |address: u64| {
        let mut bytes = Vec::new();
        bytes.extend((RecordKind::UnknownMapping as u32).to_ne_bytes());
        bytes.extend(42_u32.to_ne_bytes());
        bytes.extend(address.to_ne_bytes());
        bytes.extend(7_u64.to_ne_bytes());
        decode::record(&bytes)
    };
    let expected =
        |address| Some(Record::UnknownMapping { pid: Pid(42), address, time: MonotonicNs(7) });
    assert_eq!(note(0), expected(None));
    assert_eq!(note(0x1000), expected(Some(AbsAddr(0x1000))));
}

#[test]
fn a_child_inherits_an_entry() {
    let entry = ProcessEntry { generation: 9, first_page: 300, pages: 2 };
    let mut bytes = Vec::new();
    bytes.extend((RecordKind::Inherited as u32).to_ne_bytes());
    bytes.extend(42_u32.to_ne_bytes());
    bytes.extend(7_u64.to_ne_bytes());
    bytes.extend(9_u32.to_ne_bytes());
    bytes.extend([300_u16, 2].map(u16::to_ne_bytes).concat());
    let expected = Record::Inherited { pid: Pid(42), entry, time: MonotonicNs(7) };
    assert_eq!(decode::record(&bytes), Some(expected));
    assert!(decode::is_note(&bytes));
    assert_eq!(decode::record(&bytes[..20]), None);
}

/// A perf record: header, body, and the trailer with pid, tid and time.
fn perf_record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(misc.to_ne_bytes());
    bytes.extend(u16::try_from(8 + body.len() + 16).unwrap().to_ne_bytes());
    bytes.extend(body);
    bytes.extend([10_u32, 11].map(u32::to_ne_bytes).concat());
    bytes.extend(900_u64.to_ne_bytes());
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn mmap_body(identity: [u8; 24], path: &[u8]) -> Vec<u8> {
    let mut body = words(&[10, 11]);
    body.extend([0x7000_u64, 0x2000, 0x1000].map(u64::to_ne_bytes).concat());
    body.extend(identity);
    body.extend(words(&[5, 2]));
    body.extend(path);
    body
}

#[test]
fn kernel_code_that_comes_and_goes_is_decoded() {
    let time = MonotonicNs(900);
    let kernel_symbol = |length: u32, kind: u16, flags: u16| {
        let mut body = 0xffff_ffff_a000_1000_u64.to_ne_bytes().to_vec();
        body.extend(length.to_ne_bytes());
        body.extend([kind, flags].map(u16::to_ne_bytes).concat());
        body.extend(b"bpf_prog_0123456789abcdef_run\0\0\0");
        perf_record(17, 0, &body)
    };
    let symbol = |bpf, gone| ProcessEvent::KernelSymbol {
        time,
        event: KernelSymbolEvent {
            address: AbsAddr(0xffff_ffff_a000_1000),
            length: 0x40,
            gone,
            bpf,
            name: b"bpf_prog_0123456789abcdef_run".to_vec(),
        },
    };
    for (kind, flags, expected) in [(1, 0, symbol(true, false)), (2, 1, symbol(false, true))] {
        let bytes = kernel_symbol(0x40, kind, flags);
        assert_eq!(lifecycle::event(&bytes), Ok(Some((time, expected))));
        assert_eq!(lifecycle::event(&bytes[..39]), Err(Malformed));
    }
}

#[test]
fn perf_records_are_decoded() {
    let time = MonotonicNs(900);
    let mmap = |build_id: Option<Vec<u8>>| ProcessEvent::Mmap {
        pid: Pid(10),
        time,
        start: AbsAddr(0x7000),
        length: 0x2000,
        file_offset: 0x1000,
        build_id,
        inode: None,
        path: b"/bin/x".to_vec(),
    };
    let mut identity = [0; 24];
    identity[0] = 3;
    identity[4..7].copy_from_slice(b"\x01\x02\x03");
    let fork = words(&[12, 10, 13, 11, 900, 0]);
    let rows: [(&str, Vec<u8>, ProcessEvent); 7] = [
        ("mmap", perf_record(10, 0, &mmap_body(identity, b"/bin/x\0\0")), mmap(None)),
        (
            "mmap with build id",
            perf_record(10, 1 << 14, &mmap_body(identity, b"/bin/x\0\0")),
            mmap(Some(vec![1, 2, 3])),
        ),
        (
            "comm",
            perf_record(3, 0, &[words(&[10, 11]), b"sh\0\0\0\0\0\0".to_vec()].concat()),
            ProcessEvent::Comm {
                pid: Pid(10),
                tid: Tid(11),
                time,
                exec: false,
                comm: b"sh".to_vec(),
            },
        ),
        (
            "exec",
            perf_record(3, 1 << 13, &[words(&[10, 10]), b"sh\0\0\0\0\0\0".to_vec()].concat()),
            ProcessEvent::Comm {
                pid: Pid(10),
                tid: Tid(10),
                time,
                exec: true,
                comm: b"sh".to_vec(),
            },
        ),
        (
            "fork",
            perf_record(7, 0, &fork),
            ProcessEvent::Fork { pid: Pid(12), tid: Tid(13), parent: Pid(10), time },
        ),
        ("exit", perf_record(4, 0, &fork), ProcessEvent::Exit { pid: Pid(12), tid: Tid(13), time }),
        ("lost", perf_record(2, 0, &words(&[1, 0, 6, 0])), ProcessEvent::Lost { count: 6 }),
    ];
    for (what, bytes, expected) in rows {
        assert_eq!(lifecycle::event(&bytes), Ok(Some((time, expected))), "{what}");
        // A comm or a path may be any length; what comes before it may not be missing.
        assert_eq!(lifecycle::event(&bytes[..24]), Err(Malformed), "{what}, cut");
    }
    identity[0] = 21;
    let long = perf_record(10, 1 << 14, &mmap_body(identity, b"/bin/x\0\0"));
    assert_eq!(lifecycle::event(&long), Err(Malformed), "a build id longer than its field");
    assert_eq!(lifecycle::event(&perf_record(5, 0, &[0; 24])), Ok(None), "throttled: no life");
}

#[test]
fn events_go_before_samples_of_the_same_or_a_later_time() {
    let sample = |time| {
        let Some(Record::Sample(sample)) = decode::record(&sample_bytes()) else { unreachable!() };
        Record::Sample(RawSample { time: MonotonicNs(time), ..sample })
    };
    let exit = |time| {
        Record::Process(ProcessEvent::Exit { pid: Pid(1), tid: Tid(1), time: MonotonicNs(time) })
    };
    let mut order = Order::default();
    for time in [30, 10, 20] {
        order.push(MonotonicNs(time), sample(time));
        order.push(MonotonicNs(time), exit(time));
    }
    let mut delivered = Vec::new();
    let mut deliver = |record| delivered.push(record);
    assert_eq!(order.deliver(MonotonicNs(ORDER_SLACK_NS + 20), &mut deliver), 4);
    assert_eq!(order.len(), 2, "what is younger than the slack waits");
    assert_eq!(order.flush(&mut deliver), 2);
    let expected = [10, 20, 30].map(|time| [exit(time), sample(time)]).concat();
    assert_eq!(delivered, expected);
}

proptest::proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..600), kind in 0_u32..12) {
        decode::record(&bytes);
        drop(lifecycle::event(&bytes));
        let mut bytes = bytes;
        for (to, from) in bytes.iter_mut().zip(kind.to_ne_bytes()) {
            *to = from;
        }
        decode::record(&bytes);
        drop(lifecycle::event(&bytes));
    }

    #[test]
    fn damaged_samples_never_panic(place in 0_usize..88, value in proptest::num::u8::ANY) {
        let mut bytes = sample_bytes();
        bytes[place] = value;
        decode::record(&bytes);
    }
}
