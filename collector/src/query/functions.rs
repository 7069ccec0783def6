//! Functions in answers: where their names come from, and the order of the top table.

use super::{FunctionInfo, FunctionRow, Overflow};
use proto::FrameKind;
use std::cmp::Ordering;

/// Names of the functions that a merge speaks of, by the engine's own numbers.
pub trait FunctionNames {
    /// What to show of it.
    fn info(&self, function: u32) -> FunctionInfo;
    /// Its identity, the same in every engine: the last tie-break of every order.
    fn identity(&self, function: u32) -> u128;
    /// True if it is no code, but says something about the stack.
    fn is_marker(&self, function: u32) -> bool {
        self.info(function).kind == FrameKind::Marker
    }
    /// The order of two functions: by all that is shown of them, then by identity.
    fn compare(&self, a: u32, b: u32) -> Ordering {
        (self.info(a), self.identity(a)).cmp(&(self.info(b), self.identity(b)))
    }
}

/// The rows with the largest self values: self, then total, then names decide.
///
/// # Errors
/// If a value of any function left 64 bits, shown or not: the answer must not depend on `limit`.
pub fn rows_by_self(
    values: impl IntoIterator<Item = (u32, i128, i128)>,
    names: &dyn FunctionNames,
    limit: usize,
) -> Result<Vec<FunctionRow>, Overflow> {
    let narrow = |value| Overflow::check(value, "a function");
    let mut rows = Vec::new();
    for (function, self_value, total) in values {
        rows.push((narrow(self_value)?, narrow(total)?, function));
    }
    let order = |a: &(i64, i64, u32), b: &(i64, i64, u32)| {
        (b.0, b.1).cmp(&(a.0, a.1)).then_with(|| names.compare(a.2, b.2))
    };
    if limit < rows.len() {
        rows.select_nth_unstable_by(limit, order);
        rows.truncate(limit);
    }
    rows.sort_unstable_by(order);
    let row = |(self_value, total, function)| FunctionRow {
        function: names.info(function),
        self_value,
        total,
    };
    Ok(rows.into_iter().map(row).collect())
}
