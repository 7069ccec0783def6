//! Windows with known contents, for the tests of everything behind the aggregation.

use super::{Ledger, NamedWindow, Namer, Window};
use crate::address::{AbsAddr, ElfAddr, FileId, FileOffset, Pid, Tid};
use crate::clock::{MonotonicNs, WallOffset};
use crate::elf::{ExecutableSegment, FileFacts, Names, Runtime, SourceLine};
use crate::normalize::{
    Frame, KernelRegion, MappedFile, Marker, NormalizedSample, ProcessIdentity, ProcessKey,
};
use crate::symbolize::{KernelSymbol, UnnamedReason};
use agent_ebpf::Outcome;
use std::sync::Arc;

/// 2026-11-29T00:00:00Z as the wall time of monotonic time 0.
pub(crate) const WALL: WallOffset = WallOffset(1_795_910_400_000_000_000);
/// 19 Hz.
pub(crate) const PERIOD_NS: u64 = 52_631_579;

/// Names each address after its file and number; kernel code is `do_syscall_64` or a module's.
#[derive(Debug, Default)]
pub(crate) struct FixtureNames {
    /// Every native address that was asked for.
    pub(crate) asked: Vec<ElfAddr>,
}

impl Namer for FixtureNames {
    fn native(&mut self, file: &Arc<MappedFile>, addresses: &[ElfAddr]) -> Vec<Names> {
        self.asked.extend_from_slice(addresses);
        let stem = crate::path::file_name(&file.path);
        let line = |name: String, line| SourceLine {
            system_name: format!("_Z{}{name}v", name.len()),
            function: name,
            file: format!("/src/{stem}.c"),
            line,
        };
        let names = |&ElfAddr(address): &ElfAddr| match address % 16 {
            0 => Err(UnnamedReason::NoSymbol), // a stripped function
            1 => Ok(vec![
                line(format!("{stem}_inlined_{address:x}"), 7),
                line(format!("{stem}_{address:x}"), 9),
            ]),
            _ => Ok(vec![line(format!("{stem}_{address:x}"), 3)]),
        };
        addresses.iter().map(names).collect()
    }

    fn kernel(
        &mut self,
        address: AbsAddr,
        _region: KernelRegion,
    ) -> Result<KernelSymbol, UnnamedReason> {
        let named =
            |name: &str, module: &str| KernelSymbol { name: name.into(), module: module.into() };
        match address.0 & 0xfff {
            0..0x800 => Ok(named("do_syscall_64", "vmlinux")),
            0x800..0xf00 => Ok(named("ext4_read", "ext4")),
            _ => Err(UnnamedReason::NoSymbol),
        }
    }

    fn anonymous(&mut self, _process: ProcessKey, addresses: &[AbsAddr]) -> Vec<Names> {
        let name = |&AbsAddr(address): &AbsAddr| match address & 1 {
            0 => Err(UnnamedReason::AnonymousCode),
            _ => Ok(vec![SourceLine {
                function: format!("jit_{:x}", address >> 4),
                system_name: String::new(),
                file: String::new(),
                line: 0,
            }]),
        };
        addresses.iter().map(name).collect()
    }
}

/// A process instance; its executable is called `app<pid>`.
pub(crate) fn process(pid: u32) -> Arc<ProcessIdentity> {
    Arc::new(ProcessIdentity {
        pid: Pid(pid),
        start_time_ns: 1_000 + u64::from(pid),
        executable_name: format!("app{pid}"),
        executable_path: format!("/usr/bin/app{pid}"),
        service_name: format!("service{pid}"),
        container_id: pid.is_multiple_of(2).then(|| format!("{pid:064x}")),
        kernel_thread: false,
    })
}

/// A file with two executable segments, `[0x1000, 0x9000)` and `[0x20000, 0x30000)`.
pub(crate) fn file(id: u32) -> Arc<MappedFile> {
    let segment = |address, file_offset, size| ExecutableSegment {
        address: ElfAddr(address),
        file_offset: FileOffset(file_offset),
        size,
    };
    let byte = u8::try_from(id % 255 + 1).expect("below 256");
    Arc::new(MappedFile {
        id: FileId(id),
        path: format!("/usr/lib/lib{id}.so"),
        facts: Some(FileFacts {
            segments: vec![segment(0x1000, 0x800, 0x8000), segment(0x20000, 0xa000, 0x10000)],
            data: Vec::new(),
            gnu_build_id: proto::BuildId::new(&[byte; 20]),
            go_build_id: None,
            htlhash: proto::BuildId::new(&[byte; 16]).expect("not zero"),
            runtime: if id % 3 == 2 { Runtime::Go } else { Runtime::Native },
            is_static: false,
        }),
        kernel_build_id: None,
    })
}

/// A native frame.
pub(crate) fn native(file: &Arc<MappedFile>, address: u64) -> Frame {
    Frame::Native { file: Arc::clone(file), address: ElfAddr(address) }
}

/// A sample of `pid`, thread `tid`.
pub(crate) fn sample(pid: u32, tid: u32, time: u64, frames: Vec<Frame>) -> NormalizedSample {
    NormalizedSample {
        process: process(pid),
        tid: Tid(tid),
        thread_name: format!("worker{}", tid % 4).into(),
        cpu: 0,
        time: MonotonicNs(time),
        outcome: match frames.last() {
            Some(Frame::Marker(Marker::Stopped(outcome))) => *outcome,
            _ => Outcome::Complete,
        },
        frames,
    }
}

/// `count` samples over `pids` processes: kernel frames on a third of them, markers on a fifth, stacks
/// of 3 to 40 frames over 5 files. Deterministic.
pub(crate) fn samples(count: u32, pids: u32) -> Vec<NormalizedSample> {
    let files: Vec<_> = (0..5).map(file).collect();
    let make = |n: u32| {
        let mut frames = Vec::new();
        if n.is_multiple_of(3) {
            let address = AbsAddr(0xffff_ffff_8100_0000 + u64::from(n % 7) * 0x300);
            frames.push(Frame::Kernel { address, region: KernelRegion::default() });
        }
        for depth in 0..3 + n % 38 {
            let file = &files[(depth % 5) as usize];
            frames.push(native(file, 0x1000 + u64::from((n % 23) * 40 + depth)));
        }
        match n % 20 {
            0 => frames.push(Frame::Marker(Marker::Stopped(Outcome::NoUnwindInfo))),
            4 => frames.push(Frame::Marker(Marker::Stopped(Outcome::DepthLimit))),
            8 => frames.push(Frame::Marker(Marker::Interpreter(Runtime::Python))),
            12 => frames.push(Frame::Anonymous {
                runtime: Runtime::Native,
                address: AbsAddr(0x7f00_0000_0000),
            }),
            _ => {}
        }
        let pid = 1 + n % pids;
        sample(pid, pid * 10 + n % 3, u64::from(n) * PERIOD_NS / 2, frames)
    };
    (0..count).map(make).collect()
}

/// Folds and names samples; the window is 5 s long and its account matches them.
pub(crate) fn named(samples: &[NormalizedSample]) -> NamedWindow {
    let mut window = Window::new(MonotonicNs(0), PERIOD_NS);
    samples.iter().for_each(|sample| window.add(sample));
    let count = samples.len() as u64;
    let mut ledger = Ledger {
        cpus: 2,
        ticks_expected: 190 + count,
        runs: 190 + count,
        idle: 190,
        shipped: count,
        received: count,
        program_run_ns: 20_000 * count,
        ..Ledger::default()
    };
    for sample in samples {
        ledger.outcomes[sample.outcome as usize] += 1;
    }
    window.into_named(MonotonicNs(5_000_000_000), WALL, ledger, &mut FixtureNames::default())
}
