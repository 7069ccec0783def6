//! Small pieces of code, each instruction with its bytes and the row that must hold before it: `sp+16` is a CFA of
//! rsp + 16, `rbp-16` behind it says that the caller's rbp lies at CFA - 16, `-` that there is no row.

use super::flow::Region;
use super::places::Places;
use super::{Canvas, Search};
use crate::unwind::deadline::Deadline;
use agent_ebpf::{RuleKind, UnwindRule};

const START: u64 = 0x1000;

/// Instruction, bytes, row.
type Line<'a> = (&'a str, &'a [u8], &'a str);

fn text(rule: Option<UnwindRule>) -> String {
    let Some(rule) = rule else { return "-".to_owned() };
    let base = match rule.kind {
        kind if kind == RuleKind::RspOffset as u8 => "sp",
        kind if kind == RuleKind::RbpOffset as u8 => "bp",
        _ => "other",
    };
    let rbp = match rule.rbp {
        0 => String::new(),
        words => format!(" rbp{}", i32::from(words) * 8),
    };
    format!("{base}+{}{rbp}", rule.offset)
}

/// The function at the start is known, the others have to be found.
fn check(lines: &[Line<'_>]) {
    check_from(START, lines);
}

/// As `check`; the function at `known` is known.
fn check_from(known: u64, lines: &[Line<'_>]) {
    let code: Vec<u8> = lines.iter().flat_map(|(_, bytes, _)| bytes.iter().copied()).collect();
    let mut region = Region::new(START, &code, 10_000);
    region.entries.insert(known);
    let mut canvas = Canvas::new(&region.range);
    Search::new(&mut region, &mut canvas).run();
    let rows = canvas.rows();
    let mut at = START;
    for (instruction, bytes, expected) in lines {
        let row = rows.partition_point(|&(start, _)| start <= at).checked_sub(1);
        let found = text(row.and_then(|row| rows[row].1));
        assert_eq!(found, *expected, "{at:#x}: {instruction}");
        at += bytes.len() as u64;
    }
}

#[test]
fn pushes_and_room_for_variables() {
    check(&[
        ("push %rbp", &[0x55], "sp+8"),
        ("push %rbx", &[0x53], "sp+16"),
        ("sub $0x18,%rsp", &[0x48, 0x83, 0xec, 0x18], "sp+24"),
        ("mov %rdi,%rbp", &[0x48, 0x89, 0xfd], "sp+48"),
        ("call *%rax", &[0xff, 0xd0], "sp+48 rbp-16"),
        ("add $0x18,%rsp", &[0x48, 0x83, 0xc4, 0x18], "sp+48 rbp-16"),
        ("pop %rbx", &[0x5b], "sp+24 rbp-16"),
        ("pop %rbp", &[0x5d], "sp+16 rbp-16"),
        ("ret", &[0xc3], "sp+8"),
    ]);
}

#[test]
fn frames_by_rbp_that_are_aligned_and_grow() {
    check(&[
        ("push %rbp", &[0x55], "sp+8"),
        ("mov %rsp,%rbp", &[0x48, 0x89, 0xe5], "sp+16"),
        ("and $-32,%rsp", &[0x48, 0x83, 0xe4, 0xe0], "bp+16 rbp-16"),
        ("sub %rax,%rsp", &[0x48, 0x29, 0xc4], "bp+16 rbp-16"),
        ("call *%rax", &[0xff, 0xd0], "bp+16 rbp-16"),
        ("leave", &[0xc9], "bp+16 rbp-16"),
        ("ret", &[0xc3], "sp+8"),
    ]);
}

#[test]
fn both_ways_of_a_branch() {
    check(&[
        ("test %edi,%edi", &[0x85, 0xff], "sp+8"),
        ("je cold", &[0x74, 0x08], "sp+8"),
        ("sub $8,%rsp", &[0x48, 0x83, 0xec, 0x08], "sp+8"),
        ("add $8,%rsp", &[0x48, 0x83, 0xc4, 0x08], "sp+16"),
        ("cold: ret", &[0xc3], "sp+8"),
    ]);
}

#[test]
fn ways_that_disagree_have_no_row() {
    check(&[
        ("push %rbx", &[0x53], "sp+8"),
        ("test %edi,%edi", &[0x85, 0xff], "sp+16"),
        ("je join", &[0x74, 0x01], "sp+16"),
        ("push %rax", &[0x50], "sp+16"),
        ("join: xor %eax,%eax", &[0x31, 0xc0], "-"),
        ("jmp *%rax", &[0xff, 0xe0], "-"),
    ]);
}

/// What lies behind such a call is another function's.
#[test]
fn calls_that_never_return() {
    check(&[
        ("push %rbx", &[0x53], "sp+8"),
        ("test %edi,%edi", &[0x85, 0xff], "sp+16"),
        ("je fail", &[0x74, 0x02], "sp+16"),
        ("pop %rbx", &[0x5b], "sp+16"),
        ("ret", &[0xc3], "sp+8"),
        ("fail: call *%rax", &[0xff, 0xd0], "sp+16"),
        ("other: push %rcx", &[0x51], "sp+8"),
        ("pop %rcx", &[0x59], "sp+16"),
        ("ret", &[0xc3], "sp+8"),
    ]);
}

#[test]
fn targets_of_a_jump_through_a_table() {
    check(&[
        ("push %rbx", &[0x53], "sp+8"),
        ("jmp *%rax", &[0xff, 0xe0], "sp+16"),
        ("xor %eax,%eax", &[0x31, 0xc0], "sp+16"),
        ("pop %rbx", &[0x5b], "sp+16"),
        ("ret", &[0xc3], "sp+8"),
        ("mov $1,%eax", &[0xb8, 1, 0, 0, 0], "sp+16"),
        ("pop %rbx", &[0x5b], "sp+16"),
        ("ret", &[0xc3], "sp+8"),
    ]);
}

/// As musl begins a program: the jump goes to code that nothing names.
#[test]
fn jumps_to_an_address_that_was_taken() {
    check(&[
        ("push %rbx", &[0x53], "sp+8"),
        ("lea there(%rip),%rax", &[0x48, 0x8d, 0x05, 0x03, 0, 0, 0], "sp+16"),
        ("pop %rbx", &[0x5b], "sp+16"),
        ("jmp *%rax", &[0xff, 0xe0], "sp+8"),
        ("there: push %rbx", &[0x53], "sp+8"),
        ("call *%rdi", &[0xff, 0xd7], "sp+16"),
        ("hlt", &[0xf4], "sp+16"),
    ]);
}

/// Its caller's rows may need rbp.
#[test]
fn a_lost_rbp_has_no_row() {
    check(&[
        ("push %rbx", &[0x53], "sp+8"),
        ("xor %ebp,%ebp", &[0x31, 0xed], "sp+16"),
        ("call *%rax", &[0xff, 0xd0], "-"),
        ("hlt", &[0xf4], "-"),
    ]);
}

/// Code that pops what it did not push was not called: a coroutine's, a virtual machine's.
#[test]
fn code_that_nobody_calls_has_no_row() {
    check(&[
        ("pop %rbx", &[0x5b], "-"),
        ("pop %rcx", &[0x59], "-"),
        ("jmp *%rcx", &[0xff, 0xe1], "-"),
        ("jmp *(%rbp)", &[0xff, 0x65, 0x00], "-"),
    ]);
}

#[test]
fn a_stack_pointer_kept_in_another_register() {
    check(&[
        ("mov %rsp,%r11", &[0x49, 0x89, 0xe3], "sp+8"),
        ("sub $0x40,%rsp", &[0x48, 0x83, 0xec, 0x40], "sp+8"),
        ("mov %rdi,(%rsp)", &[0x48, 0x89, 0x3c, 0x24], "sp+72"),
        ("lea 0(%r11),%rsp", &[0x49, 0x8d, 0x63, 0x00], "sp+72"),
        ("ret", &[0xc3], "sp+8"),
    ]);
}

/// V8's code for functions that it compiled in haste jumps to their common end (`Builtins_BaselineLeaveFrame` of Node.js
/// 20), which leaves their frame.
#[test]
fn the_end_of_other_functions_has_their_frame() {
    check(&[
        ("mov -0x10(%rbp),%r8", &[0x4c, 0x8b, 0x45, 0xf0], "bp+16 rbp-16"),
        ("push %rbx", &[0x53], "bp+16 rbp-16"),
        ("call *%rax", &[0xff, 0xd0], "bp+16 rbp-16"),
        ("pop %rbx", &[0x5b], "bp+16 rbp-16"),
        ("mov %rbp,%rsp", &[0x48, 0x89, 0xec], "bp+16 rbp-16"),
        ("pop %rbp", &[0x5d], "bp+16 rbp-16"),
        ("pop %r8", &[0x41, 0x58], "sp+8"),
        ("lea (%rsp,%rbx,8),%rsp", &[0x48, 0x8d, 0x24, 0xdc], "-"),
        ("push %r8", &[0x41, 0x50], "-"),
        ("ret", &[0xc3], "-"),
    ]);
    check(&[
        ("mov %rdi,%rax", &[0x48, 0x89, 0xf8], "bp+16 rbp-16"),
        ("leave", &[0xc9], "bp+16 rbp-16"),
        ("ret", &[0xc3], "sp+8"),
    ]);
}

/// A block that compilers move away from its function, because it is seldom reached: its frame is that of the
/// function, which nobody can know, and it ends in a call that does not return, right before another function.
#[test]
fn a_cold_block_is_not_taken_for_a_function() {
    let lines: [Line<'_>; 7] = [
        ("mov $1,%edi", &[0xbf, 1, 0, 0, 0], "-"),
        ("call *0x2000(%rip)", &[0xff, 0x15, 0, 0x20, 0, 0], "-"),
        ("nopl 0(%rax,%rax)", &[0x0f, 0x1f, 0x44, 0, 0], "-"),
        ("push %rbx", &[0x53], "sp+8"),
        ("call *%rax", &[0xff, 0xd0], "sp+16"),
        ("pop %rbx", &[0x5b], "sp+16"),
        ("ret", &[0xc3], "sp+8"),
    ];
    // Nobody names it; its name is that of a function; the function behind is known.
    [0, START, START + 0x10].into_iter().for_each(|known| check_from(known, &lines));
}

/// Code that is made to be followed at length: 32,000 instructions in a row, and as many jumps into them from a frame
/// that disagrees, none of them behind a call. What is looked up grows as the code does.
#[test]
fn hostile_code_costs_no_more_for_each_instruction() {
    const WAYS: usize = 32_000;
    // cmp $1,%edi; je the second way
    let mut code = vec![0x83, 0xff, 0x01, 0x0f, 0x84];
    code.extend(u32::try_from(WAYS + 2).unwrap().to_le_bytes());
    let row = code.len();
    code.extend([0xf5; WAYS]); // cmc
    code.extend([0xff, 0xe0]); // jmp *%rax
    code.push(0x50); // push %rax
    for way in 0..WAYS {
        let target = i64::try_from(row + way).unwrap() - i64::try_from(code.len() + 6).unwrap();
        code.extend([0x0f, 0x84]); // je
        code.extend(i32::try_from(target).unwrap().to_le_bytes());
    }
    code.extend([0xff, 0xe0]);
    let mut region = Region::new(START, &code, 10_000_000);
    region.entries.insert(START);
    let mut canvas = Canvas::new(&region.range);
    Search::new(&mut region, &mut canvas).run();
    let looked_at = 10_000_000 - region.instructions_left;
    let asked = region.nodes.asked.get();
    assert!(looked_at >= 2 * WAYS as u64, "{looked_at}");
    assert!(asked <= 8 * looked_at, "{asked} look-ups for {looked_at} instructions");
}

#[test]
fn places_are_those_inside_of_the_region() {
    let mut places = Places::new(&(START..START + 130));
    for at in [0, START - 1, START, START + 63, START + 64, START + 129, START + 130, u64::MAX] {
        places.insert(at);
    }
    let inside = [START, START + 63, START + 64, START + 129];
    assert_eq!(places.iter().collect::<Vec<_>>(), inside);
    assert!(inside.into_iter().all(|at| places.contains(at)));
    assert!([START + 1, START + 130, 0].into_iter().all(|at| !places.contains(at)));
}

#[test]
fn code_is_followed_no_longer_than_the_file_has_time() {
    let code = [0x53, 0x5b, 0xc3]; // push %rbx; pop %rbx; ret
    let mut region = Region::new(START, &code, 1 << 20);
    region.deadline = Some(Deadline::after(0));
    region.entries.insert(START);
    let mut canvas = Canvas::new(&region.range);
    let mut search = Search::new(&mut region, &mut canvas);
    search.run();
    assert!(search.limited);
    assert_eq!((region.instructions_left, region.is_late), (0, true));
    assert!(canvas.rows().iter().all(|row| row.1.is_none()));
}
