//! Real processes, stopped at random and walked in user space by the compiled rows, as the kernel side
//! does it: stacks are complete and have the callers that the program is known to have.

use super::go_tests::build;
use super::{RowTable, unwind_rows_from_bytes};
use crate::address::{ElfAddr, FileId};
use crate::elf::{ExecutableSegment, ForeignFiles as _, LocalFiles};
use agent_ebpf::{RuleKind, UnwindRule};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Frames of one walk.
const FRAMES_MAX: usize = 512;

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Ending {
    Complete,
    NoMapping,
    NotFollowed(u8),
    Unreadable,
    TooDeep,
}

/// An executable mapping with its rows.
struct Mapping {
    start: u64,
    end: u64,
    bias: u64,
    file: usize,
}

struct MappedFile {
    file: Option<OwnedFd>,
    rows: RowTable,
}

/// Function names, leaf first, and how the walk ended.
type Stack = (Vec<String>, Ending);

/// One process under test.
struct Target {
    child: Child,
    memory: File,
    mappings: Vec<Mapping>,
    files: Vec<MappedFile>,
    names: LocalFiles,
    known: HashMap<(usize, u64), Vec<String>>,
    traced: HashSet<i32>,
}

impl Target {
    fn start(path: &Path, arguments: &[&str], go_debug: &str) -> Self {
        let child = Command::new(path)
            .args(arguments)
            .env("GODEBUG", go_debug)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let memory = File::open(format!("/proc/{}/mem", child.id())).unwrap();
        let mut target = Self {
            child,
            memory,
            mappings: Vec::new(),
            files: Vec::new(),
            names: LocalFiles::new(),
            known: HashMap::new(),
            traced: HashSet::new(),
        };
        target.read_mappings();
        target
    }

    fn read_mappings(&mut self) {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap();
        let mut by_path: HashMap<String, (usize, Vec<ExecutableSegment>)> = HashMap::new();
        for line in maps.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [range, permissions, offset, _, _, path] = fields[..] else { continue };
            if !permissions.contains('x') {
                continue;
            }
            let (start, end) = range.split_once('-').unwrap();
            let [start, end, offset] =
                [start, end, offset].map(|hex| u64::from_str_radix(hex, 16).unwrap());
            if path == "[vdso]" {
                let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
                self.memory.read_exact_at(&mut bytes, start).unwrap();
                let rows = unwind_rows_from_bytes(&bytes).unwrap();
                self.files.push(MappedFile { file: None, rows });
                self.mappings.push(Mapping { start, end, bias: start, file: self.files.len() - 1 });
            } else if path.starts_with('/') {
                let files = &mut self.files;
                let names = &self.names;
                let (file, segments) = by_path.entry(path.to_owned()).or_insert_with(|| {
                    let file: OwnedFd = File::open(path).unwrap().into();
                    let segments = names.inspect(&file).unwrap().segments;
                    let rows = names.unwind_rows(&file).unwrap();
                    files.push(MappedFile { file: Some(file), rows });
                    (files.len() - 1, segments)
                });
                let segment = segments.iter().find(|segment| {
                    let first = segment.file_offset.0 & !4095;
                    (first..segment.file_offset.0 + segment.size).contains(&offset)
                });
                let segment = segment.unwrap();
                let address = segment.address.0 + offset - segment.file_offset.0;
                let bias = start.wrapping_sub(address);
                self.mappings.push(Mapping { start, end, bias, file: *file });
            }
        }
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Addresses to look up, leaf first, as (file, ELF address).
    fn walk(&self, registers: &libc::user_regs_struct) -> (Vec<(usize, u64)>, Ending) {
        let (mut rip, mut rsp, mut rbp) = (registers.rip, registers.rsp, registers.rbp);
        let mut exact = true;
        let mut frames = Vec::new();
        while frames.len() < FRAMES_MAX {
            let pc = if exact { rip } else { rip.wrapping_sub(1) };
            let mapping =
                self.mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&pc));
            let Some(mapping) = mapping else { return (frames, Ending::NoMapping) };
            let address = pc.wrapping_sub(mapping.bias);
            frames.push((mapping.file, address));
            let rule = self.files[mapping.file].rows.rule_at(address);
            let rule = rule.unwrap_or(UnwindRule::plain(RuleKind::NoInfo));
            if rule.kind == RuleKind::End as u8 {
                return (frames, Ending::Complete);
            }
            let Some(step) = self.step(rule, pc, rsp, rbp) else {
                return (frames, Ending::Unreadable);
            };
            let Some(next) = step else { return (frames, Ending::NotFollowed(rule.kind)) };
            (rip, rsp, rbp) = next;
            exact = rule.kind == RuleKind::Signal as u8;
            if rip == 0 {
                return (frames, Ending::Complete);
            }
        }
        (frames, Ending::TooDeep)
    }

    /// `None`: memory not readable; `Some(None)`: the rule cannot be followed.
    fn step(
        &self,
        rule: UnwindRule,
        rip: u64,
        rsp: u64,
        rbp: u64,
    ) -> Option<Option<(u64, u64, u64)>> {
        let kind = |kind: RuleKind| rule.kind == kind as u8;
        let offset = i64::from(rule.offset);
        let addend = i64::from(rule.addend);
        if kind(RuleKind::Signal) {
            let context = rsp.wrapping_add_signed(offset);
            let at = |offset| self.word(context.wrapping_add(offset));
            return Some(Some((at(168)?, at(160)?, at(120)?)));
        }
        if kind(RuleKind::FramePointer) || kind(RuleKind::NoInfo) {
            return Some(Some((self.word(rbp + 8)?, rbp + 16, self.word(rbp)?)));
        }
        let cfa = if kind(RuleKind::RspOffset) {
            rsp.wrapping_add_signed(offset)
        } else if kind(RuleKind::RbpOffset) {
            rbp.wrapping_add_signed(offset)
        } else if kind(RuleKind::Plt) {
            rsp + 8 + (u64::from(rip & 15 >= addend.cast_unsigned()) << 3)
        } else if kind(RuleKind::DerefRbp) {
            self.word(rbp.wrapping_add_signed(offset))?.wrapping_add_signed(addend)
        } else if kind(RuleKind::DerefRsp) {
            self.word(rsp.wrapping_add_signed(offset))?.wrapping_add_signed(addend)
        } else {
            return Some(None);
        };
        let saved = match (rule.rbp, rule.rbp_from_rbp) {
            (0, 0) => rbp,
            (words, 0) => self.word(cfa.wrapping_add_signed(i64::from(words) * 8))?,
            (words, _) => self.word(rbp.wrapping_add_signed(i64::from(words) * 8))?,
        };
        Some(Some((self.word(cfa.wrapping_sub(8))?, cfa, saved)))
    }

    /// Function names, leaf first, without inlined ones.
    fn functions(&mut self, frames: &[(usize, u64)]) -> Vec<String> {
        let mut functions = Vec::new();
        for &(file, address) in frames {
            let names = self.known.entry((file, address)).or_insert_with(|| {
                let Some(descriptor) = &self.files[file].file else {
                    return vec!["[vdso]".to_owned()];
                };
                let id = FileId(u32::try_from(file).unwrap());
                let lines = self
                    .names
                    .names(id, descriptor, &[ElfAddr(address)])
                    .remove(0)
                    .unwrap_or_default();
                let name =
                    lines.last().map_or_else(|| format!("{address:#x}"), |l| l.function.clone());
                vec![name]
            });
            functions.extend(names.iter().cloned());
        }
        functions
    }

    fn threads(&self) -> Vec<i32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect()
    }

    /// Stops every thread `rounds` times and walks it.
    fn sample(&mut self, rounds: usize) -> Vec<Stack> {
        let mut stacks = Vec::new();
        for _ in 0..rounds {
            for thread in self.threads() {
                if self.traced.insert(thread) {
                    ptrace(libc::PTRACE_SEIZE, thread, 0);
                }
                let Some((registers, signal)) = stop(thread) else { continue };
                let (frames, ending) = self.walk(&registers);
                ptrace(libc::PTRACE_CONT, thread, signal);
                stacks.push((frames, ending));
            }
            std::thread::sleep(Duration::from_micros(700));
        }
        stacks.into_iter().map(|(frames, ending)| (self.functions(&frames), ending)).collect()
    }
}

impl Target {
    /// As `sample`, and again until `least` stacks hold `function`: a machine with other work may not have
    /// let the program run meanwhile.
    fn sample_until(&mut self, rounds: usize, function: &str, least: usize) -> Vec<Stack> {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut stacks = self.sample(rounds);
        let holds = |(stack, _): &&Stack| stack.iter().any(|name| name == function);
        while stacks.iter().filter(holds).count() < least && Instant::now() < deadline {
            stacks.extend(self.sample(rounds));
        }
        stacks
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.child.kill());
        // A traced thread that is not reaped keeps its process from ending, the first thread to the last.
        let leader = self.child.id().cast_signed();
        let others = self.traced.iter().copied().filter(|&thread| thread != leader);
        for thread in others.chain(std::iter::once(leader)) {
            let mut status = 0;
            // SAFETY: `status` is a valid place.
            while unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) } == thread
                && !libc::WIFSIGNALED(status)
                && !libc::WIFEXITED(status)
            {}
        }
        drop(self.child.wait());
    }
}

fn ptrace(request: libc::c_uint, thread: i32, data: i32) -> i64 {
    // SAFETY: these requests take no pointers.
    unsafe { libc::ptrace(request, thread, 0, i64::from(data)) }
}

/// Stops a thread of ours; its registers and the signal to go on with, if it still lives.
fn stop(thread: i32) -> Option<(libc::user_regs_struct, i32)> {
    if ptrace(libc::PTRACE_INTERRUPT, thread, 0) != 0 {
        return None;
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place.
    let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    if waited != thread || !libc::WIFSTOPPED(status) {
        return None;
    }
    // Any stop serves, also that for a signal of the program itself (Go preempts with SIGURG): it
    // takes the place of the one that was asked for, and the signal is handed on.
    let signal = if status >> 16 == 0 { libc::WSTOPSIG(status) } else { 0 };
    let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
    // SAFETY: the kernel fills a structure of this type.
    let got = unsafe { libc::ptrace(libc::PTRACE_GETREGS, thread, 0, registers.as_mut_ptr()) };
    // SAFETY: all bit patterns are valid, and it was zeroed.
    (got == 0).then(|| (unsafe { registers.assume_init() }, signal))
}

/// Every stack that has `function`, called by whatever it calls, has `callers` behind it.
fn check_callers(stacks: &[Stack], function: &str, callers: &[&str], least: usize) {
    let mut found = 0;
    for (stack, _) in stacks {
        let Some(at) = stack.iter().position(|name| name == function) else { continue };
        let behind = stack.iter().skip(at + 1).map(String::as_str);
        assert!(behind.take(callers.len()).eq(callers.iter().copied()), "{stack:#?}");
        found += 1;
    }
    assert!(found >= least, "{found} samples of {function}");
}

/// At least 99.5 % of the stacks are complete.
fn check_complete(stacks: &[Stack]) {
    let incomplete: Vec<_> =
        stacks.iter().filter(|(_, ending)| *ending != Ending::Complete).collect();
    eprintln!("{} stacks, {} incomplete", stacks.len(), incomplete.len());
    assert!(incomplete.len() * 200 <= stacks.len(), "{incomplete:#?}");
}

#[test]
fn a_frameless_go_leaf_keeps_its_direct_caller() {
    let directory = tempfile::tempdir().unwrap();
    let flags: [&[&str]; 2] = [&["-ldflags=-s -w"], &["-buildmode=pie", "-ldflags=-s -w"]];
    for flags in flags {
        let Some(path) = build(directory.path(), "chain", flags) else { return };
        // With preemption by signals most stops fall on the delivery of one: walks then cross it.
        for go_debug in ["asyncpreemptoff=1", ""] {
            let mut target = Target::start(&path, &["60s"], go_debug);
            let stacks = target.sample_until(400, "main.leaf", 20);
            check_complete(&stacks);
            let chain =
                ["main.middle", "main.outer", "main.main", "runtime.main", "runtime.goexit"];
            check_callers(&stacks, "main.leaf", &chain, 20);
        }
    }
}

#[test]
fn go_calls_c_calls_go() {
    let directory = tempfile::tempdir().unwrap();
    // The C half of a stripped program has no names, but its stacks are as complete.
    let Some(path) = build(directory.path(), "mixed", &["-ldflags=-s -w"]) else { return };
    check_complete(&Target::start(&path, &["60s"], "").sample(200));
    let Some(path) = build(directory.path(), "mixed", &[]) else { return };
    let mut target = Target::start(&path, &["60s"], "asyncpreemptoff=1");
    let stacks = target.sample_until(600, "main.spin", 200);
    check_complete(&stacks);
    let from_go = ["main.caller", "main.main", "runtime.main", "runtime.goexit"];
    check_callers(&stacks, "main._Cfunc_c_outer", &from_go, 50);
    // C runs on the thread's stack, its caller is found on the goroutine's.
    let from_c = ["runtime.asmcgocall", "runtime.cgocall", "main._Cfunc_c_outer"];
    let wrapper = stacks
        .iter()
        .flat_map(|(stack, _)| stack)
        .find(|name| name.ends_with("_Cfunc_c_outer") && name.starts_with("_cgo_"));
    check_callers(&stacks, &wrapper.unwrap().clone(), &from_c, 50);
    // And back: the goroutine's code has its C callers.
    let back_again = ["runtime.cgocallback", "crosscall2", "back", "c_outer"];
    let in_go =
        stacks.iter().filter(|(stack, _)| stack.first().is_some_and(|leaf| leaf == "main.spin"));
    assert!(in_go.clone().count() > 20);
    for (stack, _) in in_go {
        let at = stack.iter().position(|name| name == back_again[0]).unwrap();
        assert_eq!(stack[at..at + 4], back_again, "{stack:#?}");
    }
}

#[test]
fn c_without_frame_pointers() {
    let directory = tempfile::tempdir().unwrap();
    let source = "
        #include <stdlib.h>
        volatile unsigned long sink;
        __attribute__((noinline)) unsigned long leaf(unsigned long n) {
            for (int i = 0; i < 200000; i++) n = n * 6364136223846793005ul + 1;
            return n;
        }
        __attribute__((noinline)) unsigned long middle(unsigned long n) { return leaf(n) + 1; }
        __attribute__((noinline)) unsigned long outer(unsigned long n) { return middle(n) * 3; }
        __attribute__((noinline)) int compare(const void *a, const void *b) {
            unsigned long n = *(const unsigned long *)a;
            for (int i = 0; i < 300; i++) n = n * 6364136223846793005ul + 1;
            return (n >> 1 > *(const unsigned long *)b) - 1;
        }
        unsigned long array[2000];
        int main(void) {
            for (;;) {
                sink += outer(sink);
                for (int i = 0; i < 2000; i++) array[i] = i * 7919ul % 2003;
                qsort(array, 2000, sizeof *array, compare);
            }
        }
    ";
    let input = directory.path().join("program.c");
    std::fs::write(&input, source).unwrap();
    let output = directory.path().join("program");
    let compiled = Command::new("gcc")
        .args(["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-o"])
        .arg(&output)
        .arg(&input)
        .status();
    assert!(compiled.unwrap().success());
    let stacks = Target::start(&output, &[], "").sample_until(600, "leaf", 20);
    check_complete(&stacks);
    check_callers(&stacks, "leaf", &["middle", "outer", "main"], 20);
    // qsort lies between, in a library without names for its local functions.
    let compared = stacks.iter().filter(|(stack, _)| stack.iter().any(|name| name == "compare"));
    assert!(compared.clone().count() > 20);
    for (stack, _) in compared {
        assert!(stack.iter().any(|name| name == "main"), "{stack:?}");
    }
}
