//! The instructions of one function that were reached, found by their addresses. What costs the same for each
//! instruction, whatever the code is like: whoever makes a file chooses the way through it.

use super::state::State;
use crate::limits::UNWIND_CODE_FUNCTION_INSTRUCTIONS_MAX;
use std::ops::Range;

/// One instruction that was reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) at: u64,
    pub(super) state: State,
    pub(super) length: u8,
    /// The last call on the way on which it was first reached.
    pub(super) call: Option<u64>,
    /// True if it was reached from that call, which may never return.
    pub(super) behind_call: bool,
}

/// All of them, in the order in which they were reached. Used for one function after the other.
#[derive(Debug)]
pub(super) struct Nodes {
    nodes: Vec<Node>,
    /// Of each address of the region: the number of the node there. What another function left here is the number of
    /// a node of another address or of none, so that nothing has to be cleared (Briggs and Torczon, An efficient
    /// representation for sparse sets).
    numbers: Vec<u16>,
    start: u64,
    /// Questions so far.
    #[cfg(test)]
    pub(super) asked: std::cell::Cell<u64>,
}

const _: () = assert!(UNWIND_CODE_FUNCTION_INSTRUCTIONS_MAX <= 1 << u16::BITS);

impl Nodes {
    pub(super) fn new(region: &Range<u64>) -> Self {
        // Control may reach the end of the region, where nothing can be looked at any more.
        let places = region.end.saturating_sub(region.start).saturating_add(1);
        Self {
            nodes: Vec::new(),
            numbers: vec![0; usize::try_from(places).unwrap_or(0)],
            start: region.start,
            #[cfg(test)]
            asked: std::cell::Cell::new(0),
        }
    }

    pub(super) fn clear(&mut self) {
        self.nodes.clear();
    }

    pub(super) fn is_full(&self) -> bool {
        self.nodes.len() >= UNWIND_CODE_FUNCTION_INSTRUCTIONS_MAX
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Node> {
        self.nodes.iter()
    }

    fn place(&self, at: u64) -> Option<usize> {
        usize::try_from(at.checked_sub(self.start)?).ok()
    }

    fn number(&self, at: u64) -> Option<usize> {
        #[cfg(test)]
        self.asked.set(self.asked.get() + 1);
        let number = usize::from(*self.numbers.get(self.place(at)?)?);
        (self.nodes.get(number)?.at == at).then_some(number)
    }

    pub(super) fn get(&self, at: u64) -> Option<&Node> {
        self.nodes.get(self.number(at)?)
    }

    pub(super) fn get_mut(&mut self, at: u64) -> Option<&mut Node> {
        let number = self.number(at)?;
        self.nodes.get_mut(number)
    }

    /// The last call on the way on which an instruction was reached first.
    pub(super) fn call_before(&self, at: u64) -> Option<u64> {
        self.get(at)?.call
    }

    /// Adds one that is not among them. False if there are too many, or it lies outside of the region.
    pub(super) fn insert(&mut self, node: Node) -> bool {
        let (Some(place), false) = (self.place(node.at), self.is_full()) else { return false };
        let Ok(number) = u16::try_from(self.nodes.len()) else { return false };
        let Some(slot) = self.numbers.get_mut(place) else { return false };
        *slot = number;
        self.nodes.push(node);
        true
    }
}
