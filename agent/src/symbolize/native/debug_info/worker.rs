//! The thread that owns blazesym: one symbolizer for each file, the least used dropped first, since
//! blazesym itself never lets go of one.

use super::copy::{self, Copy};
use super::purse::Purse;
use super::{Chain, ChainFrame, Request};
use crate::address::{ElfAddr, FileId};
use crate::elf::source::Source;
use crate::limits::{
    DEBUG_FILES_MAX, DEBUG_INFO_AGAIN_FACTOR, DEBUG_INFO_IDLE_SECONDS, DEBUG_INFO_REFUSED_MAX,
    DEBUG_INFO_TOTAL_BYTES_MAX, DEBUG_INFO_WORK_DIVISOR, DEBUG_INFO_WORK_MAX,
    INLINED_FUNCTIONS_MAX,
};
use blazesym::symbolize::source::Elf;
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer, source};
use std::collections::HashSet;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// One file, with its copy behind a descriptor that lives as long.
struct File {
    id: FileId,
    symbolizer: Symbolizer,
    copy: Copy,
}

/// Held files, the most recently used last.
struct Files {
    held: Vec<File>,
    refused: Vec<FileId>,
    /// Files that were held once. More of them than fit would push each other out in every window.
    seen: HashSet<FileId>,
    /// From when on one of them may be copied again.
    again_at: Option<Instant>,
    /// Time for new files.
    work: Purse,
}

/// Answers until the other side is gone. What is put off, because new files took too much time of late, is counted
/// in `put_off`.
pub(super) fn run(requests: &Receiver<Request>, put_off: &AtomicU64) {
    let mut files = Files::default();
    loop {
        match requests.recv_timeout(Duration::from_secs(DEBUG_INFO_IDLE_SECONDS)) {
            Ok(Request { id, file, addresses, answer }) => {
                let chains = files.chains(id, &file, &addresses);
                put_off.fetch_add(u64::from(chains.is_none()), Ordering::Relaxed);
                // The caller may have given up: then nobody needs the answer.
                drop(answer.try_send(chains));
            }
            Err(RecvTimeoutError::Timeout) => files.held.clear(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Default for Files {
    fn default() -> Self {
        Self {
            held: Vec::new(),
            refused: Vec::new(),
            seen: HashSet::new(),
            again_at: None,
            work: Purse::new(DEBUG_INFO_WORK_MAX, DEBUG_INFO_WORK_DIVISOR),
        }
    }
}

impl Files {
    /// `None`: to be asked again.
    fn chains(
        &mut self,
        id: FileId,
        file: &OwnedFd,
        addresses: &[ElfAddr],
    ) -> Option<Vec<Option<Chain>>> {
        let nothing = vec![None; addresses.len()];
        if self.refused.contains(&id) {
            return Some(nothing);
        }
        let begin = Instant::now();
        let copied = !self.held.iter().any(|file| file.id == id);
        let again = self.seen.contains(&id) && self.again_at.is_some_and(|at| begin < at);
        if copied && (again || !self.work.is_left(begin)) {
            return None;
        }
        // What parses hostile bytes may panic (overflow checks are on in tests); that costs the file.
        let chains = catch_unwind(AssertUnwindSafe(|| {
            let file = self.file(id, file)?;
            symbolize(file, addresses)
        }));
        if copied {
            if self.seen.len() >= DEBUG_INFO_REFUSED_MAX {
                self.seen.clear();
            }
            self.seen.insert(id);
            self.work.spend(begin.elapsed());
            self.again_at = Some(Instant::now() + begin.elapsed() * DEBUG_INFO_AGAIN_FACTOR);
        }
        Some(match chains {
            Ok(Some(chains)) => chains,
            Ok(None) => {
                self.refuse(id);
                nothing
            }
            Err(_) => {
                tracing::warn!(file = id.0, "debug information made its reader panic, not used");
                self.refuse(id);
                nothing
            }
        })
    }

    fn refuse(&mut self, id: FileId) {
        self.held.retain(|file| file.id != id);
        if self.refused.len() >= DEBUG_INFO_REFUSED_MAX {
            self.refused.clear();
        }
        self.refused.push(id);
    }

    fn file(&mut self, id: FileId, file: &OwnedFd) -> Option<&File> {
        if let Some(index) = self.held.iter().position(|file| file.id == id) {
            let file = self.held.remove(index);
            self.held.push(file);
            return self.held.last();
        }
        let copy = match copy::copy(Source::file(file.as_fd()).ok()?) {
            Ok(copy) => copy?,
            Err(error) => {
                tracing::debug!(%error, file = id.0, "debug information not used");
                return None;
            }
        };
        let held = |held: &[File]| held.iter().map(|file| file.copy.bytes).sum::<u64>();
        while !self.held.is_empty()
            && (self.held.len() >= DEBUG_FILES_MAX
                || held(&self.held).saturating_add(copy.bytes) > DEBUG_INFO_TOTAL_BYTES_MAX)
        {
            self.held.remove(0);
        }
        let no_directories: Option<[&str; 0]> = Some([]);
        let symbolizer = Symbolizer::builder()
            .enable_auto_reload(false)
            .enable_demangling(false)
            .set_debug_dirs(no_directories)
            .build();
        self.held.push(File { id, symbolizer, copy });
        self.held.last()
    }
}

fn symbolize(file: &File, addresses: &[ElfAddr]) -> Option<Vec<Option<Chain>>> {
    let path = format!("/proc/self/fd/{}", file.copy.file.as_raw_fd());
    let source = source::Source::Elf(Elf::new(path));
    let addresses: Vec<u64> = addresses.iter().map(|address| address.0).collect();
    match file.symbolizer.symbolize(&source, Input::VirtOffset(&addresses)) {
        Ok(symbols) => Some(symbols.into_iter().map(chain).collect()),
        Err(error) => {
            tracing::debug!(%error, file = file.id.0, "debug information not readable");
            None
        }
    }
}

/// Turns blazesym's order (outermost first) around.
fn chain(symbol: Symbolized<'_>) -> Option<Chain> {
    let Symbolized::Sym(Sym { name, code_info, inlined, .. }) = symbol else { return None };
    let code_info = code_info.map(|info| *info);
    if code_info.is_none() && inlined.is_empty() {
        return None;
    }
    let mut frames = vec![frame(&name, code_info.as_ref())];
    let inlined = inlined.iter().take(INLINED_FUNCTIONS_MAX);
    frames.extend(inlined.map(|inlined| frame(&inlined.name, inlined.code_info.as_ref())));
    frames.reverse();
    Some(Chain { frames })
}

fn frame(name: &str, code_info: Option<&CodeInfo<'_>>) -> ChainFrame {
    let name = name.split('@').next().filter(|name| !name.is_empty()).map(str::to_owned);
    let file = code_info.map(|info| info.to_path().to_string_lossy().into_owned());
    let line = code_info.and_then(|info| info.line);
    ChainFrame { name, file: file.unwrap_or_default(), line: line.unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_new_file_is_put_off_when_no_time_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("a.c");
        std::fs::write(&source, "int main(void) { return 0; }").unwrap();
        let program = folder.path().join("a");
        let built = Command::new("cc").arg("-g").arg("-o").args([&program, &source]).status();
        if !built.is_ok_and(|status| status.success()) {
            eprintln!("skipped: no C compiler");
            return;
        }
        let file: OwnedFd = std::fs::File::open(program).unwrap().into();
        let mut files = Files::default();
        files.work.spend(2 * DEBUG_INFO_WORK_MAX);
        assert_eq!(files.chains(FileId(1), &file, &[ElfAddr(0x1130)]), None);
        files.work = Files::default().work;
        assert!(files.chains(FileId(1), &file, &[ElfAddr(0x1130)]).is_some());
        // What is held costs nothing more.
        files.work.spend(2 * DEBUG_INFO_WORK_MAX);
        assert!(files.chains(FileId(1), &file, &[ElfAddr(0x1130)]).is_some());
    }
}
