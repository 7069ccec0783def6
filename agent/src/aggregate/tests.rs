use super::fixtures::{FixtureNames, WALL, file, native, sample};
use super::*;
use crate::clock::MonotonicNs;
use crate::normalize::NormalizedSample;

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
    assert_eq!(window.ledger.dropped, 3);
    assert_eq!(window.observations(), u64::from(fits));
}
