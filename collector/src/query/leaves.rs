//! Values of a label as innermost frames of their stacks: what kept a thread off the CPU stands below the call
//! that it waited in. Such a frame is no code: its kind is the marker's, its module the label's name.

use super::{FunctionInfo, FunctionNames};
use crate::limits;
use hashbrown::HashMap;
use proto::FrameKind;
use std::cmp::Ordering;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// Functions of engines have smaller numbers.
const FIRST: u32 = 1 << 31;

/// What stands for the values beyond [`limits::LEAF_VALUES_MAX`].
const OTHERS: &str = "other values";

/// The values of one label in an answer, numbered.
#[derive(Debug)]
pub struct Leaves {
    label: Arc<str>,
    values: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
}

impl Leaves {
    /// No values yet.
    #[must_use]
    pub fn new(label: &str) -> Self {
        Self { label: Arc::from(label), values: vec![], numbers: HashMap::new() }
    }

    /// The function number of a value; that of "other values" where there are too many.
    pub fn number(&mut self, value: &str) -> u32 {
        if let Some(&number) = self.numbers.get(value) {
            return number;
        }
        if self.values.len() >= limits::LEAF_VALUES_MAX {
            return self.others();
        }
        self.push(value)
    }

    fn others(&mut self) -> u32 {
        self.numbers.get(OTHERS).copied().unwrap_or_else(|| self.push(OTHERS))
    }

    fn push(&mut self, value: &str) -> u32 {
        let number = FIRST.saturating_add(u32::try_from(self.values.len()).unwrap_or(u32::MAX));
        let value = Arc::<str>::from(value);
        self.values.push(Arc::clone(&value));
        self.numbers.insert(value, number);
        number
    }

    /// The frame of a value.
    #[must_use]
    pub fn info(label: &Arc<str>, value: &Arc<str>) -> FunctionInfo {
        let name = if value.is_empty() { format!("no {label}").into() } else { Arc::clone(value) };
        let (file, module) = (Arc::from(""), Arc::clone(label));
        FunctionInfo { name, file, line: 0, kind: FrameKind::Marker, module, named: true }
    }

    /// Its identity.
    #[must_use]
    pub fn identity(label: &str, value: &str) -> u128 {
        xxh3_128(format!("leaf {} {label}{value}", label.len()).as_bytes())
    }

    /// Names of functions and of these leaves.
    #[must_use]
    pub fn names<'a>(&'a self, functions: &'a dyn FunctionNames) -> impl FunctionNames + use<'a> {
        Named { leaves: self, functions }
    }
}

struct Named<'a> {
    leaves: &'a Leaves,
    functions: &'a dyn FunctionNames,
}

impl Named<'_> {
    fn value(&self, function: u32) -> Option<&Arc<str>> {
        self.leaves.values.get(function.checked_sub(FIRST)? as usize)
    }
}

impl FunctionNames for Named<'_> {
    fn info(&self, function: u32) -> FunctionInfo {
        match self.value(function) {
            Some(value) => Leaves::info(&self.leaves.label, value),
            None => self.functions.info(function),
        }
    }

    fn identity(&self, function: u32) -> u128 {
        match self.value(function) {
            Some(value) => Leaves::identity(&self.leaves.label, value),
            None => self.functions.identity(function),
        }
    }

    fn is_marker(&self, function: u32) -> bool {
        self.value(function).is_some() || self.functions.is_marker(function)
    }

    fn compare(&self, a: u32, b: u32) -> Ordering {
        match (self.value(a), self.value(b)) {
            (None, None) => self.functions.compare(a, b),
            _ => (self.info(a), self.identity(a)).cmp(&(self.info(b), self.identity(b))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_values_become_one() {
        let mut leaves = Leaves::new("thread.name");
        let numbers: Vec<u32> = (0..limits::LEAF_VALUES_MAX + 3)
            .map(|value| leaves.number(&value.to_string()))
            .collect();
        let max = limits::LEAF_VALUES_MAX;
        assert_eq!(numbers[max..], [numbers[max]; 3]);
        assert_ne!(numbers[max - 1], numbers[max]);
        assert_eq!(leaves.number("7"), numbers[7]);
        assert_eq!(&*leaves.values[max], OTHERS);
    }
}
