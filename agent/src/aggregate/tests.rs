use super::fixtures::{FixtureNames, WALL, file, native, sample};
use super::*;
use crate::clock::MonotonicNs;
use crate::elf::Runtime;
use crate::normalize::{Frame, Marker, NormalizedSample};

fn row(pid: u32, tid: u32, time: u64, addresses: &[u64]) -> NormalizedSample {
    let file = file(1);
    sample(pid, tid, time, addresses.iter().map(|&address| native(&file, address)).collect())
}

fn named(samples: &[NormalizedSample], namer: &mut FixtureNames) -> NamedWindow {
    let mut window = Window::new(MonotonicNs(100), 52_631_579);
    samples.iter().for_each(|sample| window.add(sample));
    window.into_named(MonotonicNs(200), WALL, Ledger::default(), namer)
}

#[test]
fn equal_samples_become_one_with_ascending_times() {
    let window = named(
        &[
            row(1, 1, 150, &[1, 2]),
            row(1, 1, 120, &[1, 2]),
            row(1, 2, 130, &[1, 2]),
            row(2, 1, 130, &[1, 2]),
            row(1, 1, 140, &[2, 1]),
        ],
        &mut FixtureNames::default(),
    );
    assert_eq!(window.observations(), 5);
    assert_eq!(window.stacks.len(), 2);
    assert_eq!(window.processes.len(), 2);
    let first = &window.processes[0].samples;
    assert_eq!(first.len(), 3);
    assert_eq!(first[0].times, [WALL.to_unix(MonotonicNs(120)), WALL.to_unix(MonotonicNs(150))]);
    assert_eq!(window.start, WALL.to_unix(MonotonicNs(100)));
    assert_eq!(window.end, WALL.to_unix(MonotonicNs(200)));
    assert_eq!(window.duration_ns, 100);
}

#[test]
fn each_location_is_named_once() {
    let mut namer = FixtureNames::default();
    let window = named(&[row(1, 1, 1, &[5, 6, 5]), row(2, 2, 2, &[6, 5])], &mut namer);
    assert_eq!(namer.asked, [ElfAddr(5), ElfAddr(6)]);
    let leaf = window.location(window.stack(window.processes[0].samples[0].stack)[0]);
    assert_eq!(leaf.lines[0].function, "lib1.so_5");
}

#[test]
fn what_does_not_fit_is_counted() {
    let mut window = Window::new(MonotonicNs(0), 1);
    let fits = u32::try_from(crate::limits::WINDOW_PROCESSES_MAX).unwrap();
    for pid in 0..fits + 3 {
        window.add(&row(pid, 1, 1, &[1]));
    }
    let window =
        window.into_named(MonotonicNs(1), WALL, Ledger::default(), &mut FixtureNames::default());
    assert_eq!(window.ledger.dropped(), 3);
    assert_eq!(window.observations(), u64::from(fits));
}

fn compiled(runtime: Runtime, address: u64) -> Frame {
    Frame::Anonymous { runtime, address: AbsAddr(address) }
}

/// Functions, markers and reasons of one stack, leaf first.
fn shown(window: &NamedWindow, stack: StackIndex) -> String {
    let one = |index: &LocationIndex| {
        let location = window.location(*index);
        match (location.lines.first(), location.code, location.unnamed) {
            (Some(line), ..) => line.function.clone(),
            (None, Code::Marker(marker), None) => marker_text(marker).into_owned(),
            (None, _, Some(reason)) => format!("<{}>", reason.name()),
            (None, ..) => "?".into(),
        }
    };
    window.stack(stack).iter().map(one).collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn check_settled(stacks: &[&[Frame]], expected: &[(&str, usize)]) {
    let samples: Vec<_> =
        stacks.iter().map(|frames| super::fixtures::sample(1, 1, 1, frames.to_vec())).collect();
    let window = named(&samples, &mut FixtureNames::default());
    let samples = &window.processes[0].samples;
    let found: Vec<_> =
        samples.iter().map(|one| (shown(&window, one.stack), one.times.len())).collect();
    let expected: Vec<_> = expected.iter().map(|&(text, count)| (text.to_owned(), count)).collect();
    assert_eq!(found, expected);
}

#[test]
fn what_a_reader_cannot_tell_apart_is_one_stack() {
    let file = file(1);
    let (own, kernel) = (native(&file, 5), |at| Frame::Kernel {
        address: AbsAddr(at),
        region: KernelRegion::default(),
    });
    check_settled(
        &[
            &[kernel(0xffff_ffff_8100_0010), own.clone()],
            &[kernel(0xffff_ffff_8100_0020), own.clone()],
            &[compiled(Runtime::Native, 0x101), own.clone()],
            &[compiled(Runtime::Native, 0x103), own.clone()],
            &[compiled(Runtime::Native, 0x103), compiled(Runtime::Native, 0x105), own],
        ],
        &[("do_syscall_64 lib1.so_5", 2), ("jit_10 lib1.so_5", 2), ("jit_10 jit_10 lib1.so_5", 1)],
    );
}

#[test]
fn a_marker_stands_for_code_that_its_program_does_not_name() {
    let file = file(1);
    let own = native(&file, 5);
    let marker = Frame::Marker(Marker::Interpreter(Runtime::Node));
    let node = |at| compiled(Runtime::Node, at);
    check_settled(
        &[
            &[node(0x100), node(0x200), marker.clone(), own.clone()],
            &[node(0x300), marker.clone(), own.clone()],
            &[node(0x101), node(0x200), marker, own.clone()],
            &[compiled(Runtime::Native, 0x100), own],
        ],
        &[
            ("[node frames: names to come] lib1.so_5", 2),
            ("jit_10 <anonymous code> lib1.so_5", 1),
            ("<anonymous code> lib1.so_5", 1),
        ],
    );
}
