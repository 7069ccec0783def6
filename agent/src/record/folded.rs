//! Folded stacks: `comm;root;…;leaf count`, one line for each distinct stack, sorted.

use super::Contents;
use crate::aggregate::{Code, Location, NamedWindow, StackIndex};
use crate::path::file_name;
use std::collections::BTreeMap;
use std::io::Write;

/// Writes a window as folded stacks: samples, or the microseconds of waits (preempted threads wait for
/// nothing and are left out). Inlined functions are frames of their own; kernel frames end in
/// `_[k]`; code without a name is `file+0xaddress`.
///
/// # Errors
/// If writing fails.
pub fn write_folded(
    window: &NamedWindow,
    contents: Contents,
    output: &mut impl Write,
) -> std::io::Result<()> {
    let frames: Vec<String> =
        window.locations.iter().map(|location| frames(window, location)).collect();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |thread_name: &str, stack: StackIndex, value: u64| {
        let mut line = clean(thread_name);
        for location in window.stack(stack).iter().rev() {
            line.push(';');
            line.push_str(&frames[location.0 as usize]);
        }
        let sum = counts.entry(line).or_default();
        *sum = sum.saturating_add(value);
    };
    for process in &window.processes {
        if contents == Contents::Cpu {
            let samples = process.samples.iter();
            samples.for_each(|it| add(&it.thread_name, it.stack, it.times.len() as u64));
            continue;
        }
        let waits = process.waits.iter().filter(|wait| wait.is_off_cpu());
        waits.for_each(|it| add(&it.thread_name, it.stack, it.sum.ns / 1_000));
    }
    counts.iter().try_for_each(|(line, count)| writeln!(output, "{line} {count}"))
}

/// The frames of one location, outermost first, joined.
fn frames(window: &NamedWindow, location: &Location) -> String {
    let mut frames: Vec<String> =
        location.lines.iter().rev().map(|line| clean(&line.function)).collect();
    if frames.is_empty() {
        frames.push(match (location.stand_in(&window.files), location.code) {
            (Some(text), _) => clean(&text),
            (None, Code::Native { file, address }) => {
                let name = file_name(&window.files[file as usize].path);
                format!("{}+{:#x}", clean(name), address.0)
            }
            (None, _) => "[unknown]".to_owned(),
        });
    }
    if matches!(location.code, Code::Kernel { .. }) {
        frames.iter_mut().for_each(|frame| frame.push_str("_[k]"));
    }
    frames.join(";")
}

/// Separators of the format cannot be part of a name.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c == ';' || c.is_control() { '_' } else { c }).collect()
}
