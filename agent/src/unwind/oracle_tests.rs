//! A million random addresses of system libraries, each unwound by one frame: by the compiled rows, and by
//! framehop, an unwinder that others wrote (samply's). Every difference is of a kind that is listed here
//! with its reason, and decided by gimli's own evaluation; any other one fails.

use super::RowTable;
use super::tests::{
    Machine, Oracle, Random, Step, apply, at_entry, files, in_stubs, near_function_end, word,
};
use crate::elf::{ForeignFiles as _, LocalFiles};
use agent_ebpf::{REGISTERS, RuleKind, UnwindRule};
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};
use gimli::UnwindContext;
use object::{Object as _, ObjectSection as _, ObjectSegment as _};
use std::fs::File;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Addresses in all.
const ADDRESSES: usize = 1_000_000;

/// Rules that framehop has no counterpart of.
const BEYOND_FRAMEHOP: [RuleKind; 6] = [
    RuleKind::LeafRegister,
    RuleKind::SavedRegister,
    RuleKind::ReturnRegister,
    RuleKind::DerefRbp,
    RuleKind::DerefRsp,
    RuleKind::Signal,
];

/// What became of the addresses of one file.
#[derive(Debug, Default)]
struct Tally {
    /// Equal instruction, stack and frame pointers of the caller.
    agreed: usize,
    /// Both say that there is no caller.
    roots: usize,
    /// Neither has information.
    uncovered: usize,
    /// Up to 15 bytes behind a function count as it: alignment, where nothing runs.
    padding: usize,
    /// Stubs that nobody describes; framehop takes what it does not know for a leaf.
    stubs: usize,
    /// The entry function is the root also where its own information does not say so.
    entry: usize,
    /// The caller follows from a register that framehop does not keep, or from an expression that reads
    /// memory, which it does not evaluate: it guesses by the frame pointer. Gimli says what the rows say.
    beyond_framehop: usize,
    /// `Unsupported`: said, never guessed. At most one in a hundred.
    unsupported: usize,
    /// Followed through the code, where neither of the others has information.
    from_code: usize,
    /// Anything else.
    differ: usize,
}

/// One step of framehop.
fn step_of_framehop(
    unwinder: &UnwinderX86_64<&[u8]>,
    cache: &mut CacheX86_64,
    machine: Machine,
) -> Option<Step> {
    let mut registers = UnwindRegsX86_64::new(machine.rip, machine.rsp, machine.rbp);
    let address = FrameAddress::from_instruction_pointer(machine.rip);
    let mut read = |address| Ok(word(address));
    match unwinder.unwind_frame(address, &mut registers, cache, &mut read) {
        Ok(Some(ip)) => Some(Step::Caller { cfa: registers.sp(), ip, rbp: registers.bp() }),
        Ok(None) => Some(Step::End),
        Err(_) => None,
    }
}

fn module(file: &object::File<'_>, bytes: &'static [u8]) -> Module<&'static [u8]> {
    let section = |name: &str| {
        let section = file.section_by_name(name)?;
        let range = section.address()..section.address() + section.size();
        let (offset, size) = section.file_range()?;
        let (offset, size) = (usize::try_from(offset).unwrap(), usize::try_from(size).unwrap());
        Some((range, &bytes[offset..offset + size]))
    };
    let (eh_frame_svma, eh_frame) = section(".eh_frame").unzip();
    let (eh_frame_hdr_svma, eh_frame_hdr) = section(".eh_frame_hdr").unzip();
    let info = ExplicitModuleSectionInfo {
        text_svma: section(".text").map(|(range, _)| range),
        eh_frame_svma,
        eh_frame,
        eh_frame_hdr_svma,
        eh_frame_hdr,
        got_svma: section(".got").map(|(range, _)| range),
        ..ExplicitModuleSectionInfo::default()
    };
    let end = file.segments().map(|segment| segment.address() + segment.size()).max().unwrap();
    Module::new("file".to_owned(), 0..end, 0, info)
}

fn compare(path: &Path, count: usize, random: &mut Random) -> Tally {
    // Kept until the process ends: framehop wants to own what it reads.
    let bytes: &'static [u8] = std::fs::read(path).unwrap().leak();
    let file = object::File::parse(bytes).unwrap();
    let mut unwinder = UnwinderX86_64::new();
    unwinder.add_module(module(&file, bytes));
    let mut cache = CacheX86_64::new();
    let rows = LocalFiles::new().unwind_rows(&File::open(path).unwrap().into()).unwrap();
    let comparison = Comparison { path, file: &file, rows, oracle: Oracle::new(&file) };
    let text: Vec<(u64, u64)> = file
        .segments()
        .filter(|segment| segment.permissions().executable())
        .map(|segment| (segment.address(), segment.size()))
        .collect();
    let total: u64 = text.iter().map(|&(_, size)| size).sum();
    let mut context = UnwindContext::new();
    let mut tally = Tally::default();
    for _ in 0..count {
        let mut at = random.next() % total;
        let mut ranges = text.iter();
        let rip = loop {
            let &(start, size) = ranges.next().unwrap();
            if at < size {
                break start + at;
            }
            at -= size;
        };
        let rsp = random.next() >> 20 << 3;
        // Above the stack pointer, as frame pointers are.
        let rbp = rsp + (random.next() >> 52 << 3);
        let general = std::array::from_fn::<u64, REGISTERS, _>(|_| random.next() >> 20 << 3);
        let machine = Machine { rip, rsp, rbp, general };
        let theirs = step_of_framehop(&unwinder, &mut cache, machine);
        comparison.check(machine, theirs, &mut context, &mut tally);
    }
    tally
}

struct Comparison<'a> {
    path: &'a Path,
    file: &'a object::File<'a>,
    rows: RowTable,
    oracle: Oracle<'a>,
}

impl Comparison<'_> {
    fn check(
        &self,
        machine: Machine,
        theirs: Option<Step>,
        context: &mut UnwindContext<usize>,
        tally: &mut Tally,
    ) {
        let rip = machine.rip;
        let no_info = UnwindRule::plain(RuleKind::NoInfo);
        let rule = self.rows.rule_at(rip).unwrap_or(no_info);
        let ours = match apply(rule, machine) {
            Step::Signal { rsp, rip, rbp } => Step::Caller { cfa: rsp, ip: rip, rbp },
            step => step,
        };
        let beyond = BEYOND_FRAMEHOP.iter().any(|&kind| rule.kind == kind as u8);
        let by_gimli = match self.oracle.step(machine, context) {
            Step::Signal { rsp, rip, rbp } => Step::Caller { cfa: rsp, ip: rip, rbp },
            step => step,
        };
        let counted = match ours {
            Step::NoInfo if by_gimli == Step::NoInfo => &mut tally.uncovered,
            Step::NotFollowed => &mut tally.unsupported,
            Step::End if theirs == Some(Step::End) => &mut tally.roots,
            Step::End if at_entry(self.file, rip) => &mut tally.entry,
            _ if Some(ours) == theirs => &mut tally.agreed,
            _ if beyond && ours == by_gimli => &mut tally.beyond_framehop,
            _ if by_gimli != Step::NoInfo => &mut tally.differ,
            _ if in_stubs(self.file, rip) => &mut tally.stubs,
            _ if near_function_end(&self.oracle, rip, context) => &mut tally.padding,
            Step::Caller { .. } => &mut tally.from_code,
            _ => &mut tally.differ,
        };
        *counted += 1;
        assert!(
            tally.differ == 0,
            "{}: at {rip:#x}: {rule:?}: rows {ours:x?}, framehop {theirs:x?}, gimli {by_gimli:x?}",
            self.path.display(),
        );
    }
}

#[test]
fn rows_say_what_framehop_says_at_a_million_addresses() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = u64::from(now.subsec_nanos()) << 32 ^ now.as_secs();
    eprintln!("seed {seed:#x}");
    let mut random = Random(seed);
    let files = files();
    let count = ADDRESSES.div_ceil(files.len());
    for path in files {
        let tally = compare(&path, count, &mut random);
        eprintln!("{}: {tally:?}", path.display());
        assert!(tally.unsupported * 100 <= count, "{}: {tally:?}", path.display());
        assert!(tally.beyond_framehop * 10 <= count, "{}: {tally:?}", path.display());
        assert!((tally.agreed + tally.uncovered) * 100 >= count * 85, "{tally:?}");
    }
}
