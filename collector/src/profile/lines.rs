//! The lines of one location. Nearly every location has one: it takes no memory of its own.

use super::LineDef;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Lines, innermost (inlined) first.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Lines(Held);

/// Each number of lines has one form, so that equal lines are equal.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
enum Held {
    #[default]
    None,
    One(LineDef),
    Many(Vec<LineDef>),
}

impl Lines {
    /// Adds one behind the others.
    pub fn push(&mut self, line: LineDef) {
        self.0 = match std::mem::take(&mut self.0) {
            Held::None => Held::One(line),
            Held::One(first) => Held::Many(vec![first, line]),
            Held::Many(mut lines) => {
                lines.push(line);
                Held::Many(lines)
            }
        };
    }
}

impl Deref for Lines {
    type Target = [LineDef];

    fn deref(&self) -> &[LineDef] {
        match &self.0 {
            Held::None => &[],
            Held::One(line) => std::slice::from_ref(line),
            Held::Many(lines) => lines,
        }
    }
}

impl DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [LineDef] {
        match &mut self.0 {
            Held::None => &mut [],
            Held::One(line) => std::slice::from_mut(line),
            Held::Many(lines) => lines,
        }
    }
}

impl From<LineDef> for Lines {
    fn from(line: LineDef) -> Self {
        Self(Held::One(line))
    }
}

impl FromIterator<LineDef> for Lines {
    fn from_iter<I: IntoIterator<Item = LineDef>>(lines: I) -> Self {
        let mut all = Self::default();
        lines.into_iter().for_each(|line| all.push(line));
        all
    }
}

impl<'a> IntoIterator for &'a Lines {
    type Item = &'a LineDef;
    type IntoIter = std::slice::Iter<'a, LineDef>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_lines_stays_in_order() {
        let line = |function| LineDef { function, line: 1 };
        for count in 0..4 {
            let expected: Vec<LineDef> = (0..count).map(line).collect();
            let mut lines: Lines = expected.iter().copied().collect();
            assert_eq!(*lines, *expected);
            lines.iter_mut().for_each(|line| line.line = 2);
            assert!(lines.iter().all(|line| line.line == 2));
        }
    }
}
