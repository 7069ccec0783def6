use super::*;
use crate::address::{ElfAddr, FileId, Pid, Tid};
use crate::clock::{MonotonicNs, WallOffset};
use crate::normalize::{Frame, Marker, NormalizedSample, ProcessIdentity};
use agent_ebpf::Outcome;

/// Names every native address by its number, and counts how often it was asked.
#[derive(Default)]
struct Numbers {
    asked: Vec<ElfAddr>,
}

impl Namer for Numbers {
    fn native(&mut self, file: &Arc<MappedFile>, addresses: &[ElfAddr]) -> Vec<Vec<SourceLine>> {
        self.asked.extend_from_slice(addresses);
        let line = |address: &ElfAddr| SourceLine {
            function: format!("{}+{:#x}", file.path, address.0),
            system_name: String::new(),
            file: String::new(),
            line: 0,
        };
        addresses.iter().map(|address| vec![line(address)]).collect()
    }

    fn kernel(&mut self, _: AbsAddr) -> Option<KernelSymbol> {
        Some(KernelSymbol { name: "do_idle".into(), module: "vmlinux".into() })
    }
}

fn process(pid: u32) -> Arc<ProcessIdentity> {
    Arc::new(ProcessIdentity {
        pid: Pid(pid),
        start_time_ns: 7,
        executable_name: "a".into(),
        executable_path: "/a".into(),
        service_name: "a".into(),
        container_id: None,
        kernel_thread: false,
    })
}

fn file() -> Arc<MappedFile> {
    Arc::new(MappedFile { id: FileId(1), path: "/a".into(), facts: None, kernel_build_id: None })
}

fn sample(pid: u32, tid: u32, time: u64, addresses: &[u64]) -> NormalizedSample {
    let mut frames: Vec<Frame> = addresses
        .iter()
        .map(|&address| Frame::Native { file: file(), address: ElfAddr(address) })
        .collect();
    frames.push(Frame::Marker(Marker::Stopped(Outcome::NoUnwindInfo)));
    NormalizedSample {
        process: process(pid),
        tid: Tid(tid),
        thread_name: "worker".into(),
        cpu: 0,
        time: MonotonicNs(time),
        frames,
    }
}

fn seal(samples: &[NormalizedSample], namer: &mut Numbers) -> NamedWindow {
    let mut window = Window::new(MonotonicNs(100), 52_631_579);
    samples.iter().for_each(|sample| window.add(sample));
    window.into_named(MonotonicNs(200), WallOffset(1_000), Ledger::default(), namer)
}

#[test]
fn equal_samples_become_one_with_ascending_times() {
    let mut namer = Numbers::default();
    let sealed = seal(
        &[
            sample(1, 1, 150, &[1, 2]),
            sample(1, 1, 120, &[1, 2]),
            sample(1, 2, 130, &[1, 2]),
            sample(2, 1, 130, &[1, 2]),
            sample(1, 1, 140, &[2, 1]),
        ],
        &mut namer,
    );
    assert_eq!(sealed.observations(), 5);
    assert_eq!(sealed.stacks.len(), 2);
    assert_eq!(sealed.processes.len(), 2);
    let first = &sealed.processes[0].samples;
    assert_eq!(first.len(), 3);
    assert_eq!(first[0].times.iter().map(|time| time.0).collect::<Vec<_>>(), [1_120, 1_150]);
    assert_eq!((sealed.start.0, sealed.end.0, sealed.duration_ns), (1_100, 1_200, 100));
}

#[test]
fn each_location_is_named_once() {
    let mut namer = Numbers::default();
    let sealed = seal(&[sample(1, 1, 1, &[5, 6, 5]), sample(2, 2, 2, &[6, 5])], &mut namer);
    assert_eq!(namer.asked, [ElfAddr(5), ElfAddr(6)]);
    let leaf = sealed.location(sealed.stack(sealed.processes[0].samples[0].stack)[0]);
    assert_eq!(leaf.lines[0].function, "/a+0x5");
}

#[test]
fn what_does_not_fit_is_counted() {
    let mut window = Window::new(MonotonicNs(0), 1);
    let fits = u32::try_from(crate::limits::WINDOW_PROCESSES_MAX).unwrap();
    for pid in 0..fits + 3 {
        window.add(&sample(pid, 1, 1, &[1]));
    }
    let sealed = window.into_named(
        MonotonicNs(1),
        WallOffset(0),
        Ledger::default(),
        &mut Numbers::default(),
    );
    assert_eq!(sealed.ledger.dropped, 3);
    assert_eq!(sealed.observations(), u64::from(fits));
}
