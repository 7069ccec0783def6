//! Code that no file describes and whose callers are known all the same: stubs that linkers make, and
//! assembly of C libraries at the roots of stacks, which is told by its bytes.

use super::builder::KnownCode;
use crate::elf::ForeignFileError;
use crate::elf::headers::{Elf, Section};
use crate::limits::{
    UNWIND_KNOWN_CODE_BYTES_MAX, UNWIND_KNOWN_CODE_MAX, UNWIND_PIECE_BYTES, UNWIND_SECTIONS_MAX,
};
use agent_ebpf::{RuleKind, UnwindRule};
use memchr::memmem::Finder;
use object::elf;

/// One shape: the bytes, the rule, and how many bytes from their beginning, and from their end, it holds.
struct Shape {
    code: &'static [u8],
    rule: UnwindRule,
    from: i64,
    behind: u64,
}

const fn plain(code: &'static [u8], rule: RuleKind, from: i64) -> Shape {
    Shape { code, rule: UnwindRule::plain(rule), from, behind: 0 }
}

/// A system call that makes a thread: mov $number,%eax; syscall; test %rax,%rax; then, in five bytes, jl, je, ret.
const fn makes_thread(code: &'static [u8]) -> Shape {
    let rule = UnwindRule { offset: 8, ..UnwindRule::plain(RuleKind::ReturnsTwice) };
    Shape { code, rule, from: 7, behind: 5 }
}

const SHAPES: [Shape; 5] = [
    // `__restore_rt`: mov $15,%rax; syscall (src/signal/x86_64/restore.s, musl 1.1 to 1.2). The kernel
    // "calls" the handler from its first instruction: the address to look up lies one before it.
    plain(&[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05], RuleKind::Signal, -1),
    // `__clone`, where the new thread is: xor %ebp,%ebp; pop %rdi; call *%r9
    // (src/thread/x86_64/clone.s).
    plain(&[0x31, 0xed, 0x5f, 0x41, 0xff, 0xd1], RuleKind::End, 0),
    // `__start_context`, which glibc's `makecontext` has its function return to: mov %rbx,%rsp;
    // mov (%rsp),%rdi; test %rdi,%rdi (sysdeps/unix/sysv/linux/x86_64/__start_context.S, 2.36). Its own information
    // says how the rest of it is left; nobody called the first instruction.
    plain(&[0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0x48, 0x85, 0xff], RuleKind::End, -1),
    // `__clone` and `__clone3` of glibc (sysdeps/unix/sysv/linux/x86_64/clone.S and clone3.S, 2.36), which end their
    // information before the system call, because there it is wrong for one of the two threads.
    makes_thread(&[0xb8, 56, 0, 0, 0, 0x0f, 0x05, 0x48, 0x85, 0xc0]),
    makes_thread(&[0xb8, 0xb3, 1, 0, 0, 0x0f, 0x05, 0x48, 0x85, 0xc0]),
];

/// The linker's stubs. GNU ld describes those of dynamic programs itself; lld describes none, and in a
/// static program nobody does those of functions that are chosen at start-up (`R_X86_64_IRELATIVE`).
pub(super) fn stubs(elf: &Elf<'_>) -> Vec<KnownCode> {
    let names = [".plt", ".iplt", ".plt.sec", ".plt.got"];
    let sections = names.iter().flat_map(|name| elf.sections_named(name));
    sections
        .filter(|section| section.is_code())
        .take(UNWIND_SECTIONS_MAX)
        .flat_map(|section| stubs_of(elf, section))
        .collect()
}

fn stubs_of(elf: &Elf<'_>, section: &Section) -> Vec<KnownCode> {
    let by_rsp = |offset| UnwindRule { offset, ..UnwindRule::plain(RuleKind::RspOffset) };
    let at = |offset: u64| section.address.saturating_add(offset.min(section.size));
    let code = |range: std::ops::Range<u64>, rule| KnownCode {
        range: at(range.start)..at(range.end),
        rule,
    };
    let mut head = [0; 32];
    let read = elf.source().fill("stubs", section.offset, &mut head);
    // push GOT+8(%rip); jmp *GOT+16(%rip): what the others jump to, after one push of theirs.
    let lazy = read.is_ok() && section.size >= 32 && head.starts_with(&[0xff, 0x35]);
    if !lazy {
        return vec![code(0..section.size, by_rsp(8))];
    }
    // endbr64; push $number; jmp, or jmp *slot(%rip); push $number; jmp: pushed behind 9 or 11 bytes.
    let marked = head.get(16..21) == Some(&[0xf3, 0x0f, 0x1e, 0xfa, 0x68]);
    let addend = if marked { 9 } else { 11 };
    let stub = UnwindRule { addend, ..UnwindRule::plain(RuleKind::Plt) };
    vec![code(0..6, by_rsp(16)), code(6..16, by_rsp(24)), code(16..section.size, stub)]
}

/// Finds such code in a file that may hold a C library: a static program, a library that needs no other one, or the
/// one that has `makecontext`. Answers also whether the limit cut the search short.
pub(super) fn find(
    elf: &Elf<'_>,
    may_hold: bool,
) -> Result<(Vec<KnownCode>, bool), ForeignFileError> {
    let mut found = Vec::new();
    if !may_hold {
        return Ok((found, false));
    }
    let finders = SHAPES.each_ref().map(|shape| Finder::new(shape.code));
    let mut left = UNWIND_KNOWN_CODE_BYTES_MAX;
    let mut piece = Vec::new();
    let code = elf
        .segments
        .iter()
        .filter(|segment| segment.kind == elf::PT_LOAD.0 && segment.flags & elf::PF_X.0 != 0);
    for segment in code {
        let mut done = 0;
        while done < segment.file_size {
            if left == 0 || found.len() >= UNWIND_KNOWN_CODE_MAX {
                return Ok((found, true));
            }
            let length = (segment.file_size - done).min(UNWIND_PIECE_BYTES).min(left);
            piece.resize(usize::try_from(length).unwrap_or(0), 0);
            elf.source().fill("code", segment.offset.saturating_add(done), &mut piece)?;
            left -= length;
            let address = segment.address.saturating_add(done);
            for (shape, finder) in SHAPES.iter().zip(&finders) {
                found.extend(finder.find_iter(&piece).map(|at| shape.at(address, at)));
            }
            // Pieces overlap by less than a shape.
            let overlap = SHAPES.iter().map(|shape| shape.code.len()).max().unwrap_or(1) as u64 - 1;
            done += if length > overlap { length - overlap } else { length };
            if done + overlap >= segment.file_size {
                break;
            }
        }
    }
    Ok((found, false))
}

impl Shape {
    fn at(&self, address: u64, at: usize) -> KnownCode {
        let start = address.saturating_add(at as u64);
        let end = start.saturating_add(self.code.len() as u64).saturating_add(self.behind);
        KnownCode { range: start.saturating_add_signed(self.from)..end, rule: self.rule }
    }
}
