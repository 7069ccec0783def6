//! The walk over random and hostile tables and stacks: it ends, stays inside its bounds, and finds what a plain
//! evaluator finds, which shares nothing with it but the tables' meaning.

#![expect(
    clippy::cast_lossless,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "random words are cut to size"
)]

use super::search::{self, Tables};
use super::{Memory, Registers, Rules, Walk};
use crate::limits::{
    CHUNK_ROWS, CHUNKS_MAX, MAPPING_PAGES_MAX, MAPPINGS_PER_PAGE, USER_FRAMES_MAX,
};
use crate::{Chunk, MappingPage, MappingTarget, Outcome, ProcessEntry, RuleKind, UnwindRule};
use std::collections::BTreeMap;
use std::vec::Vec;
use std::{boxed::Box, eprintln, vec};

/// Worlds and stacks walked in each: a million walks in all.
const WORLDS: usize = 2_000;
const STACKS: usize = 500;
/// Worlds in which nothing is as it should be.
const HOSTILE_EVERY: usize = 4;
const STACK_START: u64 = 0x7000_0000_0000;
const STACK_WORDS: usize = 256;

/// xorshift64* (Vigna 2016).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A mapping as the evaluator knows it.
struct Plain {
    start: u64,
    end: u64,
    bias: u64,
    unwind: PlainUnwind,
}

enum PlainUnwind {
    Pending,
    Rule(UnwindRule),
    Rows(Vec<(u32, UnwindRule)>),
}

/// The tables of one process, in the layout of the maps, and the same for the evaluator.
struct World {
    process: ProcessEntry,
    pages: Vec<MappingPage>,
    page_starts: Box<[u64; MAPPING_PAGES_MAX]>,
    chunks: Vec<Chunk>,
    chunk_starts: Box<[u32; CHUNKS_MAX]>,
    rules: Vec<UnwindRule>,
    plain: Vec<Plain>,
}

impl Tables for World {
    fn page(&self, index: u64) -> Option<&MappingPage> {
        self.pages.get(usize::try_from(index).ok()?)
    }
    fn page_starts(&self) -> Option<&[u64; MAPPING_PAGES_MAX]> {
        Some(&self.page_starts)
    }
    fn chunk(&self, index: u64) -> Option<&Chunk> {
        self.chunks.get(usize::try_from(index).ok()?)
    }
    fn chunk_starts(&self) -> Option<&[u32; CHUNKS_MAX]> {
        Some(&self.chunk_starts)
    }
    fn rule(&self, number: u64) -> Option<UnwindRule> {
        self.rules.get(usize::try_from(number).ok()?).copied()
    }
}

impl Rules for World {
    fn rule_at(&self, pc: u64) -> Result<UnwindRule, Outcome> {
        search::rule_at(self, self.process, 0, pc)
    }
}

fn random_rule(random: &mut Random) -> UnwindRule {
    // The first of them is for the walk to go on, most of the time.
    let kind = if random.one_in(3) { 1 } else { random.below(15) };
    let wild = random.one_in(50);
    let mut number = |bound: u64, unit: i32| {
        let word = random.next();
        if wild { word as i32 } else { i32::try_from(word % bound).unwrap() * unit }
    };
    let (offset, addend) = (number(12, 8), number(16, 1));
    let rbp = i8::try_from(random.below(9)).unwrap() - 6;
    UnwindRule {
        kind: u8::try_from(kind).unwrap(),
        rbp,
        rbp_from_rbp: u8::from(random.one_in(6)),
        reserved: 0,
        offset,
        addend,
    }
}

impl World {
    fn empty() -> Self {
        Self {
            process: ProcessEntry::default(),
            pages: Vec::new(),
            page_starts: Box::new([0; MAPPING_PAGES_MAX]),
            chunks: Vec::new(),
            chunk_starts: Box::new([0; CHUNKS_MAX]),
            rules: vec![UnwindRule::plain(RuleKind::NoInfo)],
            plain: Vec::new(),
        }
    }

    /// Tables as the agent writes them.
    fn well_formed(random: &mut Random) -> Self {
        let mut world = Self::empty();
        for _ in 0..40 {
            let rule = random_rule(random);
            world.rules.push(rule);
        }
        let mappings = if random.one_in(4) { random.below(1000) } else { random.below(30) } + 1;
        let mut at = 0x40_0000 + random.below(1 << 20) * 16;
        for _ in 0..mappings {
            let length = 1 + random.below(0x8000);
            let bias = if random.one_in(3) { 0 } else { at - random.below(at) };
            let unwind = match random.below(12) {
                0 => PlainUnwind::Pending,
                1 => PlainUnwind::Rule(world.any_rule(random)),
                _ => PlainUnwind::Rows(world.random_rows(random, at - bias, length)),
            };
            world.plain.push(Plain { start: at, end: at + length, bias, unwind });
            at += length + if random.one_in(2) { 0 } else { random.below(1 << 16) };
        }
        world.publish(random);
        world
    }

    fn any_rule(&self, random: &mut Random) -> UnwindRule {
        self.rules[usize::try_from(random.below(self.rules.len() as u64)).unwrap()]
    }

    /// Rows around the keys `from` to `from + length`.
    fn random_rows(&self, random: &mut Random, from: u64, length: u64) -> Vec<(u32, UnwindRule)> {
        let many = random.one_in(60);
        let stride = if many { 3 } else { 1 + random.below(4000) };
        let mut rows = Vec::new();
        let mut at = from.saturating_sub(random.below(64));
        while at < from + length && at < u64::from(u32::MAX) && rows.len() < 3 * CHUNK_ROWS {
            rows.push((u32::try_from(at).unwrap(), self.any_rule(random)));
            at += 1 + random.below(stride);
        }
        rows
    }

    /// Writes the plain mappings into pages and chunks.
    fn publish(&mut self, random: &mut Random) {
        let first_page = usize::try_from(random.below(100)).unwrap();
        self.pages.resize(first_page, MappingPage::EMPTY);
        for part in self.plain.chunks(MAPPINGS_PER_PAGE) {
            let mut page = MappingPage::EMPTY;
            for (slot, mapping) in part.iter().enumerate() {
                page.starts[slot] = mapping.start;
                page.ends[slot] = mapping.end;
                page.biases[slot] = mapping.bias;
                page.targets[slot] = match &mapping.unwind {
                    PlainUnwind::Pending => MappingTarget::PENDING,
                    PlainUnwind::Rule(rule) => MappingTarget::rule(number_of(&self.rules, rule)),
                    PlainUnwind::Rows(rows) => {
                        write_rows(&mut self.chunks, &mut self.chunk_starts, &self.rules, rows)
                    }
                }
                .0;
            }
            self.page_starts[self.pages.len()] = page.starts[0];
            self.pages.push(page);
        }
        self.process = ProcessEntry {
            generation: 1,
            first_page: u16::try_from(first_page).unwrap(),
            pages: u16::try_from(self.pages.len() - first_page).unwrap(),
        };
    }

    /// Tables of nonsense.
    fn hostile(random: &mut Random) -> Self {
        let mut world = Self::well_formed(random);
        for _ in 0..1 + random.below(200) {
            let word = if random.one_in(2) { random.next() } else { random.below(1 << 47) };
            let page = usize::try_from(random.below(world.pages.len() as u64)).unwrap();
            let slot = usize::try_from(random.below(MAPPINGS_PER_PAGE as u64)).unwrap();
            let page = &mut world.pages[page];
            match random.below(8) {
                0 => page.starts[slot] = word,
                1 => page.ends[slot] = word,
                2 => page.biases[slot] = word,
                3 => page.targets[slot] = (word % 3) | (word & !0xffff),
                4 => page.targets[slot] = word,
                5 => world.page_starts[slot * 100] = word,
                6 => world.chunk_starts[slot * 100] = word as u32,
                _ => world.rules.push(UnwindRule {
                    kind: word as u8,
                    rbp: (word >> 8) as i8,
                    rbp_from_rbp: (word >> 16) as u8,
                    reserved: (word >> 24) as u8,
                    offset: (word >> 32) as i32,
                    addend: random.next() as i32,
                }),
            }
            if let Some(chunk) = world.chunks.last_mut() {
                let row = usize::try_from(random.below(CHUNK_ROWS as u64)).unwrap();
                chunk.pcs[row] = word as u32;
                chunk.rules[row] = word as u16;
                chunk.groups[row / 16] = (word >> 7) as u32;
                chunk.blocks[row / 256] = (word >> 9) as u32;
            }
        }
        if random.one_in(3) {
            let word = random.next();
            world.process =
                ProcessEntry { generation: 1, first_page: word as u16, pages: (word >> 16) as u16 };
        }
        world
    }
}

fn number_of(rules: &[UnwindRule], rule: &UnwindRule) -> u16 {
    u16::try_from(rules.iter().position(|one| one == rule).unwrap()).unwrap()
}

fn write_rows(
    chunks: &mut Vec<Chunk>,
    starts: &mut [u32; CHUNKS_MAX],
    rules: &[UnwindRule],
    rows: &[(u32, UnwindRule)],
) -> MappingTarget {
    let first = chunks.len();
    let lead = (rows.first().map(|row| row.0) != Some(0)).then_some((0, rules[0]));
    let rows: Vec<_> = lead.into_iter().chain(rows.iter().copied()).collect();
    for part in rows.chunks(CHUNK_ROWS) {
        let mut chunk = Chunk::EMPTY;
        for (row, (pc, rule)) in part.iter().enumerate() {
            chunk.pcs[row] = *pc;
            chunk.rules[row] = number_of(rules, rule);
        }
        chunk.index();
        starts[chunks.len()] = chunk.pcs[0];
        chunks.push(chunk);
    }
    let count = u16::try_from(chunks.len() - first).unwrap();
    MappingTarget::table(u16::try_from(first).unwrap(), count)
}

/// The memory of a thread.
struct Stack {
    words: Vec<u64>,
    code_seed: u64,
}

impl Stack {
    fn random(random: &mut Random, world: &World) -> Self {
        let word = |random: &mut Random| match random.below(16) {
            0 => 0,
            1 => random.next(),
            2..8 => STACK_START + random.below(STACK_WORDS as u64 + 4) * 8,
            _ => code_address(random, world),
        };
        let words = (0..STACK_WORDS).map(|_| word(random)).collect();
        Self { words, code_seed: random.next() }
    }

    /// A word at any address inside; the evaluator's way to read.
    fn word(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(STACK_START)?;
        let bytes = self.words.len() as u64 * 8;
        if offset.checked_add(8)? > bytes {
            return None;
        }
        let byte = |at: u64| {
            self.words[usize::try_from(at / 8).unwrap()].to_le_bytes()
                [usize::try_from(at % 8).unwrap()]
        };
        Some(u64::from_le_bytes(core::array::from_fn(|at| byte(offset + at as u64))))
    }
}

impl Memory for Stack {
    const CODE_MAY_BE_ABSENT: bool = true;

    fn read<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        let mut words = [0; N];
        for (at, word) in words.iter_mut().enumerate() {
            *word = self.word(address.wrapping_add(at as u64 * 8))?;
        }
        Some(words)
    }

    fn code(&self, address: u64) -> Option<u32> {
        let hash = (address ^ self.code_seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let known = [0x55, 0xc3, 0xfa1e_0ff3, 0x77e5_8948, 0x11ec_8b48, 0x5d, 0x9090_9090];
        (hash % 9 != 8).then(|| known.get((hash % 9) as usize).copied().unwrap_or(hash as u32))
    }

    fn code_before(&self, address: u64) -> Option<u64> {
        let hash = (address ^ self.code_seed).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let calls: [&[u8]; 6] = [
            &[0xe8, 1, 2, 3, 4],
            &[0xff, 0xd0],
            &[0xff, 0x50, 8],
            &[0xff, 0x54, 0x24, 8],
            &[0xff, 0x15, 1, 2, 3, 4],
            &[0xff, 0x94, 0x24, 1, 2, 3, 4],
        ];
        if (hash >> 32).is_multiple_of(8) {
            return Some(0); // its page is not there
        }
        let mut bytes = [0x90; 8];
        let call = calls.get((hash >> 40) as usize % 8).copied().unwrap_or(&[0x50]);
        bytes[8 - call.len()..].copy_from_slice(call);
        Some(u64::from_le_bytes(bytes))
    }
}

fn code_address(random: &mut Random, world: &World) -> u64 {
    let mapping = &world.plain[usize::try_from(random.below(world.plain.len() as u64)).unwrap()];
    let inside = mapping.start + random.below(mapping.end - mapping.start);
    if random.one_in(40) { mapping.end + random.below(2) } else { inside }
}

/// A frame as both sides see it.
type Seen = (u64, u64, u64, bool);

fn walked(world: &World, stack: &Stack, registers: &Registers) -> (Vec<Seen>, Outcome) {
    let mut walk = Walk { registers: *registers, ..Walk::default() };
    walk.begin();
    let mut frames = Vec::new();
    for _ in 0..USER_FRAMES_MAX {
        frames.push((walk.ip, walk.sp, walk.bp, walk.exact == 1));
        if let Err(outcome) = walk.step(stack, world) {
            if walk.is_unchecked() {
                frames.pop();
            }
            return (frames, outcome);
        }
    }
    (frames, Outcome::DepthLimit)
}

/// The plain evaluator.
struct Evaluator<'a> {
    world: &'a World,
    stack: &'a Stack,
    registers: &'a Registers,
    /// rbx and rsp of what was interrupted last.
    interrupted: (u64, u64),
    by_frame_pointer: bool,
    frames: Vec<Seen>,
}

impl Evaluator<'_> {
    fn run(mut self) -> (Vec<Seen>, Outcome) {
        let general = &self.registers.general;
        let mut next = Ok((self.registers.ip, general[7], general[6], true));
        loop {
            match next {
                Err(outcome) => return (self.frames, outcome),
                Ok(_) if self.frames.len() == USER_FRAMES_MAX => {
                    return (self.frames, Outcome::DepthLimit);
                }
                Ok(frame) => {
                    self.frames.push(frame);
                    next = self.rule(frame).and_then(|rule| self.caller(frame, rule));
                }
            }
        }
    }

    fn rule(&self, (ip, _, _, exact): Seen) -> Result<UnwindRule, Outcome> {
        let pc = if exact { ip } else { ip - 1 };
        let mapping = self.world.plain.iter().find(|one| one.start <= pc && pc < one.end);
        let mapping = mapping.ok_or(Outcome::MappingUnknown)?;
        match &mapping.unwind {
            PlainUnwind::Pending => Err(Outcome::TablePending),
            PlainUnwind::Rule(rule) => Ok(UnwindRule { reserved: 1, ..*rule }),
            PlainUnwind::Rows(rows) => {
                let key = pc - mapping.bias;
                let row = rows.iter().rev().find(|(start, _)| u64::from(*start) <= key);
                let known = row.filter(|_| key < u64::from(u32::MAX));
                Ok(known.map_or(UnwindRule::plain(RuleKind::NoInfo), |(_, rule)| *rule))
            }
        }
    }

    fn word(&self, address: u64) -> Result<u64, Outcome> {
        self.stack.word(address).ok_or(Outcome::StackUnreadable)
    }

    fn caller(&mut self, frame: Seen, rule: UnwindRule) -> Result<Seen, Outcome> {
        let (ip, sp, bp, exact) = frame;
        let innermost = self.frames.len() == 1;
        let offset = rule.offset as i64 as u64;
        let addend = rule.addend as i64 as u64;
        let register = || self.registers.general[rule.addend as usize & 15];
        let cfa = match rule.kind {
            0 | 9 if rule.addend == 0 => return self.by_frame_pointer(frame, rule),
            0 | 9 => {
                self.by_frame_pointer = false;
                let (saved, ip) = (self.word(bp)?, self.word(bp.wrapping_add(8))?);
                return checked(ip, 0, bp.wrapping_add(16), saved);
            }
            1 => sp.wrapping_add(offset),
            2 => bp.wrapping_add(offset),
            3 => sp.wrapping_add(if ip % 16 >= addend { 16 } else { 8 }),
            4 => self.word(bp.wrapping_add(offset))?.wrapping_add(addend),
            5 => self.word(sp.wrapping_add(offset))?.wrapping_add(addend),
            6 => return self.interrupted(sp.wrapping_add(offset)),
            7 => return Err(Outcome::Complete),
            10 if innermost => {
                let cfa = sp.wrapping_add(offset);
                let bp = self.saved(rule, cfa, bp)?;
                let below = if cfa == sp { sp.wrapping_sub(8) } else { sp };
                return checked(register(), below, cfa, bp);
            }
            11 if innermost => register().wrapping_add(offset),
            12 => {
                let (slot, (live, top)) = (sp.wrapping_add(offset), self.interrupted);
                let saved = !exact && slot >= top;
                if saved { self.word(slot)? } else { live }.wrapping_add(addend)
            }
            13 if innermost && self.registers.general[0] == 0 => return Err(Outcome::Complete),
            13 => sp.wrapping_add(offset),
            _ => return Err(Outcome::RuleUnsupported),
        };
        self.by_frame_pointer = false;
        let bp = self.saved(rule, cfa, bp)?;
        checked(self.word(cfa.wrapping_sub(8))?, sp, cfa, bp)
    }

    fn saved(&self, rule: UnwindRule, cfa: u64, bp: u64) -> Result<u64, Outcome> {
        let distance = (i64::from(rule.rbp) * 8) as u64;
        match (rule.rbp, rule.rbp_from_rbp) {
            (0, 0) => Ok(bp),
            (_, 0) => self.word(cfa.wrapping_add(distance)),
            _ => self.word(bp.wrapping_add(distance)),
        }
    }

    fn by_frame_pointer(&mut self, frame: Seen, rule: UnwindRule) -> Result<Seen, Outcome> {
        let certain = rule.kind == 9;
        let (ip, sp, bp, exact) = frame;
        let code = if exact { self.stack.code(ip) } else { None };
        let code = code.map(u32::to_le_bytes);
        let before = self.by_frame_pointer;
        match code {
            Some([0x55 | 0xc3, ..] | [0xf3, 0x0f, 0x1e, 0xfa]) => {
                let ip = self.word(sp)?;
                self.word(sp.wrapping_add(8))?; // the walk reads both
                self.by_frame_pointer = true;
                return checked(ip, sp, sp.wrapping_add(8), bp);
            }
            Some([0x5d, ..] | [0x48, 0x89, 0xe5, _] | [0x48, 0x8b, 0xec, _]) => {
                let (saved, ip) = (self.word(sp)?, self.word(sp.wrapping_add(8))?);
                self.by_frame_pointer = true;
                return checked(ip, sp, sp.wrapping_add(16), saved);
            }
            _ => {}
        }
        if bp == 0 && (certain || before) {
            return Err(Outcome::Complete);
        }
        if bp < sp || bp % 8 != 0 {
            return Err(Outcome::NoUnwindInfo);
        }
        let (saved, ip) = (self.word(bp)?, self.word(bp.wrapping_add(8))?);
        let asked = !certain && rule.reserved == 0 && ip != 0;
        if asked && !self.behind_call(ip) {
            return Err(Outcome::NoUnwindInfo);
        }
        self.by_frame_pointer = true;
        let caller = checked(ip, sp, bp.wrapping_add(16), saved)?;
        // Code that nobody can read is code if a table knows it.
        let asked = asked && self.frames.len() < USER_FRAMES_MAX;
        if asked && self.stack.code_before(ip) == Some(0) && self.rule(caller).is_err() {
            return Err(Outcome::NoUnwindInfo);
        }
        Ok(caller)
    }

    /// The stack's code is a call of a known form, or `push %rax`, or cannot be read.
    fn behind_call(&self, ip: u64) -> bool {
        self.stack.code_before(ip).unwrap().to_le_bytes()[7] != 0x50
    }

    fn interrupted(&mut self, context: u64) -> Result<Seen, Outcome> {
        for word in 0..7 {
            self.word(context.wrapping_add(120 + word * 8))?;
        }
        let ip = self.word(context.wrapping_add(168))?;
        if !(4096..1 << 56).contains(&ip) {
            return Err(Outcome::ReturnAddressInvalid);
        }
        self.by_frame_pointer = false;
        let (sp, bp) = (context.wrapping_add(160), context.wrapping_add(120));
        self.interrupted = (self.word(context.wrapping_add(128))?, self.word(sp)?);
        Ok((ip, self.word(sp)?, self.word(bp)?, true))
    }
}

fn checked(ip: u64, below: u64, sp: u64, bp: u64) -> Result<Seen, Outcome> {
    match ip {
        0 => Err(Outcome::Complete),
        4096..0x100_0000_0000_0000 if sp > below => Ok((ip, sp, bp, false)),
        4096..0x100_0000_0000_0000 => Err(Outcome::StackNotGrowing),
        _ => Err(Outcome::ReturnAddressInvalid),
    }
}

#[test]
fn a_million_walks_over_random_tables_find_what_a_plain_evaluator_finds() {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = clock.as_nanos() as u64 | 1;
    eprintln!("seed {seed}");
    let mut random = Random(seed);
    let mut outcomes = BTreeMap::new();
    let (mut frames, mut compared) = (0, 0);
    for number in 0..WORLDS {
        let hostile = number % HOSTILE_EVERY == 0;
        let world =
            if hostile { World::hostile(&mut random) } else { World::well_formed(&mut random) };
        for _ in 0..STACKS {
            let stack = Stack::random(&mut random, &world);
            let ip = code_address(&mut random, &world);
            let mut registers = Registers { ip, ..Registers::default() };
            registers.general = core::array::from_fn(|_| {
                STACK_START
                    + random.below(STACK_WORDS as u64) * if random.one_in(9) { 1 } else { 8 }
            });
            registers.general[0] = if random.one_in(4) { 0 } else { ip };
            registers.general[Registers::SP] = STACK_START + random.below(64) * 8;
            let found = walked(&world, &stack, &registers);
            frames += found.0.len();
            *outcomes.entry(found.1).or_insert(0) += 1;
            if !hostile {
                let plain = Evaluator {
                    world: &world,
                    stack: &stack,
                    registers: &registers,
                    interrupted: (registers.general[3], registers.general[7]),
                    by_frame_pointer: false,
                    frames: Vec::new(),
                };
                assert_eq!(found, plain.run(), "seed {seed}, world {number}");
                compared += 1;
            }
        }
    }
    eprintln!("{compared} compared, {frames} frames, {outcomes:?}");
    let rare =
        [Outcome::ProcessUnknown, Outcome::NoUserStack, Outcome::TimeLimit, Outcome::NotSampled];
    for outcome in Outcome::ALL.into_iter().filter(|outcome| !rare.contains(outcome)) {
        assert!(
            outcomes.get(&outcome).is_some_and(|count| *count > 0),
            "{outcome:?}: {outcomes:?}"
        );
    }
}
