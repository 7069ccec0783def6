//! Kernel names from `/proc/kallsyms`: the kernel itself, modules and BPF programs. It names text only,
//! never beyond the next symbol, and says once when the kernel hides the addresses.

mod regions;

pub use regions::KernelRegions;

use super::{KernelNames, KernelSymbol, UnnamedReason};
use crate::address::AbsAddr;
use crate::clock::{MonotonicNs, monotonic_now};
use crate::limits::{
    KALLSYMS_BYTES_MAX, KALLSYMS_LINE_BYTES_MAX, KALLSYMS_READ_INTERVAL_NS_MAX,
    KALLSYMS_READ_INTERVAL_NS_MIN, KERNEL_FUNCTION_BYTES_MAX, KERNEL_NAMES_BYTES_MAX,
    KERNEL_SYMBOLS_MAX, MODULES_BYTES_MAX, MODULES_LOOK_INTERVAL_NS, PAGE_BYTES,
};
use crate::normalize::KernelRegion;
use crate::process::maps::read_line;
use regions::Before;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Module of the kernel itself.
const CORE: &str = "vmlinux";
/// What the kernel says of the code of BPF programs.
const BPF: &str = "bpf";

/// One symbol: 16 bytes and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Symbol {
    start: u64,
    name: u32,
    /// 0 for a symbol that only ends the one before it.
    name_bytes: u16,
    /// Index into `modules`.
    module: u16,
}

/// The symbols of one reading, ascending, one for each address.
#[derive(Debug, Default)]
struct SymbolTable {
    symbols: Vec<Symbol>,
    names: Vec<u8>,
    modules: Vec<String>,
    /// End of the kernel's own symbols.
    core_end: u64,
    /// Lines with the address zero.
    hidden: u64,
    /// Symbols left out because of a limit.
    left_out: u64,
}

/// Kernel names of this host.
#[derive(Debug)]
pub struct KernelSymbols {
    path: PathBuf,
    table: SymbolTable,
    read_at: MonotonicNs,
    /// Time to the next reading, if an address is not found.
    interval_ns: u64,
    hidden_told: bool,
    regions: Arc<KernelRegions>,
    modules: ModuleList,
}

impl KernelSymbols {
    /// Reads `kallsyms` beneath `proc_root`; `regions` knows what comes and goes from then on. Names that are hidden are said once and are `None` after.
    #[must_use]
    pub fn read(proc_root: &Path, regions: Arc<KernelRegions>) -> Self {
        let mut symbols = Self {
            path: proc_root.join("kallsyms"),
            table: SymbolTable::default(),
            read_at: MonotonicNs(0),
            interval_ns: KALLSYMS_READ_INTERVAL_NS_MIN,
            hidden_told: false,
            regions,
            modules: ModuleList::new(proc_root),
        };
        symbols.read_again(monotonic_now());
        symbols
    }

    /// Number of addresses that have a name.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.symbols.iter().filter(|symbol| symbol.name_bytes > 0).count()
    }

    /// True if nothing can be named: the kernel hides its addresses, or the file cannot be read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Symbols that were left out because of a limit.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.table.left_out
    }

    fn read_again(&mut self, now: MonotonicNs) {
        self.read_at = now;
        let table = File::open(&self.path)
            .and_then(|file| SymbolTable::read(BufReader::with_capacity(64 << 10, file)));
        match table {
            Ok(table) => self.table = table,
            Err(error) => {
                tracing::warn!(%error, "kernel functions stay unnamed: cannot read kallsyms")
            }
        }
        if self.table.symbols.is_empty() && self.table.hidden > 0 && !self.hidden_told {
            self.hidden_told = true;
            tracing::warn!(
                "kernel functions stay unnamed: addresses in kallsyms are hidden \
                 (kernel.kptr_restrict, or the capability SYSLOG is missing)"
            );
        }
    }

    fn kernel_at(
        &mut self,
        address: AbsAddr,
        region: KernelRegion,
        now: MonotonicNs,
    ) -> Option<KernelSymbol> {
        if address.0 < self.table.core_end {
            // Core text never changes.
            return self.table.find(address.0);
        }
        if region != KernelRegion::default() {
            return self.regions.name(region, address);
        }
        match self.regions.before(address) {
            Before::Gone(symbol) => Some(symbol),
            Before::ReplacedAt(time) if time <= self.read_at => None,
            Before::ReplacedAt(_) => self.table.find(address.0),
            Before::Unknown => self.loaded_at(address, now),
        }
    }

    /// Names an address of a module, or of a program that was loaded before the records began.
    fn loaded_at(&mut self, address: AbsAddr, now: MonotonicNs) -> Option<KernelSymbol> {
        let lost = self.regions.lost_at().is_some_and(|lost| lost > self.read_at);
        if self.modules.changed(now) || lost {
            self.read_again(now);
        }
        let age_ns = now.0.saturating_sub(self.read_at.0);
        let found = self.table.find(address.0);
        // It may be another module by now.
        let due_ns = if found.is_some() { KALLSYMS_READ_INTERVAL_NS_MAX } else { self.interval_ns };
        if age_ns < due_ns {
            return found;
        }
        self.read_again(now);
        let found = self.table.find(address.0);
        self.interval_ns = if found.is_some() {
            KALLSYMS_READ_INTERVAL_NS_MIN
        } else {
            self.interval_ns.saturating_mul(2).min(KALLSYMS_READ_INTERVAL_NS_MAX)
        };
        found
    }
}

impl KernelNames for KernelSymbols {
    fn kernel(
        &mut self,
        address: AbsAddr,
        region: KernelRegion,
    ) -> Result<KernelSymbol, UnnamedReason> {
        self.kernel_at(address, region, monotonic_now()).ok_or_else(|| self.table.why_unnamed())
    }
}

/// Notices that modules came or went.
#[derive(Debug)]
struct ModuleList {
    path: PathBuf,
    text: Vec<u8>,
    looked_at: MonotonicNs,
}

impl ModuleList {
    fn new(proc_root: &Path) -> Self {
        let mut list =
            Self { path: proc_root.join("modules"), text: Vec::new(), looked_at: MonotonicNs(0) };
        list.text = list.read();
        list
    }

    /// True if the list is another one than at the last look. Its lines hold addresses and use counts;
    /// where it cannot be read, nothing changes.
    fn changed(&mut self, now: MonotonicNs) -> bool {
        if now.since(self.looked_at) < MODULES_LOOK_INTERVAL_NS {
            return false;
        }
        self.looked_at = now;
        let text = self.read();
        let changed = text != self.text;
        self.text = text;
        changed
    }

    /// Name and address of each module: the number of its users changes all the time.
    fn read(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let read = File::open(&self.path)
            .and_then(|file| file.take(MODULES_BYTES_MAX).read_to_end(&mut text));
        if read.is_err() {
            return Vec::new();
        }
        let identity = |line: &[u8]| {
            let mut fields = line.split(|&byte| byte == b' ');
            let name = fields.next().unwrap_or_default().to_vec();
            let address = fields.nth(4).unwrap_or_default();
            [&name, &b" "[..], address, b"\n"].concat()
        };
        text.split(|&byte| byte == b'\n').flat_map(identity).collect()
    }
}

impl SymbolTable {
    fn read(text: impl BufRead) -> io::Result<Self> {
        let mut text = text.take(KALLSYMS_BYTES_MAX);
        let mut table = Self { modules: vec![CORE.to_owned()], ..Self::default() };
        let mut line = Vec::with_capacity(KALLSYMS_LINE_BYTES_MAX);
        while read_line(&mut text, &mut line, KALLSYMS_LINE_BYTES_MAX)? {
            table.take_line(&line);
        }
        table.left_out += u64::from(text.limit() == 0);
        table.order();
        Ok(table)
    }

    /// `address type name[\t[module]]`.
    fn take_line(&mut self, line: &[u8]) {
        let mut fields = line.split(|&byte| byte == b' ' || byte == b'\t');
        let (Some(address), Some([kind]), Some(name)) =
            (fields.next(), fields.next(), fields.next())
        else {
            return;
        };
        let Some(start) =
            std::str::from_utf8(address).ok().and_then(|hex| u64::from_str_radix(hex, 16).ok())
        else {
            return;
        };
        // Also per-CPU offsets near zero ('A' and 'D' symbols): no code is there.
        if start < 1 << 63 {
            self.hidden += u64::from(start == 0);
            return;
        }
        let module = fields.find(|field| !field.is_empty()).unwrap_or_default();
        let module = module.strip_prefix(b"[").and_then(|name| name.strip_suffix(b"]"));
        let name = if is_text(*kind) { plain_name(name) } else { b"" };
        let fits = self.symbols.len() < KERNEL_SYMBOLS_MAX
            && self.names.len() + name.len() <= KERNEL_NAMES_BYTES_MAX;
        let place = (
            u32::try_from(self.names.len()),
            u16::try_from(name.len()),
            self.module_index(module.unwrap_or_default()),
        );
        let (true, (Ok(at), Ok(name_bytes), Some(module))) = (fits, place) else {
            self.left_out += 1;
            return;
        };
        self.names.extend_from_slice(name);
        self.symbols.push(Symbol { start, name: at, name_bytes, module });
    }

    /// Modules come one after the other, so only the last one is compared.
    fn module_index(&mut self, module: &[u8]) -> Option<u16> {
        if module.is_empty() {
            return Some(0);
        }
        let last =
            self.modules.last().filter(|last| self.modules.len() > 1 && last.as_bytes() == module);
        if last.is_none() {
            self.modules.push(String::from_utf8_lossy(module).into_owned());
        }
        u16::try_from(self.modules.len() - 1).ok()
    }

    /// Sorts (the file is not sorted: modules and BPF programs lie where there was room) and keeps one
    /// name for each address, always the same one.
    fn order(&mut self) {
        let Self { symbols, names, .. } = self;
        let name = |symbol: &Symbol| name_bytes(names, symbol);
        let preference = |symbol: &Symbol| {
            let name = name(symbol);
            let underscores = name.iter().take_while(|&&byte| byte == b'_').count();
            (name.is_empty(), underscores, name.len())
        };
        symbols.sort_unstable_by(|a, b| {
            (a.start, preference(a), name(a)).cmp(&(b.start, preference(b), name(b)))
        });
        symbols.dedup_by_key(|symbol| symbol.start);
        let core = symbols.iter().filter(|symbol| symbol.module == 0).map(|symbol| symbol.start);
        self.core_end = core.max().map_or(0, |last| last.saturating_add(1));
        self.symbols.shrink_to_fit();
        self.names.shrink_to_fit();
    }

    fn why_unnamed(&self) -> UnnamedReason {
        match (self.symbols.is_empty(), self.hidden, self.left_out) {
            (true, 1.., _) => UnnamedReason::KernelHidden,
            (true, 0, _) => UnnamedReason::NotReadable,
            (false, _, 1..) => UnnamedReason::Limit,
            (false, _, 0) => UnnamedReason::NoSymbol,
        }
    }

    /// Where the symbol at that place ends, by the next one: it was the greatest start below the address. The
    /// last function of a module has no next one, and what lies behind its page may be code that is gone: what a
    /// module runs while it is loaded has pages of its own (kernel/module/main.c, `MOD_INIT_TEXT`; before Linux 6.4
    /// `init_layout`).
    fn end(&self, at: usize, symbol: &Symbol) -> u64 {
        let module = self.modules.get(usize::from(symbol.module)).map(String::as_str);
        let is_followed = self
            .symbols
            .get(at + 1)
            .is_some_and(|next| next.module == symbol.module && next.name_bytes > 0);
        if is_followed || matches!(module, Some(CORE | BPF)) {
            return symbol.start.saturating_add(KERNEL_FUNCTION_BYTES_MAX);
        }
        (symbol.start | (PAGE_BYTES - 1)).saturating_add(1)
    }

    fn find(&self, address: u64) -> Option<KernelSymbol> {
        let at = self.symbols.partition_point(|symbol| symbol.start <= address).checked_sub(1)?;
        let symbol = self.symbols.get(at)?;
        let name = name_bytes(&self.names, symbol);
        let is_inside = address < self.end(at, symbol);
        (is_inside && !name.is_empty()).then(|| KernelSymbol {
            name: String::from_utf8_lossy(name).into_owned(),
            module: self.modules.get(usize::from(symbol.module)).cloned().unwrap_or_default(),
        })
    }
}

fn name_bytes<'a>(names: &'a [u8], symbol: &Symbol) -> &'a [u8] {
    let start = usize::try_from(symbol.name).unwrap_or(usize::MAX);
    let end = start.saturating_add(usize::from(symbol.name_bytes));
    names.get(start..end).unwrap_or_default()
}

/// Text, global or local, weak too (`nm(1)`).
const fn is_text(kind: u8) -> bool {
    matches!(kind, b't' | b'T' | b'w' | b'W')
}

/// The name without what the compiler hangs on to tell copies apart. `.part.N` stays: the function
/// calls its part, and both are on the stack.
fn plain_name(name: &[u8]) -> &[u8] {
    let mut name = name;
    loop {
        let Some(dot) = name.iter().rposition(|&byte| byte == b'.') else { return name };
        let (front, last) = name.split_at(dot);
        let numbered = last.len() > 1 && last.iter().skip(1).all(u8::is_ascii_digit);
        let base = if numbered {
            [&b".isra"[..], b".constprop", b".llvm", b".cold"]
                .iter()
                .find_map(|suffix| front.strip_suffix(*suffix))
        } else {
            (last == b".cold").then_some(front)
        };
        match base {
            Some(base) if !base.is_empty() => name = base,
            _ => return name,
        }
    }
}

#[cfg(test)]
mod tests;
