//! The compiled rows say the same as gimli does at random addresses of real files. The oracle finds
//! functions by the other road (`.eh_frame_hdr`), evaluates the row with gimli's own expression machine
//! on made-up registers and memory, and compares values, not shapes.

use super::made_files::Frames;
use super::{RowTable, unwind_rows_from_bytes};
use crate::elf::{ForeignFiles as _, LocalFiles};
use crate::limits::{UNWIND_RULES_PER_FILE_MAX, UNWIND_WORK_BYTES_MAX};
use agent_ebpf::{REGISTERS, RuleKind, UnwindRule};
use gimli::{
    BaseAddresses, CfaRule, EndianSlice, EvaluationResult, Expression, LittleEndian, Register,
    RegisterRule, UnwindContext, UnwindSection as _, Value,
};
use object::{Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Machine state that means nothing, so that two ways to compute from it agree only if they do the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) rip: u64,
    pub(super) rsp: u64,
    pub(super) rbp: u64,
    /// By the numbers of DWARF; rbp and rsp stand in their own fields.
    pub(super) general: [u64; REGISTERS],
}

impl Machine {
    fn register(&self, register: Register) -> Option<u64> {
        match register {
            Register(6) => Some(self.rbp),
            Register(7) => Some(self.rsp),
            Register(16) => Some(self.rip),
            Register(number) => self.general.get(usize::from(number)).copied(),
        }
    }
}

/// What a step gives: `None` for the CFA says "no caller".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    End,
    Signal { rsp: u64, rip: u64, rbp: u64 },
    Caller { cfa: u64, ip: u64, rbp: u64 },
    NotFollowed,
    NoInfo,
}

/// Memory: every word has a value of its own, an address above, as on a stack.
pub(super) fn word(address: u64) -> u64 {
    let own = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    address.wrapping_add(0x4000 + (own << 3))
}

pub(super) fn apply(rule: UnwindRule, machine: Machine) -> Step {
    let kind = (0..=RuleKind::LAST as u8).find(|&kind| kind == rule.kind).unwrap();
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
        k if k == RuleKind::LeafRegister as u8 => {
            at(machine.register(Register(u16::try_from(rule.addend).unwrap())).unwrap(), offset)
        }
        k if k == RuleKind::ReturnRegister as u8 => at(machine.rsp, offset),
        k if k == RuleKind::ReturnsTwice as u8 => at(machine.rsp, offset),
        k if k == RuleKind::SavedRegister as u8 => {
            at(machine.register(Register(3)).unwrap(), addend)
        }
        k if k == RuleKind::End as u8 => return Step::End,
        k if k == RuleKind::Signal as u8 => {
            let context = at(machine.rsp, offset);
            let at = |offset: u64| word(context.wrapping_add(offset));
            return Step::Signal { rsp: at(160), rip: at(168), rbp: at(120) };
        }
        k if k == RuleKind::NoInfo as u8 => return Step::NoInfo,
        _ => return Step::NotFollowed,
    };
    let rbp = match (rule.rbp, rule.rbp_from_rbp) {
        (0, 0) => machine.rbp,
        (words, 0) => word(at(cfa, i64::from(words) * 8)),
        (words, _) => word(at(machine.rbp, i64::from(words) * 8)),
    };
    let ip = match kind == RuleKind::ReturnRegister as u8 {
        true => machine.register(Register(u16::try_from(rule.addend).unwrap())).unwrap(),
        false => word(at(cfa, -8)),
    };
    Step::Caller { cfa, ip, rbp }
}

pub(super) struct Oracle<'a> {
    section: gimli::EhFrame<Bytes<'a>>,
    header: gimli::ParsedEhFrameHdr<Bytes<'a>>,
    bases: BaseAddresses,
}

impl<'a> Oracle<'a> {
    pub(super) fn new(file: &'a object::File<'a>) -> Self {
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

    pub(super) fn step(&self, machine: Machine, context: &mut UnwindContext<usize>) -> Step {
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
            CfaRule::RegisterAndOffset { register, offset } => {
                machine.register(register).unwrap().wrapping_add_signed(offset)
            }
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
            let Some(RegisterRule::Expression(rbp)) = row.register(Register(6)) else {
                return Step::NotFollowed;
            };
            let [rip, rbp] = [rip, rbp].map(|expression| {
                word(evaluate(expression.get(&self.section).unwrap(), machine).unwrap())
            });
            return Step::Signal { rsp: cfa, rip, rbp };
        }
        let ip = match return_address {
            Some(RegisterRule::Offset(offset)) => word(cfa.wrapping_add_signed(offset)),
            Some(RegisterRule::Register(register)) => machine.register(register).unwrap(),
            _ => return Step::NotFollowed,
        };
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
        Step::Caller { cfa, ip, rbp }
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
                let value = machine.register(register)?;
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
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
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
    stubs: usize,
    from_code: usize,
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
        let mut register = || random.next() >> 17 << 3;
        let (rsp, rbp) = (register(), register());
        let machine = Machine { rip, rsp, rbp, general: std::array::from_fn(|_| register()) };
        let ours = table.rule_at(rip).map_or(Step::NoInfo, |rule| apply(rule, machine));
        let theirs = oracle.step(machine, &mut context);
        tally.compared += 1;
        match (ours, theirs) {
            (ours, theirs) if ours == theirs => {}
            // What the walker cannot follow is said, never guessed.
            (Step::NotFollowed, _) => tally.not_followed += 1,
            // The entry function is the root even where its CFI does not say so.
            (Step::End, _) if at_entry(&file, rip) => {}
            // Followed through the code, which nobody else does.
            (Step::Caller { .. }, Step::NoInfo) => tally.from_code += 1,
            // lld describes no stubs.
            (_, Step::NoInfo) if in_stubs(&file, rip) => tally.stubs += 1,
            (_, Step::NoInfo) if near_function_end(&oracle, rip, &mut context) => {
                tally.padding += 1;
            }
            _ => panic!("{}: at {rip:#x}: rows {ours:x?}, gimli {theirs:x?}", path.display()),
        }
    }
    tally
}

pub(super) fn at_entry(file: &object::File<'_>, rip: u64) -> bool {
    (file.entry()..file.entry() + 64).contains(&rip)
}

pub(super) fn in_stubs(file: &object::File<'_>, rip: u64) -> bool {
    let stubs = [".plt", ".iplt", ".plt.sec", ".plt.got"];
    let mut sections = stubs.iter().filter_map(|name| file.section_by_name(name));
    sections.any(|section| (section.address()..section.address() + section.size()).contains(&rip))
}

pub(super) fn near_function_end(
    oracle: &Oracle<'_>,
    rip: u64,
    context: &mut UnwindContext<usize>,
) -> bool {
    (1..=15).any(|back| {
        let machine = Machine { rip: rip - back, rsp: 0, rbp: 0, general: [0; REGISTERS] };
        oracle.step(machine, context) != Step::NoInfo
    })
}

fn check_shape(table: &RowTable) {
    assert!(table.rows().is_sorted_by(|a, b| a.0 < b.0), "row starts ascend");
    let last = table.rows().last().map(|(_, index)| table.rules()[usize::from(index)]);
    assert_eq!(last, Some(UnwindRule::plain(RuleKind::NoInfo)), "the last row ends the table");
    let distinct: std::collections::HashSet<_> = table.rules().iter().collect();
    assert_eq!(distinct.len(), table.rules().len(), "rules are distinct");
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
pub(super) fn files() -> Vec<PathBuf> {
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

/// One CIE of 64 KiB that many functions share would run gigabytes of instructions.
#[test]
fn a_huge_cie_shared_by_many_functions_costs_a_bounded_time() {
    let (cie_bytes, functions) = (60 << 10, 20_000);
    let mut frames = Frames::new(cie_bytes);
    for number in 0..functions {
        frames.function(0x1000 + number * 16, 16, &[]);
    }
    let started = std::time::Instant::now();
    let table = unwind_rows_from_bytes(&frames.file(functions * 16)).unwrap();
    let run = UNWIND_WORK_BYTES_MAX / cie_bytes;
    let left_out = table.losses().left_out;
    assert!(left_out.abs_diff(functions - run) <= run / 1000 + 2, "{left_out} of {functions}");
    assert!(started.elapsed().as_secs() < 60);
}

#[test]
fn a_file_with_too_many_rules_takes_its_share_only() {
    let functions = 2 * UNWIND_RULES_PER_FILE_MAX as u64;
    let mut frames = Frames::new(0);
    for number in 0..functions {
        // DW_CFA_def_cfa_offset, with two bytes of LEB128.
        let [low, high] = u16::try_from(number).unwrap().to_le_bytes();
        let offset = [low | 0x80, high << 1 | low >> 7];
        frames.function(0x1000 + number * 16, 16, &[0x0e, offset[0], offset[1]]);
    }
    let table = unwind_rows_from_bytes(&frames.file(functions * 16)).unwrap();
    assert_eq!(table.rules().len(), UNWIND_RULES_PER_FILE_MAX);
    assert!(table.losses().rules_refused >= UNWIND_RULES_PER_FILE_MAX as u64);
    assert_eq!(
        table.rule_at(0x1000 + functions * 16 - 1),
        Some(UnwindRule::plain(RuleKind::Unsupported))
    );
    let kept = UnwindRule { offset: 100, ..UnwindRule::plain(RuleKind::RspOffset) };
    assert_eq!(table.rule_at(0x1000 + 100 * 16), Some(kept));
}

/// `pop %rdi` takes the return address off the stack, so that the child of vfork, which runs on the same
/// stack, cannot overwrite it (glibc, `sysdeps/unix/sysv/linux/x86_64/vfork.S`).
#[test]
fn vfork_keeps_its_return_address_in_a_register() {
    let path = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    if !path.exists() {
        eprintln!("skipped: no {}", path.display());
        return;
    }
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok("vfork")).unwrap();
    let table = unwind_rows_from_bytes(&bytes).unwrap();
    let rules = (symbol.address()..symbol.address() + symbol.size())
        .map(|address| table.rule_at(address).unwrap());
    let kinds: std::collections::BTreeSet<(u8, i32)> =
        rules.map(|rule| (rule.kind, rule.addend)).collect();
    let rdi = 5;
    assert!(kinds.contains(&(RuleKind::ReturnRegister as u8, rdi)), "{kinds:?}");
    assert!(kinds.contains(&(RuleKind::RspOffset as u8, 0)), "{kinds:?}");
}

/// Everything before `main` has the loader's entry as its root, and no call frame information covers it.
#[test]
fn the_entry_of_the_loader_is_a_root() {
    let path = Path::new("/lib64/ld-linux-x86-64.so.2");
    let Ok(bytes) = std::fs::read(path) else {
        eprintln!("not on this machine, not looked at: {}", path.display());
        return;
    };
    let entry = object::File::parse(&*bytes).unwrap().entry();
    let table = LocalFiles::new().unwind_rows(&File::open(path).unwrap().into()).unwrap();
    // Behind the calls of `_dl_start` and of `_dl_init`.
    for address in [entry, entry + 8, entry + 47] {
        let rule = table.rule_at(address);
        assert_eq!(rule, Some(UnwindRule::plain(RuleKind::End)), "{address:#x}");
    }
}

/// `_dl_runtime_resolve` keeps its frame in rbx while `_dl_fixup`, which saves that, looks for a symbol (glibc,
/// sysdeps/x86_64/dl-trampoline.h). Truth: what gimli says of the callee at each of its instructions.
#[test]
fn the_callee_of_the_lazy_binder_saves_its_frame() {
    let path = Path::new("/lib64/ld-linux-x86-64.so.2");
    let Ok(bytes) = std::fs::read(path) else {
        eprintln!("not on this machine, not looked at: {}", path.display());
        return;
    };
    // mov 16(%rbx),%rsi; mov 8(%rbx),%rdi; call
    let shape = [0x48, 0x8b, 0x73, 0x10, 0x48, 0x8b, 0x7b, 0x08, 0xe8];
    let table = unwind_rows_from_bytes(&bytes).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let code = text.data().unwrap();
    let mut found = 0;
    for at in memchr::memmem::find_iter(code, &shape) {
        let call = text.address() + at as u64 + 8;
        let rule = table.rule_at(call).unwrap();
        assert_eq!(rule.kind, RuleKind::SavedRegister as u8, "{call:#x}: {rule:?}");
        let before = table.rule_at(call - 1).unwrap();
        assert_eq!(before.kind, RuleKind::LeafRegister as u8, "{call:#x}: {before:?}");
        assert_eq!((before.offset, before.addend), (rule.addend, 3));
        assert_eq!(table.rule_at(call + 5), Some(before));
        let distance = code[at + 9..at + 13].try_into().unwrap();
        let callee = (call + 5).wrapping_add_signed(i32::from_le_bytes(distance).into());
        callee_keeps(&file, callee, rule.offset);
        found += 1;
    }
    assert!(found >= 1, "the loader binds lazily");
}

fn callee_keeps(file: &object::File<'_>, callee: u64, offset: i32) {
    let oracle = Oracle::new(file);
    let table = oracle.header.table().unwrap();
    let from = gimli::EhFrame::cie_from_offset;
    let fde = table.fde_for_address(&oracle.section, &oracle.bases, callee, from).unwrap();
    assert_eq!(fde.initial_address(), callee);
    let mut context = UnwindContext::new();
    let mut rows = fde.rows(&oracle.section, &oracle.bases, &mut context).unwrap();
    let mut saved = 0;
    while let Some(row) = rows.next_row().unwrap() {
        let CfaRule::RegisterAndOffset { register: Register(7), offset: depth } = *row.cfa() else {
            panic!("{row:?}")
        };
        match row.register(Register(3)) {
            Some(RegisterRule::Offset(at)) => assert_eq!(at, i64::from(offset)),
            // The place is not the callee's yet.
            None => assert!(depth < -i64::from(offset)),
            other => panic!("{other:?}"),
        }
        saved += usize::from(row.register(Register(3)).is_some());
    }
    assert!(saved > 0);
}

/// Behind the system call that makes a thread, the one that made it returns, and the other one begins.
#[test]
fn behind_the_system_call_of_clone_are_two_threads() {
    let path = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    if !path.exists() {
        eprintln!("skipped: no {}", path.display());
        return;
    }
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let table = unwind_rows_from_bytes(&bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let code = text.data().unwrap();
    let two = UnwindRule { offset: 8, ..UnwindRule::plain(RuleKind::ReturnsTwice) };
    let mut found = 0;
    // mov $number,%eax; syscall; test %rax,%rax; jl; je; ret
    for number in [56_u32, 435] {
        let call = [&[0xb8][..], &number.to_le_bytes(), &[0x0f, 0x05, 0x48, 0x85, 0xc0]].concat();
        for at in memchr::memmem::find_iter(code, &call) {
            let at = text.address() + at as u64;
            let behind = table.rule_at(at + 7).unwrap();
            if behind == two {
                assert_eq!(table.rule_at(at + 14), Some(two), "{at:#x}");
                let before = table.rule_at(at + 6).unwrap();
                assert_eq!((before.kind, before.offset), (RuleKind::RspOffset as u8, 8));
                found += 1;
            }
        }
    }
    assert_eq!(found, 2, "`clone` and `clone3`");
}
