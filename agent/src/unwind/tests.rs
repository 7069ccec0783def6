//! The compiled rows say the same as gimli does at random addresses of real files. The oracle finds
//! functions by the other road (`.eh_frame_hdr`), evaluates the row with gimli's own expression machine
//! on made-up registers and memory, and compares values, not shapes.

use super::{RowTable, unwind_rows_from_bytes};
use crate::elf::{ForeignFiles as _, LocalFiles};
use agent_ebpf::{RuleKind, UnwindRule};
use gimli::{
    BaseAddresses, CfaRule, EndianSlice, EvaluationResult, Expression, LittleEndian, Register,
    RegisterRule, UnwindContext, UnwindSection as _, Value,
};
use object::{Object as _, ObjectSection as _, ObjectSegment as _};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Machine state that means nothing, so that two ways to compute from it agree only if they do the same.
#[derive(Clone, Copy, Debug)]
struct Machine {
    rip: u64,
    rsp: u64,
    rbp: u64,
}

/// What a step gives: `None` for the CFA says "no caller".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    End,
    Signal { rsp: u64, rip: u64 },
    Caller { cfa: u64, rbp: u64 },
    NotFollowed,
    NoInfo,
}

/// Memory: every word has a value of its own.
fn word(address: u64) -> u64 {
    address.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ 0x5555
}

fn apply(rule: UnwindRule, machine: Machine) -> Step {
    let kind = (0..=9).find(|&kind| kind == rule.kind).unwrap();
    let offset = i64::from(rule.offset);
    let addend = i64::from(rule.addend);
    let at = |register: u64, offset: i64| register.wrapping_add_signed(offset);
    let cfa = match kind {
        k if k == RuleKind::RspOffset as u8 => at(machine.rsp, offset),
        k if k == RuleKind::RbpOffset as u8 => at(machine.rbp, offset),
        k if k == RuleKind::Plt as u8 => {
            at(machine.rsp, 8) + (u64::from(machine.rip & 15 >= addend.cast_unsigned()) << 3)
        }
        k if k == RuleKind::DerefRbp as u8 => at(word(at(machine.rbp, offset)), addend),
        k if k == RuleKind::DerefRsp as u8 => at(word(at(machine.rsp, offset)), addend),
        k if k == RuleKind::End as u8 => return Step::End,
        k if k == RuleKind::Signal as u8 => {
            let context = at(machine.rsp, offset);
            return Step::Signal { rsp: word(context + 160), rip: word(context + 168) };
        }
        k if k == RuleKind::NoInfo as u8 => return Step::NoInfo,
        _ => return Step::NotFollowed,
    };
    let rbp = match (rule.rbp, rule.rbp_from_rbp) {
        (0, 0) => machine.rbp,
        (words, 0) => word(at(cfa, i64::from(words) * 8)),
        (words, _) => word(at(machine.rbp, i64::from(words) * 8)),
    };
    Step::Caller { cfa, rbp }
}

struct Oracle<'a> {
    section: gimli::EhFrame<Bytes<'a>>,
    header: gimli::ParsedEhFrameHdr<Bytes<'a>>,
    bases: BaseAddresses,
}

impl<'a> Oracle<'a> {
    fn new(file: &'a object::File<'a>) -> Self {
        let section = |name: &str| {
            let section = file.section_by_name(name).unwrap();
            (section.address(), section.data().unwrap())
        };
        let (frame_at, frame) = section(".eh_frame");
        let (header_at, header) = section(".eh_frame_hdr");
        let bases = BaseAddresses::default()
            .set_eh_frame(frame_at)
            .set_eh_frame_hdr(header_at)
            .set_text(file.section_by_name(".text").unwrap().address());
        let header = gimli::EhFrameHdr::new(header, LittleEndian).parse(&bases, 8).unwrap();
        Self { section: gimli::EhFrame::new(frame, LittleEndian), header, bases }
    }

    fn step(&self, machine: Machine, context: &mut UnwindContext<usize>) -> Step {
        let table = self.header.table().unwrap();
        let fde = table.fde_for_address(
            &self.section,
            &self.bases,
            machine.rip,
            gimli::EhFrame::cie_from_offset,
        );
        let Ok(fde) = fde else { return Step::NoInfo };
        let row = fde.unwind_info_for_address(&self.section, &self.bases, context, machine.rip);
        let row = row.unwrap();
        let return_address = match row.register(Register(16)) {
            Some(RegisterRule::Undefined) => return Step::End,
            rule => rule,
        };
        let cfa = match *row.cfa() {
            CfaRule::RegisterAndOffset { register: Register(7), offset } => {
                machine.rsp.wrapping_add_signed(offset)
            }
            CfaRule::RegisterAndOffset { register: Register(6), offset } => {
                machine.rbp.wrapping_add_signed(offset)
            }
            CfaRule::RegisterAndOffset { .. } => return Step::NotFollowed,
            CfaRule::Expression(expression) => {
                match evaluate(expression.get(&self.section).unwrap(), machine) {
                    Some(value) => value,
                    None => return Step::NotFollowed,
                }
            }
        };
        if fde.is_signal_trampoline() {
            let Some(RegisterRule::Expression(rip)) = return_address else {
                return Step::NotFollowed;
            };
            let rip = evaluate(rip.get(&self.section).unwrap(), machine).unwrap();
            return Step::Signal { rsp: cfa, rip: word(rip) };
        }
        if return_address != Some(RegisterRule::Offset(-8)) {
            return Step::NotFollowed;
        }
        let rbp = match row.register(Register(6)) {
            None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => machine.rbp,
            Some(RegisterRule::Offset(offset)) => word(cfa.wrapping_add_signed(offset)),
            Some(RegisterRule::Expression(expression)) => {
                match evaluate(expression.get(&self.section).unwrap(), machine) {
                    Some(at) => word(at),
                    None => return Step::NotFollowed,
                }
            }
            Some(_) => return Step::NotFollowed,
        };
        Step::Caller { cfa, rbp }
    }
}

fn evaluate(expression: Expression<Bytes<'_>>, machine: Machine) -> Option<u64> {
    let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 5 };
    let mut evaluation = expression.evaluation(encoding);
    let mut result = evaluation.evaluate().unwrap();
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = match register {
                    Register(6) => machine.rbp,
                    Register(7) => machine.rsp,
                    Register(16) => machine.rip,
                    _ => return None,
                };
                evaluation.resume_with_register(Value::Generic(value)).unwrap()
            }
            EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                evaluation.resume_with_memory(Value::Generic(word(address))).unwrap()
            }
            other => panic!("unexpected {other:?}"),
        };
    }
    let pieces = evaluation.result();
    match pieces.first()?.location {
        gimli::Location::Address { address } => Some(address),
        ref other => panic!("unexpected {other:?}"),
    }
}

/// A small generator with a fixed seed (`SplitMix64`).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[derive(Debug, Default)]
struct Tally {
    compared: usize,
    not_followed: usize,
    padding: usize,
}

/// Compares at `count` random addresses of the executable segments.
fn compare(path: &Path, count: usize) -> Tally {
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let oracle = Oracle::new(&file);
    let table = LocalFiles::new().unwind_rows(&File::open(path).unwrap().into()).unwrap();
    check_shape(&table);
    let text: Vec<(u64, u64)> = file
        .segments()
        .filter(|segment| segment.permissions().executable())
        .map(|segment| (segment.address(), segment.size()))
        .collect();
    let total: u64 = text.iter().map(|&(_, size)| size).sum();
    let mut random = Random(1);
    let mut context = UnwindContext::new();
    let mut tally = Tally::default();
    for _ in 0..count {
        let mut at = random.next() % total;
        let range = text.iter().find(|&&(_, size)| {
            let inside = at < size;
            if !inside {
                at -= size;
            }
            inside
        });
        let rip = range.unwrap().0 + at;
        let machine = Machine { rip, rsp: random.next() >> 17 << 3, rbp: random.next() >> 17 << 3 };
        let ours = table.rule_at(rip).map_or(Step::NoInfo, |rule| apply(rule, machine));
        let theirs = oracle.step(machine, &mut context);
        tally.compared += 1;
        match (ours, theirs) {
            (ours, theirs) if ours == theirs => {}
            // What the walker cannot follow is said, never guessed.
            (Step::NotFollowed, _) => tally.not_followed += 1,
            // The entry function is the root even where its CFI does not say so.
            (Step::End, _) if at_entry(&file, rip) => {}
            (_, Step::NoInfo) if near_function_end(&oracle, rip, &mut context) => {
                tally.padding += 1;
            }
            _ => panic!("{}: at {rip:#x}: rows {ours:x?}, gimli {theirs:x?}", path.display()),
        }
    }
    tally
}

fn at_entry(file: &object::File<'_>, rip: u64) -> bool {
    (file.entry()..file.entry() + 64).contains(&rip)
}

fn near_function_end(oracle: &Oracle<'_>, rip: u64, context: &mut UnwindContext<usize>) -> bool {
    (1..=15).any(|back| {
        let machine = Machine { rip: rip - back, rsp: 0, rbp: 0 };
        oracle.step(machine, context) != Step::NoInfo
    })
}

fn check_shape(table: &RowTable) {
    assert_eq!(table.pcs.len(), table.rule_indices.len());
    assert!(table.pcs.is_sorted_by(|a, b| a < b), "row starts ascend");
    let last = table.rule_indices.last().map(|&index| table.rules[usize::from(index)]);
    assert_eq!(last, Some(UnwindRule::plain(RuleKind::NoInfo)), "the last row ends the table");
    let distinct: std::collections::HashSet<_> = table.rules.iter().collect();
    assert_eq!(distinct.len(), table.rules.len(), "rules are distinct");
}

/// The largest table at hand, a million rows: the library of the compiler that builds this.
fn compiler_library() -> Option<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let root = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    let entries = std::fs::read_dir(root.join("lib")).ok()?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("librustc_driver-"))
    })
}

/// Files of this machine that have `.eh_frame_hdr`. What is missing is named.
fn files() -> Vec<PathBuf> {
    let mut found = vec![std::env::current_exe().unwrap()];
    found.extend(compiler_library());
    let candidates = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/ld-linux-x86-64.so.2",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
        "/usr/bin/node",
        "/usr/bin/python3",
        "/usr/bin/python3.11",
        "/usr/bin/bash",
        "/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so",
    ];
    for path in candidates.map(PathBuf::from) {
        if path.exists() {
            found.push(path);
        } else {
            eprintln!("not on this machine, not compared: {}", path.display());
        }
    }
    found
}

#[test]
fn rows_say_what_gimli_says() {
    let mut compared = 0;
    for path in files() {
        let tally = compare(&path, 20_000);
        eprintln!("{}: {tally:?}", path.display());
        assert!(tally.not_followed * 100 <= tally.compared, "{}: {tally:?}", path.display());
        compared += tally.compared;
    }
    assert!(compared >= 100_000, "{compared} addresses are too few to mean something");
}

#[test]
fn bytes_in_memory_compile_to_the_same_rows() {
    let path = std::env::current_exe().unwrap();
    let from_file = LocalFiles::new().unwind_rows(&File::open(&path).unwrap().into()).unwrap();
    let from_bytes = unwind_rows_from_bytes(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(from_file, from_bytes);
}

/// One CIE of 4 MiB that a thousand functions share would run 4 GB of instructions.
#[test]
fn a_huge_cie_shared_by_many_functions_is_refused() {
    let mut bytes = Vec::new();
    let cie_length = 4u32 << 20;
    bytes.extend(cie_length.to_le_bytes());
    bytes.extend(0u32.to_le_bytes()); // a CIE
    bytes.extend([1, 0, 1, 0x78, 16]); // version 1, no augmentation, factors 1 and -8, rip
    bytes.extend([0x0c, 7, 8, 0x90, 1]); // CFA = rsp + 8, rip at CFA - 8
    bytes.resize(4 + cie_length as usize, 0); // nothing, many times
    for number in 0..1000u64 {
        let at = bytes.len();
        bytes.extend(20u32.to_le_bytes());
        bytes.extend(u32::try_from(at + 4).unwrap().to_le_bytes()); // back to the CIE
        bytes.extend((0x1000 + number * 16).to_le_bytes());
        bytes.extend(16u64.to_le_bytes());
    }
    let section = super::cfi::FrameSection {
        bytes,
        address: 0x10_0000,
        text: 0,
        got: 0,
        ends_with_zero: false,
    };
    let segment = crate::elf::ExecutableSegment {
        address: crate::address::ElfAddr(0x1000),
        file_offset: crate::address::FileOffset(0x1000),
        size: 1 << 20,
    };
    let mut builder = super::builder::Builder::new(vec![segment]);
    let result = super::cfi::add_eh_frame(&mut builder, &section);
    assert!(matches!(result, Err(crate::elf::ForeignFileError::Limit { .. })), "{result:?}");
}
