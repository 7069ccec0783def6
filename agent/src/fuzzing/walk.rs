//! The walk over tables, memory and registers that the bytes describe: a small world as the agent writes it,
//! then whatever the bytes write over it. The walk must end, stay in its bounds, and where the tables
//! are in order find the rule that a plain search finds.

use agent_ebpf::limits::{
    CHUNK_ROWS, CHUNKS_MAX, MAPPING_PAGES_MAX, MAPPINGS_PER_PAGE, USER_FRAMES_MAX,
};
use agent_ebpf::walk::search::{self, Tables};
use agent_ebpf::walk::{Memory, Registers, Rules, Walk};
use agent_ebpf::{Chunk, MappingPage, MappingTarget, Outcome, ProcessEntry, RuleKind, UnwindRule};

/// Where the stack and the code lie.
const STACK: u64 = 0x7000_0000_0000;
const CODE: u64 = 0x40_0000;
/// Parts of the world, small, so that a few bytes reach all of them.
const STACK_BYTES: usize = 512;
const CODE_BYTES: usize = 64;
const PAGES: usize = 3;
const CHUNKS: usize = 2;
const RULES: usize = 32;
/// Frames of a walk whose rules are searched for plainly too, which takes long.
const FRAMES_COMPARED: usize = 8;

/// Walks a stack.
pub fn walk(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let ordered = bytes.byte() & 1 == 0;
    let mut world = World::new();
    let mut registers = Registers { ip: CODE, ..Registers::default() };
    registers.general = [STACK; agent_ebpf::REGISTERS];
    while let Some(choice) = bytes.next() {
        world.change(choice, &mut bytes, &mut registers);
    }
    if ordered {
        world.put_in_order();
    }
    let mut walk = Walk::default();
    walk.registers = registers;
    walk.begin();
    for frame in 0..USER_FRAMES_MAX {
        let before = walk;
        let pc = walk.ip.wrapping_sub(u64::from(walk.exact ^ 1));
        if ordered && frame < FRAMES_COMPARED {
            assert_eq!(world.rule_at(pc), world.plain_rule(pc), "another rule at {pc:#x}");
        }
        let Err(outcome) = walk.step(&world, &world) else {
            assert!((4096..1 << 56).contains(&walk.ip), "{before:?} to {walk:?}");
            continue;
        };
        assert!(!matches!(outcome, Outcome::DepthLimit | Outcome::TimeLimit), "{outcome:?}");
        break;
    }
}

/// What is left of the input; zeros behind it.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    fn number<const N: usize>(&mut self) -> u64 {
        (0..N).fold(0, |number, at| number | u64::from(self.byte()) << (8 * at))
    }

    /// A word: any, one on the stack, one in the code, or a small one.
    fn word(&mut self) -> u64 {
        match self.byte() & 3 {
            0 => self.number::<8>(),
            1 => STACK.wrapping_add(self.number::<1>() * 4),
            2 => CODE.wrapping_add(self.number::<2>()),
            _ => i64::from(self.byte().cast_signed()).cast_unsigned(),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.number::<2>()).expect("two bytes") % bound
    }
}

/// The tables of one process and the memory of one thread.
struct World {
    process: ProcessEntry,
    pages: Vec<MappingPage>,
    page_starts: Box<[u64; MAPPING_PAGES_MAX]>,
    chunks: Vec<Chunk>,
    chunk_starts: Box<[u32; CHUNKS_MAX]>,
    /// The rows of each chunk, where they are in order.
    rows: [Vec<(u32, u16)>; CHUNKS],
    rules: Vec<UnwindRule>,
    mappings: usize,
    stack: [u8; STACK_BYTES],
    code: [u8; CODE_BYTES],
}

impl World {
    fn new() -> Self {
        Self {
            process: ProcessEntry { generation: 1, first_page: 0, pages: 1 },
            pages: vec![MappingPage::EMPTY; PAGES],
            page_starts: Box::new([0; MAPPING_PAGES_MAX]),
            chunks: vec![Chunk::EMPTY; CHUNKS],
            chunk_starts: Box::new([0; CHUNKS_MAX]),
            rows: [Vec::new(), Vec::new()],
            rules: vec![UnwindRule::plain(RuleKind::NoInfo); RULES],
            mappings: 0,
            stack: [0; STACK_BYTES],
            code: [0; CODE_BYTES],
        }
    }

    /// One change: of what an agent writes and a program holds, or of anything at all.
    fn change(&mut self, choice: u8, bytes: &mut Bytes<'_>, registers: &mut Registers) {
        match choice & 15 {
            0 | 1 => self.add_mapping(bytes),
            2 | 3 => {
                let chunk = &mut self.chunks[bytes.below(CHUNKS)];
                let row = bytes.below(CHUNK_ROWS);
                chunk.pcs[row] = low32(bytes.word().wrapping_sub(CODE));
                chunk.rules[row] = u16::from(bytes.byte());
            }
            4 | 5 => {
                self.rules[bytes.below(RULES)] = UnwindRule {
                    kind: bytes.byte() % 16,
                    rbp: bytes.byte().cast_signed(),
                    rbp_from_rbp: bytes.byte() & 3,
                    reserved: 0,
                    offset: low32(bytes.word()).cast_signed(),
                    addend: low32(bytes.word()).cast_signed(),
                }
            }
            6 => registers.general[bytes.below(agent_ebpf::REGISTERS)] = bytes.word(),
            7 => registers.ip = bytes.word(),
            8..12 => {
                let at = bytes.below(STACK_BYTES - 7);
                self.stack[at..at + 8].copy_from_slice(&bytes.word().to_le_bytes());
            }
            12 => self.code[bytes.below(CODE_BYTES)] = bytes.byte(),
            13 => self.chunks[bytes.below(CHUNKS)].index(),
            _ => self.spoil(bytes),
        }
    }

    /// The next mapping, in the next slot.
    fn add_mapping(&mut self, bytes: &mut Bytes<'_>) {
        let (page, slot) = (self.mappings / MAPPINGS_PER_PAGE, self.mappings % MAPPINGS_PER_PAGE);
        let Some(written) = self.pages.get_mut(page) else { return };
        let start = bytes.word();
        written.starts[slot] = start;
        written.ends[slot] = start.wrapping_add(bytes.word() & 0xffff);
        written.biases[slot] = bytes.word();
        let (kind, first) = (bytes.byte(), u16::from(bytes.byte()));
        written.targets[slot] = match kind % 8 {
            0 => MappingTarget::PENDING,
            1 => MappingTarget::rule(first),
            _ => MappingTarget::table(first % 4, u16::from(kind / 8)),
        }
        .0;
        self.page_starts[page] = written.starts[0];
        self.process.pages = u16::try_from(page + 1).expect("few pages");
        self.mappings += 1;
    }

    /// What no agent writes.
    fn spoil(&mut self, bytes: &mut Bytes<'_>) {
        let (page, slot) = (bytes.below(PAGES), bytes.below(MAPPINGS_PER_PAGE));
        let (page, chunk) = (&mut self.pages[page], &mut self.chunks[slot % CHUNKS]);
        let word = bytes.word();
        match bytes.byte() % 9 {
            0 => page.starts[slot] = word,
            1 => page.ends[slot] = word,
            2 => page.targets[slot] = word,
            3 => self.page_starts[slot * 127] = word,
            4 => self.chunk_starts[slot * 129] = low32(word),
            5 => chunk.groups[slot] = low32(word),
            6 => chunk.blocks[slot % 16] = low32(word),
            7 => chunk.rules[slot] = low16(word),
            _ => {
                self.process.first_page = low16(word);
                self.process.pages = low16(word >> 16);
            }
        }
    }

    /// Puts mappings and rows in order, as the agent does before it publishes them.
    fn put_in_order(&mut self) {
        let slots = |page: &MappingPage, at: usize| {
            [page.starts[at], page.ends[at], page.biases[at], page.targets[at]]
        };
        let all = self.pages.iter();
        let all = all.flat_map(|page| (0..MAPPINGS_PER_PAGE).map(move |at| slots(page, at)));
        let mut mappings: Vec<[u64; 4]> = all.filter(|m| m[0] < m[1] && m[1] < 1 << 56).collect();
        mappings.sort_unstable();
        mappings.dedup_by(|next, before| next[0] < before[1]);
        self.pages.fill(MappingPage::EMPTY);
        for (at, [start, end, bias, target]) in mappings.iter().enumerate() {
            let page = &mut self.pages[at / MAPPINGS_PER_PAGE];
            let slot = at % MAPPINGS_PER_PAGE;
            (page.starts[slot], page.ends[slot]) = (*start, *end);
            (page.biases[slot], page.targets[slot]) = (*bias, within(MappingTarget(*target)).0);
        }
        let pages = mappings.len().div_ceil(MAPPINGS_PER_PAGE).max(1);
        let pages = u16::try_from(pages).expect("few pages");
        self.process = ProcessEntry { generation: 1, first_page: 0, pages };
        for (start, page) in self.page_starts.iter_mut().zip(&self.pages) {
            *start = page.starts[0];
        }
        self.order_rows();
    }

    /// Puts the rows around the border of the two chunks, so that a search goes through all levels. Before
    /// them stands what the agent writes before the first row of a table.
    fn order_rows(&mut self) {
        let rows = self.chunks.iter().flat_map(|chunk| chunk.pcs.into_iter().zip(chunk.rules));
        let mut rows: Vec<(u32, u16)> = rows.filter(|(pc, _)| *pc != u32::MAX).collect();
        rows.sort_unstable();
        let behind = rows.split_off(rows.len().min(CHUNK_ROWS - 1) / 2);
        self.chunks.fill(Chunk::EMPTY);
        let first = &mut self.chunks[0];
        let lead = CHUNK_ROWS - rows.len();
        first.pcs[..lead].fill(0);
        first.rules[..lead].fill(0);
        write(first, lead, &rows);
        let kept = behind.len().min(CHUNK_ROWS);
        write(&mut self.chunks[1], 0, &behind[..kept]);
        rows.insert(0, (0, 0));
        self.rows = [rows, behind[..kept].to_vec()];
        for (start, chunk) in self.chunk_starts.iter_mut().zip(&mut self.chunks) {
            chunk.index();
            *start = chunk.pcs[0];
        }
    }

    /// The rule at `pc` by looking at everything.
    fn plain_rule(&self, pc: u64) -> Result<UnwindRule, Outcome> {
        let slots =
            self.pages.iter().flat_map(|page| (0..MAPPINGS_PER_PAGE).map(move |at| (page, at)));
        let mut found = slots.filter(|(page, at)| page.starts[*at] <= pc && pc < page.ends[*at]);
        let (page, at) = found.next().ok_or(Outcome::MappingUnknown)?;
        let (target, key) = (MappingTarget(page.targets[at]), pc.wrapping_sub(page.biases[at]));
        let of_mapping = target.kind() == MappingTarget::KIND_RULE;
        let rule = match target.kind() {
            MappingTarget::KIND_PENDING => return Err(Outcome::TablePending),
            MappingTarget::KIND_RULE => target.rule_index(),
            _ if key >= u64::from(u32::MAX) => 0,
            _ => {
                let rows = self.rows.iter().skip(index(target.first_chunk()));
                let rows = rows.take(index(target.chunks())).flatten();
                let last = rows.clone().take_while(|(start, _)| u64::from(*start) <= key).last();
                // Before the first row that one holds; a chunk without rows says nothing.
                u64::from(last.or(rows.clone().next()).map_or(0, |(_, rule)| *rule))
            }
        };
        let rule = self.rule(rule).ok_or(Outcome::TableCorrupt)?;
        Ok(UnwindRule { reserved: u8::from(of_mapping), ..rule })
    }
}

fn write(chunk: &mut Chunk, from: usize, rows: &[(u32, u16)]) {
    let slots = chunk.pcs[from..].iter_mut().zip(&mut chunk.rules[from..]);
    for ((pc, rule), row) in slots.zip(rows) {
        (*pc, *rule) = *row;
    }
}

/// The target with chunks that are there.
fn within(target: MappingTarget) -> MappingTarget {
    if target.kind() != MappingTarget::KIND_TABLE {
        return match target.kind() {
            MappingTarget::KIND_RULE => target,
            _ => MappingTarget::PENDING,
        };
    }
    let first = index(target.first_chunk()) % CHUNKS;
    let chunks = index(target.chunks()).clamp(1, CHUNKS - first);
    MappingTarget::table(low16(first as u64), low16(chunks as u64))
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn low32(word: u64) -> u32 {
    u32::try_from(word & 0xffff_ffff).expect("32 bits")
}

fn low16(word: u64) -> u16 {
    u16::try_from(word & 0xffff).expect("16 bits")
}

impl Tables for World {
    fn page(&self, number: u64) -> Option<&MappingPage> {
        self.pages.get(index(number))
    }
    fn page_starts(&self) -> Option<&[u64; MAPPING_PAGES_MAX]> {
        Some(&self.page_starts)
    }
    fn chunk(&self, number: u64) -> Option<&Chunk> {
        self.chunks.get(index(number))
    }
    fn chunk_starts(&self) -> Option<&[u32; CHUNKS_MAX]> {
        Some(&self.chunk_starts)
    }
    fn rule(&self, number: u64) -> Option<UnwindRule> {
        self.rules.get(index(number)).copied()
    }
}

impl Rules for World {
    fn rule_at(&self, pc: u64) -> Result<UnwindRule, Outcome> {
        search::rule_at(self, self.process, 0, pc)
    }
}

impl Memory for World {
    const CODE_MAY_BE_ABSENT: bool = true;

    fn read<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        let from = index(address.wrapping_sub(STACK));
        let bytes = from.checked_add(N * 8).and_then(|end| self.stack.get(from..end))?;
        let words: &[[u8; 8]; N] = bytes.as_chunks::<8>().0.try_into().ok()?;
        Some(words.map(u64::from_le_bytes))
    }

    fn code(&self, address: u64) -> Option<u32> {
        let at = index(address) % CODE_BYTES;
        let bytes = self.code.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    fn code_before(&self, address: u64) -> Option<u64> {
        let end = index(address) % CODE_BYTES;
        let bytes = end.checked_sub(8).and_then(|from| self.code.get(from..end));
        Some(bytes.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes"))))
    }
}
