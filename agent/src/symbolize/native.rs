//! Names for native code from the file itself: the symbol tables say which function, its own debug
//! information adds lines and inlined functions. A separate debug file of this host gives symbols too, if its
//! build id is the same; what else it holds is the collector's to read.

mod data;
mod debug_info;
pub(crate) mod functions;
mod plt;
mod recent;
mod symbols;

use crate::address::{ElfAddr, FileId};
use crate::clock::{MonotonicNs, monotonic_now};
use crate::elf::headers::Elf;
use crate::elf::notes;
use crate::elf::source::Source;
use crate::elf::{ForeignFileError, Names, SourceLine};
use crate::limits::{NAMES_BATCH_NS_MAX, NAMES_CACHED_MAX, SYMBOL_TABLES_BYTES_MAX};
use crate::symbolize::demangle::demangle;
use crate::symbolize::{UnnamedReason, go};
use debug_info::{Chain, DebugInfo};
use recent::Recent;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use symbols::SymbolTable;

/// The names of all native files, with bounded memory.
#[derive(Debug)]
pub(crate) struct NativeNames {
    state: Mutex<State>,
    debug_info: DebugInfo,
}

#[derive(Debug)]
struct State {
    answers: Recent<(FileId, ElfAddr), Answer>,
    tables: Recent<FileId, Arc<SymbolTable>>,
}

/// What was found for one address, shared with the cache.
type Answer = Result<Arc<Vec<SourceLine>>, UnnamedReason>;

impl Default for NativeNames {
    fn default() -> Self {
        let state = State {
            answers: Recent::new(NAMES_CACHED_MAX),
            tables: Recent::new(SYMBOL_TABLES_BYTES_MAX),
        };
        Self { state: Mutex::new(state), debug_info: DebugInfo::start() }
    }
}

/// What [`NativeNames`] does with the bytes of a file, without caches and threads.
#[cfg(fuzzing)]
pub(crate) fn names_in_bytes(elf: &Elf<'_>, addresses: &[ElfAddr]) {
    let table = SymbolTable::read(elf, None, MonotonicNs(u64::MAX)); // a clock would hide what is slow
    for address in addresses {
        std::hint::black_box(table.find(elf, None, address.0).map(|name| demangle(&name)));
    }
    std::hint::black_box(go::names(elf, addresses, MonotonicNs(u64::MAX)));
}

impl NativeNames {
    /// Times that debug information of a file was put off, counted on.
    pub(crate) fn debug_info_put_off(&self) -> &Arc<AtomicU64> {
        self.debug_info.put_off()
    }

    /// See [`crate::elf::ForeignFiles::names`].
    pub(crate) fn names(
        &self,
        id: FileId,
        file: &OwnedFd,
        debug_file: Option<&OwnedFd>,
        addresses: &[ElfAddr],
        until: MonotonicNs,
    ) -> Vec<Names> {
        let mut found: Vec<Option<Answer>> = {
            let mut state = self.state();
            addresses.iter().map(|&address| state.answers.get(&(id, address))).collect()
        };
        let missing: Vec<ElfAddr> = addresses
            .iter()
            .zip(&found)
            .filter_map(|(&address, found)| found.is_none().then_some(address))
            .collect();
        if !missing.is_empty() {
            let (answers, complete) = self.look_up(id, (file, debug_file), (&missing, until));
            let mut state = self.state();
            let mut answers = missing.into_iter().zip(answers);
            for slot in found.iter_mut().filter(|slot| slot.is_none()) {
                let Some((address, answer)) = answers.next() else { break };
                let answer: Answer = answer.map(Arc::new);
                // What was cut short is asked for again.
                if complete && !matches!(answer, Err(UnnamedReason::Limit)) {
                    state.answers.insert((id, address), answer.clone(), 1);
                }
                *slot = Some(answer);
            }
        }
        let unshared = |answer: Answer| answer.map(|lines| (*lines).clone());
        let nothing = Err(UnnamedReason::Limit);
        found.into_iter().map(|answer| unshared(answer.unwrap_or(nothing.clone()))).collect()
    }

    /// Answers in the order of `addresses`, and whether asking again would give the same.
    fn look_up(
        &self,
        id: FileId,
        (file, debug_file): (&OwnedFd, Option<&OwnedFd>),
        (addresses, whole_until): (&[ElfAddr], MonotonicNs),
    ) -> (Vec<Names>, bool) {
        let elf = match Source::file(file.as_fd()).and_then(Elf::parse) {
            Ok(elf) => elf,
            Err(error) => {
                tracing::debug!(%error, file = id.0, "no names");
                let complete = !matches!(error, ForeignFileError::Io(_));
                return (vec![Err(UnnamedReason::NotReadable); addresses.len()], complete);
            }
        };
        let until = monotonic_now().plus(NAMES_BATCH_NS_MAX).min(whole_until);
        let mut answers = go::names(&elf, addresses, until)
            .unwrap_or_else(|| vec![Err(UnnamedReason::NoSymbol); addresses.len()]);
        let debug_file = debug_file.and_then(|debug_file| debug_elf(&elf, debug_file));
        let table = self.symbol_table(id, (&elf, debug_file.as_ref()), until);
        let files = (&elf, debug_file.as_ref());
        let (variables, all_variables) = data::names(files, &table, addresses, until);
        for (answer, variable) in answers.iter_mut().zip(variables) {
            if let (Err(UnnamedReason::NoSymbol), Some(variable)) = (&*answer, variable) {
                *answer = variable;
            }
        }
        let is_open = |names: &Names, address: &ElfAddr| {
            *names == Err(UnnamedReason::NoSymbol) && table.is_code(address.0)
        };
        // blazesym is asked about code only: it computes past the end of the address space.
        let open: Vec<ElfAddr> = answers
            .iter()
            .zip(addresses)
            .filter_map(|(names, address)| is_open(names, address).then_some(*address))
            .collect();
        if open.is_empty() {
            return (answers, all_variables);
        }
        // First the names, then what is known beyond: whoever waits for that in vain has the names all the same.
        let missing = table.missing();
        let symbol = |address: &ElfAddr| {
            let in_time = monotonic_now() <= until;
            in_time.then(|| table.find(&elf, debug_file.as_ref(), address.0))
        };
        let symbols: Vec<Option<Option<String>>> = open.iter().map(symbol).collect();
        let (chains, complete) = self.debug_info.chains(id, file, &open, whole_until);
        let mut found = symbols.into_iter().zip(chains);
        for (answer, address) in answers.iter_mut().zip(addresses) {
            if !is_open(answer, address) {
                continue;
            }
            *answer = match found.next() {
                Some((Some(symbol), chain)) => {
                    Some(lines(symbol, chain)).filter(|lines| !lines.is_empty()).ok_or(missing)
                }
                Some((None, _)) | None => Err(UnnamedReason::Limit),
            };
        }
        (answers, complete && all_variables)
    }

    /// The symbol table of a file, empty if it cannot be read.
    fn symbol_table(
        &self,
        id: FileId,
        (elf, debug_file): (&Elf<'_>, Option<&Elf<'_>>),
        until: MonotonicNs,
    ) -> Arc<SymbolTable> {
        let known = self.state().tables.get(&id);
        if let Some(table) = known {
            return table;
        }
        let table = Arc::new(SymbolTable::read(elf, debug_file, until));
        // What time cut short is read again, then from the page cache.
        if !table.is_late() {
            self.state().tables.insert(id, Arc::clone(&table), table.weight().max(1));
        }
        table
    }

    /// Never held while a file is read: it may not answer. A panic while it was held can only have lost entries of a
    /// cache.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A separate debug file, if it was made with this very file.
fn debug_elf<'a>(elf: &Elf<'_>, debug_file: &'a OwnedFd) -> Option<Elf<'a>> {
    let debug_elf = Source::file(debug_file.as_fd()).and_then(Elf::parse).ok()?;
    let own = notes::build_ids(elf).gnu?;
    (notes::build_ids(&debug_elf).gnu.as_ref() == Some(&own)).then_some(debug_elf)
}

/// Joins what the symbol table and the debug information say. The symbol table names the outermost
/// function: it has the linkage name and knows of no wrong neighbour.
fn lines(symbol: Option<String>, chain: Option<Chain>) -> Vec<SourceLine> {
    let Some(chain) = chain else {
        return symbol.map(|name| line(name, String::new(), 0)).into_iter().collect();
    };
    let mut lines: Vec<SourceLine> = Vec::with_capacity(chain.frames.len());
    let outermost = chain.frames.len().saturating_sub(1);
    for (index, frame) in chain.frames.into_iter().enumerate() {
        let name = if index == outermost { symbol.clone().or(frame.name) } else { frame.name };
        // A frame without a name says nothing to a reader.
        lines.extend(name.map(|name| line(name, frame.file, frame.line)));
    }
    lines
}

fn line(linkage_name: String, file: String, line: u32) -> SourceLine {
    let function = demangle(&linkage_name);
    let system_name = if function == linkage_name { String::new() } else { linkage_name };
    SourceLine { function, system_name, file, line }
}

#[cfg(test)]
mod tests;
