//! Follows the control flow of one function through a region of code, with the [`State`] before each
//! instruction. What cannot be true (a return that pops more or less than was pushed) says that a call on the way
//! there does not return, or that no function begins where it was looked for.

use super::nodes::{Node, Nodes};
use super::places::Places;
use super::state::{State, Value};
use crate::limits::{UNWIND_CODE_CUTS_MAX, UNWIND_DEADLINE_INSTRUCTIONS};
use crate::unwind::deadline::Deadline;
use hashbrown::HashSet;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind,
    Register,
};
use std::ops::Range;

/// Code that is looked at, with what is known of where functions begin.
pub(super) struct Region<'c> {
    decoder: Decoder<'c>,
    pub(super) range: Range<u64>,
    info: InstructionInfoFactory,
    /// Where functions begin, for certain.
    pub(super) entries: Places,
    /// What never returns to its caller: functions, and slots of functions elsewhere.
    endless: HashSet<u64>,
    /// Instructions that may still be looked at.
    pub(super) instructions_left: u64,
    /// Of the function that is followed.
    pub(super) nodes: Nodes,
    pub(super) deadline: Option<Deadline>,
    /// It is over: no instruction is left then.
    pub(super) is_late: bool,
}

/// What was found of one function.
#[derive(Debug, Default)]
pub(super) struct Function {
    /// The instructions, in any order: where each lies and the state before it.
    pub(super) code: Vec<(Range<u64>, State)>,
    /// Functions that it calls or jumps to.
    pub(super) callees: Vec<u64>,
    /// Functions that return to its own caller.
    pub(super) tails: Vec<u64>,
    /// Code whose address it takes.
    pub(super) pointers: Vec<u64>,
    /// Jumps to places that are not known.
    pub(super) switches: Vec<(u64, State)>,
    /// True if it returns to its caller, which shows that all of it was understood.
    pub(super) returns: bool,
    /// True if it keeps registers of its caller.
    pub(super) saves: bool,
    /// True if it calls another where the stack is not aligned to 16 bytes, as every function finds it (System V
    /// ABI for x86-64, section 3.2.2): its frame is another one than was taken for it, as that of a cold block
    /// which is taken for a function.
    pub(super) misaligned: bool,
    /// True if it leaves a frame that it did not make: it is the end of functions that jump to it (V8's
    /// `BaselineLeaveFrame`), and nobody calls it.
    pub(super) leaves_other: bool,
    /// True if it may go on elsewhere, and return from there.
    goes_on: bool,
}

/// Why a function gives nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It cannot be one.
    Contradiction,
    /// A limit.
    Limit,
}

/// A contradiction at this instruction.
struct Wrong {
    at: u64,
}

impl<'c> Region<'c> {
    pub(super) fn new(start: u64, bytes: &'c [u8], instructions_left: u64) -> Self {
        let range = start..start.saturating_add(bytes.len() as u64);
        Self {
            decoder: Decoder::with_ip(64, bytes, start, DecoderOptions::NONE),
            info: InstructionInfoFactory::new(),
            entries: Places::new(&range),
            endless: HashSet::new(),
            instructions_left,
            nodes: Nodes::new(&range),
            deadline: None,
            is_late: false,
            range,
        }
    }

    /// The instruction at an address; none if it is no valid one, or not whole in the region.
    pub(super) fn decode(&mut self, at: u64) -> Option<Instruction> {
        let into = usize::try_from(at.checked_sub(self.range.start)?).ok()?;
        if self.instructions_left.is_multiple_of(UNWIND_DEADLINE_INSTRUCTIONS)
            && self.deadline.is_some_and(Deadline::is_over)
        {
            (self.instructions_left, self.is_late) = (0, true);
        }
        self.instructions_left = self.instructions_left.checked_sub(1)?;
        self.decoder.set_position(into).ok()?;
        self.decoder.set_ip(at);
        self.decoder.can_decode().then_some(())?;
        let code = self.decoder.decode();
        (!code.is_invalid()).then_some(code)
    }

    /// Follows a function from `seed`.
    pub(super) fn function(&mut self, seed: u64, state: State) -> Result<Function, Refusal> {
        let mut cuts = HashSet::new();
        loop {
            self.nodes.clear();
            let mut walk = Walk {
                region: self,
                seed,
                within: state == State::WITHIN,
                cuts: &cuts,
                sure: Vec::new(),
                behind_calls: Vec::new(),
                found: Function::default(),
            };
            match walk.run(state) {
                Ok(()) => {
                    let found = walk.finish();
                    if state == State::ENTRY && !found.returns && !found.goes_on {
                        self.endless.insert(seed);
                    }
                    return Ok(found);
                }
                Err(wrong) => {
                    if walk.region.instructions_left == 0
                        || walk.region.nodes.is_full()
                        || cuts.len() >= UNWIND_CODE_CUTS_MAX
                    {
                        return Err(Refusal::Limit);
                    }
                    let call = walk.region.nodes.call_before(wrong.at);
                    let call = call.ok_or(Refusal::Contradiction)?;
                    cuts.insert(call);
                }
            }
        }
    }
}

struct Walk<'r, 'c> {
    region: &'r mut Region<'c>,
    seed: u64,
    /// It begins in the frame of others.
    within: bool,
    /// Calls that do not return.
    cuts: &'r HashSet<u64>,
    /// To be looked at; what lies behind calls comes last, so that other ways there are known before.
    sure: Vec<u64>,
    behind_calls: Vec<(u64, u64, State)>,
    found: Function,
}

impl Walk<'_, '_> {
    fn run(&mut self, state: State) -> Result<(), Wrong> {
        self.reach(self.seed, self.seed, state, false)?;
        loop {
            while let Some(at) = self.sure.pop() {
                self.look(at)?;
            }
            let Some((from, at, state)) = self.behind_calls.pop() else { return Ok(()) };
            self.reach(from, at, state, true)?;
        }
    }

    /// Control goes from one instruction to another, with this state.
    fn reach(&mut self, from: u64, at: u64, state: State, call: bool) -> Result<(), Wrong> {
        let nodes = &mut self.region.nodes;
        let Some(node) = nodes.get(at) else {
            let before = if call { Some(from) } else { nodes.call_before(from) };
            let node = Node { at, state, length: 0, call: before, behind_call: call };
            if !nodes.insert(node) {
                return Err(Wrong { at: from });
            }
            self.sure.push(at);
            return Ok(());
        };
        if node.state == state {
            return Ok(());
        }
        if let (Value::Frame(before), Value::Frame(now)) = (node.state.sp, state.sp)
            && before != now
        {
            // Of two ways that disagree, the one behind a call is none. The other one was followed to its
            // end before.
            if call {
                return Ok(());
            }
            if node.behind_call {
                return Err(Wrong { at });
            }
            let call = nodes.call_before(from);
            if call.is_some() && call != node.call {
                return Err(Wrong { at: from });
            }
        }
        let Some(node) = nodes.get_mut(at) else { return Ok(()) };
        let joined = node.state.join(state);
        if joined != node.state {
            node.state = joined;
            self.sure.push(at);
        }
        Ok(())
    }

    /// Takes one instruction.
    fn look(&mut self, at: u64) -> Result<(), Wrong> {
        let Some(code) = self.region.decode(at) else { return Err(Wrong { at }) };
        let Some(node) = self.region.nodes.get_mut(at) else { return Ok(()) };
        node.length = u8::try_from(code.len()).unwrap_or(u8::MAX);
        let before = node.state;
        // Who leaves the frame of others may take what they were called with off the stack, too.
        if let Value::Frame(depth) = before.sp
            && depth < 8
            && !self.within
        {
            return Err(Wrong { at });
        }
        let mut state = before;
        match code.flow_control() {
            FlowControl::Return => return self.leave(at, &code, before),
            FlowControl::UnconditionalBranch => {
                return self.jump(at, code.near_branch_target(), before);
            }
            FlowControl::IndirectBranch => return self.jump_indirectly(at, &code, before),
            FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend
                if code.op0_kind() == OpKind::NearBranch64 =>
            {
                self.jump(at, code.near_branch_target(), before)?;
            }
            FlowControl::Exception | FlowControl::Interrupt => return Ok(()),
            FlowControl::Call | FlowControl::IndirectCall => return self.call(at, &code, state),
            _ if code.mnemonic() == Mnemonic::Hlt => return Ok(()),
            _ => {}
        }
        state.step(&code, &mut self.region.info);
        self.found.leaves_other |= state.leaves_other_frame(&before, &code);
        if code.mnemonic() == Mnemonic::Lea && code.is_ip_rel_memory_operand() {
            self.found.pointers.push(code.ip_rel_memory_address());
        }
        self.found.saves |= before == State::ENTRY
            && code.mnemonic() == Mnemonic::Push
            && matches!(
                code.op0_register(),
                Register::RBX
                    | Register::RBP
                    | Register::R12
                    | Register::R13
                    | Register::R14
                    | Register::R15
            );
        self.fall(at, code.next_ip(), state)
    }

    /// On to the next instruction.
    fn fall(&mut self, at: u64, next: u64, state: State) -> Result<(), Wrong> {
        if next != self.seed && self.region.entries.contains(next) {
            return self.tail(at, next, state);
        }
        self.reach(at, next, state, false)
    }

    fn jump(&mut self, at: u64, target: u64, state: State) -> Result<(), Wrong> {
        if !self.region.range.contains(&target) {
            self.found.goes_on = true;
            return Ok(());
        }
        self.fall(at, target, state)
    }

    /// To another function, which returns to this one's caller.
    fn tail(&mut self, at: u64, target: u64, state: State) -> Result<(), Wrong> {
        if matches!(state.sp, Value::Frame(_)) && !state.is_unwound() {
            return Err(Wrong { at });
        }
        self.found.callees.push(target);
        if state.is_unwound() {
            self.found.tails.push(target);
        }
        self.found.goes_on |= !self.region.endless.contains(&target);
        Ok(())
    }

    fn jump_indirectly(&mut self, at: u64, code: &Instruction, state: State) -> Result<(), Wrong> {
        if code.op0_kind() == OpKind::Register
            && let Value::Address(target) = state.get(code.op0_register())
        {
            self.found.callees.push(target);
            return self.jump(at, target, state);
        }
        self.found.goes_on = true;
        // Through one slot of a table of functions.
        if !code.is_ip_rel_memory_operand() {
            self.found.switches.push((at, state));
        }
        Ok(())
    }

    fn call(&mut self, at: u64, code: &Instruction, mut state: State) -> Result<(), Wrong> {
        let next = code.next_ip();
        let callee = callee(code);
        if code.op0_kind() == OpKind::NearBranch64 {
            self.found.callees.extend(callee);
        }
        if let Value::Frame(depth) = state.sp {
            self.found.misaligned |= depth % 16 != 0;
        }
        state.step(code, &mut self.region.info);
        let entered = next != self.seed && self.region.entries.contains(next);
        // A call of what follows pushes an address, or does not return.
        let endless = callee.is_some_and(|to| to == next || self.region.endless.contains(&to));
        if !entered && !endless && !self.cuts.contains(&at) {
            self.behind_calls.push((at, next, state));
        }
        Ok(())
    }

    fn leave(&mut self, at: u64, code: &Instruction, state: State) -> Result<(), Wrong> {
        self.found.goes_on = true;
        let Value::Frame(_) = state.sp else { return Ok(()) };
        if !state.is_unwound() || code.mnemonic() != Mnemonic::Ret {
            return Err(Wrong { at });
        }
        self.found.returns = true;
        Ok(())
    }

    fn finish(self) -> Function {
        let mut found = self.found;
        let range = |node: &Node| node.at..node.at.saturating_add(u64::from(node.length));
        found.code = self.region.nodes.iter().map(|node| (range(node), node.state)).collect();
        found
    }
}

/// What a call calls: a function, or the slot where its address stands.
fn callee(code: &Instruction) -> Option<u64> {
    if code.is_ip_rel_memory_operand() {
        return Some(code.ip_rel_memory_address());
    }
    let direct = code.mnemonic() == Mnemonic::Call && code.op0_kind() == OpKind::NearBranch64;
    direct.then(|| code.near_branch_target())
}
