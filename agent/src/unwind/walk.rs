//! Walks a copied stack in user space, by compiled rows: the same text that the BPF programs run
//! (`agent_ebpf::walk`), over other memory. Pure; it loads no table and names nothing.

use crate::address::AbsAddr;
use crate::bpf::{CopiedStack, UserFrame};
use agent_ebpf::Outcome;
use agent_ebpf::limits::USER_FRAMES_MAX;
use agent_ebpf::walk::{Memory, Rules, Walk};

/// What a walk found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Frames, leaf first; the first is where the walk in the kernel stopped, so it is the sample's last.
    pub frames: Vec<UserFrame>,
    /// How it ended. `StackUnreadable` where the copy ends before the stack does.
    pub outcome: Outcome,
}

/// Walks on where the kernel stopped, by `rules` at absolute addresses.
#[must_use]
pub fn walk_copied(stack: &CopiedStack, rules: &impl Rules) -> Walked {
    let mut walk = Walk::default();
    walk.registers.general = *stack.general;
    walk.registers.ip = stack.ip.0;
    if stack.innermost {
        walk.begin();
    } else {
        walk.resume(stack.ip.0, stack.sp.0, stack.bp, stack.exact.into());
    }
    let memory = Copy(stack);
    let mut frames = Vec::new();
    while frames.len() < USER_FRAMES_MAX {
        frames.push(UserFrame { address: AbsAddr(walk.ip), exact: walk.exact == 1 });
        if let Err(outcome) = walk.step(&memory, rules) {
            return Walked { frames, outcome };
        }
    }
    Walked { frames, outcome: Outcome::DepthLimit }
}

struct Copy<'a>(&'a CopiedStack);

impl Memory for Copy<'_> {
    const CODE_MAY_BE_ABSENT: bool = false;

    fn read<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        let at = usize::try_from(address.checked_sub(self.0.sp.0)?).ok()?;
        let bytes = self.0.bytes.get(at..at.checked_add(N * 8)?)?;
        let words: &[[u8; 8]; N] = bytes.as_chunks::<8>().0.try_into().ok()?;
        Some(words.map(u64::from_ne_bytes))
    }

    /// Code is not copied: without rows, an instruction that makes or leaves a frame is taken for another.
    fn code(&self, _address: u64) -> Option<u32> {
        None
    }

    /// Nor does anything tell then whether an address lies behind a call: where a file says nothing of its code, rbp
    /// may be any number, and what it leads to is no frame, as in the kernel where the code cannot be read.
    fn code_before(&self, _address: u64) -> Option<u64> {
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::RowTable;
    use agent_ebpf::walk::Registers;
    use agent_ebpf::{REGISTERS, RuleKind, UnwindRule};

    const STACK: u64 = 0x7000_0000_1000;

    const RDI: usize = 5;

    /// Frames of 32 bytes, the outermost one, and one that has its return address in rdi.
    fn rows() -> RowTable {
        let plain = UnwindRule::plain;
        let frame = UnwindRule { offset: 32, rbp: -2, ..plain(RuleKind::RspOffset) };
        let in_rdi = UnwindRule { addend: 5, ..plain(RuleKind::ReturnRegister) };
        let rules = vec![frame, plain(RuleKind::End), in_rdi, plain(RuleKind::NoInfo)];
        RowTable::new(0x1000, rules, [(0x10, 0), (0x20, 1), (0x30, 2), (0x40, 3)]).unwrap()
    }

    fn copied(words: &[u64]) -> CopiedStack {
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let (ip, sp) = (AbsAddr(0x40_1014), AbsAddr(STACK));
        let mut general = Box::new([0; REGISTERS]);
        general[Registers::SP] = STACK;
        general[RDI] = 0x40_101c;
        CopiedStack { ip, sp, bp: 0x77, exact: true, innermost: true, general, bytes }
    }

    /// The rows behind one mapping, or what stands in their place.
    struct Mapped<'a>(Result<&'a RowTable, Outcome>);

    impl Rules for Mapped<'_> {
        fn rule_at(&self, pc: u64) -> Result<UnwindRule, Outcome> {
            Ok(self.0?.rule_at(pc - 0x40_0000).expect("the test asks within the rows"))
        }
    }

    #[test]
    fn a_copied_stack_is_walked_to_its_root_or_to_the_end_of_the_copy() {
        let rows = rows();
        let words = [1, 2, 0, 0x40_101c, 3, 4, 0, 0x40_1024, 5];
        type Row<'a> = (&'a [u64], Result<&'a RowTable, Outcome>, usize, Outcome);
        let table: [Row<'_>; 5] = [
            (&words, Ok(&rows), 3, Outcome::Complete),
            (&words[..7], Ok(&rows), 2, Outcome::StackUnreadable),
            (&[], Ok(&rows), 1, Outcome::StackUnreadable),
            (&words, Err(Outcome::TablePending), 1, Outcome::TablePending),
            (&words, Err(Outcome::MappingUnknown), 1, Outcome::MappingUnknown),
        ];
        for (words, mapped, frames, outcome) in table {
            let walked = walk_copied(&copied(words), &Mapped(mapped));
            let all = [(0x40_1014, true), (0x40_101c, false), (0x40_1024, false)];
            let expected = all.map(|(at, exact)| UserFrame { address: AbsAddr(at), exact });
            assert_eq!((walked.frames.as_slice(), walked.outcome), (&expected[..frames], outcome));
        }
    }
    /// As where `vfork` is: its child may write over the return address on the stack that they share.
    #[test]
    fn the_innermost_frame_of_a_copy_has_its_registers() {
        let rows = rows();
        let in_vfork = CopiedStack { ip: AbsAddr(0x40_1034), ..copied(&[3, 4, 5, 0x40_1024]) };
        let table = [
            (true, vec![0x40_1034, 0x40_101c, 0x40_1024], Outcome::Complete),
            (false, vec![0x40_1034], Outcome::RuleUnsupported),
        ];
        for (innermost, frames, outcome) in table {
            let stack = CopiedStack { innermost, ..in_vfork.clone() };
            let walked = walk_copied(&stack, &Mapped(Ok(&rows)));
            let found: Vec<u64> = walked.frames.iter().map(|frame| frame.address.0).collect();
            assert_eq!((found, walked.outcome), (frames, outcome));
        }
    }

    /// Code that its file does not describe has data in rbp: a place in the stack, where a function's address lies that
    /// nobody called from. Code made at run time is not asked, as in the kernel.
    #[test]
    fn a_frame_pointer_that_may_be_data_leads_nowhere() {
        let chain = UnwindRule::plain(RuleKind::NoInfo);
        let kept = UnwindRule::plain(RuleKind::FramePointer);
        let made_at_run_time = UnwindRule { reserved: 1, ..chain };
        let table = [
            (chain, 1, Outcome::NoUnwindInfo),
            (made_at_run_time, 2, Outcome::Complete),
            (kept, 2, Outcome::Complete),
        ];
        for (rule, frames, outcome) in table {
            let stack =
                CopiedStack { bp: STACK + 8, innermost: false, ..copied(&[1, 0x77, 0x40_1024, 5]) };
            let walked = walk_copied(&stack, &OneRule(rule));
            assert_eq!((walked.frames.len(), walked.outcome), (frames, outcome), "{rule:?}");
        }
    }

    /// One rule, and the outermost frame at 0x401024.
    struct OneRule(UnwindRule);

    impl Rules for OneRule {
        fn rule_at(&self, pc: u64) -> Result<UnwindRule, Outcome> {
            let outermost = UnwindRule::plain(RuleKind::End);
            Ok(if pc == 0x40_1023 { outermost } else { self.0 })
        }
    }
}
