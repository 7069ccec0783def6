use super::frames;
use crate::address::{AbsAddr, ElfAddr, FileId, FileOffset, Generation, Pid, Tid};
use crate::bpf::{RawSample, UserFrame};
use crate::clock::MonotonicNs;
use crate::elf::{ExecutableSegment, FileFacts, Runtime};
use crate::normalize::{Frame, MappedFile, Marker};
use crate::process::files::Backing;
use crate::process::mappings::{Mapping, MappingSet};
use agent_ebpf::Outcome;
use proto::BuildId;
use std::sync::Arc;

/// A file mapped at `start`, with as many bytes of code at ELF address 0.
fn mapping(id: u32, runtime: Runtime, start: u64) -> Mapping {
    let size = 0x1000;
    let segment = ExecutableSegment { address: ElfAddr(0), file_offset: FileOffset(0), size };
    let facts = FileFacts {
        segments: vec![segment],
        data: Vec::new(),
        gnu_build_id: None,
        go_build_id: None,
        htlhash: BuildId::new(&[1]).unwrap(),
        is_static: false,
        runtime,
    };
    let path = format!("f{id}");
    let file = MappedFile { id: FileId(id), path, facts: Some(facts), kernel_build_id: None };
    let (start, end) = (AbsAddr(start), AbsAddr(start + size));
    Mapping::new(start, end, FileOffset(0), Backing::File(Arc::new(file)))
}

/// `file+address`, kernel frames as `k:`, anonymous ones as `?`, markers in brackets; leaf first.
fn shown(frames: &[Frame]) -> String {
    let one = |frame: &Frame| match frame {
        Frame::Native { file, address } => format!("{}+{:x}", file.path, address.0),
        Frame::Unplaced { file, offset } => format!("{}@{:x}", file.path, offset.0),
        Frame::Kernel { address, .. } => format!("k:{:x}", address.0),
        Frame::Anonymous { address, .. } => format!("?{:x}", address.0),
        Frame::Marker(Marker::Stopped(outcome)) => format!("[{}]", outcome.name()),
        Frame::Marker(Marker::Interpreter(runtime)) => format!("[{runtime:?}]"),
    };
    frames.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn sample(kernel: &[u64], user: &[u64], outcome: Outcome) -> RawSample {
    let user = user.iter().enumerate();
    RawSample {
        cpu: 0,
        pid: Pid(1),
        tid: Tid(1),
        time: MonotonicNs(0),
        cgroup_id: 1,
        generation: Generation(1),
        outcome,
        run_ns: 0,
        comm: Vec::new(),
        kernel: kernel.iter().map(|&address| AbsAddr(address)).collect(),
        user: user
            .map(|(at, &address)| UserFrame { address: AbsAddr(address), exact: at == 0 })
            .collect(),
        root_frames: 0,
        stack: None,
    }
}

#[track_caller]
fn check(mappings: &[Mapping], sample: &RawSample, expected: &str) {
    let set = MappingSet::new(mappings.iter().cloned());
    assert_eq!(shown(&frames(sample, Some(&set))), expected);
}

#[test]
fn callers_are_looked_up_before_their_return_address() {
    let code = [mapping(1, Runtime::Native, 0x10000), mapping(2, Runtime::Native, 0x20000)];
    check(
        &code,
        &sample(&[0xf100, 0xf200], &[0x10010, 0x20020, 0x10030], Outcome::Complete),
        "k:f100 k:f1ff f1+10 f2+1f f1+2f",
    );
    // A return address at the very end of a mapping belongs to the call before it.
    check(&code, &sample(&[], &[0x10010, 0x11000], Outcome::Complete), "f1+10 f1+fff");
    let mut interrupted = sample(&[], &[0x10010, 0x20000], Outcome::Complete);
    interrupted.user[1].exact = true;
    check(&code, &interrupted, "f1+10 f2+0");
}

#[test]
fn stops_are_shown_at_the_root() {
    let code = [mapping(1, Runtime::Native, 0x10000)];
    check(&code, &sample(&[], &[0x10010], Outcome::DepthLimit), "f1+10 [depth limit]");
    check(&code, &sample(&[0xf100], &[], Outcome::NoUserStack), "k:f100");
    check(
        &code,
        &sample(&[], &[0x10010, 0x99999], Outcome::MappingUnknown),
        "f1+10 [mapping unknown]",
    );
    // The interrupted instruction is where it is.
    check(&code, &sample(&[], &[0x99999], Outcome::MappingUnknown), "?99999 [mapping unknown]");
}

#[test]
fn the_marker_stands_where_frames_are_missing() {
    let code = [mapping(1, Runtime::Native, 0x10000)];
    let mut truncated = sample(&[0xf100], &[0x10010, 0x10020, 0x10030], Outcome::DepthLimit);
    check(&code, &truncated, "k:f100 f1+10 f1+1f f1+2f [depth limit]");
    truncated.root_frames = 1;
    check(&code, &truncated, "k:f100 f1+10 f1+1f [depth limit] f1+2f");
    truncated.root_frames = 3;
    check(&code, &truncated, "k:f100 [depth limit] f1+10 f1+1f f1+2f");
    assert_eq!(shown(&frames(&truncated, None)), "k:f100 [depth limit]");
    truncated.outcome = Outcome::TimeLimit;
    truncated.root_frames = 2;
    check(&code, &truncated, "k:f100 f1+10 [time limit] f1+1f f1+2f");
}

#[test]
fn addresses_of_another_program_say_nothing() {
    let other = sample(&[0xf100], &[0x10010, 0x20020], Outcome::Complete);
    assert_eq!(shown(&frames(&other, None)), "k:f100 [process unknown]");
    let kernel_only = sample(&[0xf100], &[], Outcome::NoUserStack);
    assert_eq!(shown(&frames(&kernel_only, None)), "k:f100");
}

#[test]
fn registers_of_the_program_before_an_exec_say_nothing() {
    let code = [mapping(1, Runtime::Native, 0x10000)];
    let unknown = Outcome::ProcessUnknown;
    check(&code, &sample(&[0xf100], &[0x99999], unknown), "k:f100 [process unknown]");
    check(&code, &sample(&[], &[0x10010], unknown), "f1+10 [process unknown]");
}

#[test]
fn one_marker_for_an_interpreter() {
    let libc = mapping(1, Runtime::Native, 0x10000);
    let python = mapping(2, Runtime::Python, 0x20000);
    // memcpy, the loop, main, __libc_start_main, _start.
    check(
        &[libc.clone(), python.clone()],
        &sample(&[], &[0x10010, 0x20010, 0x20020, 0x10020, 0x20030], Outcome::Complete),
        "f1+10 f2+f f2+1f [Python] f1+1f f2+2f",
    );
    // A thread of a native library alone runs no Python.
    check(
        &[libc.clone(), python.clone()],
        &sample(&[], &[0x10010, 0x10020], Outcome::Complete),
        "f1+10 f1+1f",
    );
    let java = mapping(3, Runtime::Java, 0x30000);
    // Compiled code, the call stub, libjvm, the thread's start.
    check(
        &[libc.clone(), java.clone()],
        &sample(&[], &[0x90010, 0x90020, 0x30010, 0x10010], Outcome::Complete),
        "?90010 ?9001f [Java] f3+f f1+f",
    );
    // Native code called from compiled code.
    check(
        &[libc.clone(), java.clone()],
        &sample(&[], &[0x10010, 0x90010, 0x30010, 0x90020, 0x30020], Outcome::Complete),
        "f1+10 ?9000f f3+f ?9001f [Java] f3+1f",
    );
    // The compiler's own thread.
    check(&[libc, java], &sample(&[], &[0x30010, 0x10010], Outcome::Complete), "f3+10 f1+f");
}

#[test]
fn anonymous_code_of_others_keeps_its_address() {
    let code = [mapping(1, Runtime::Native, 0x10000)];
    check(&code, &sample(&[], &[0x90010, 0x10020], Outcome::Complete), "?90010 f1+1f");
}
