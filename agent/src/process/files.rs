//! The files that mappings point to, each known once: who is asked for a mapping's file gets the same
//! [`MappedFile`] for every process that maps it. Facts come from [`ForeignFiles`]; nothing is parsed
//! here.

mod again;
mod debug_file;
mod inode;
mod inside;
mod lock_owner;
mod room;

use super::host::{FileIdentity, Host, OpenError, OpenedFile, Task};
use super::looks::Look;
use super::maps::MapsEntry;
use crate::address::{AbsAddr, FileId, FileOffset};
use crate::bpf::Inode;
use crate::clock::{MonotonicNs, monotonic_now};
use crate::elf::{ForeignFileError, ForeignFiles};
use crate::engine::OpenFiles;
use crate::limits::{
    FILE_OPEN_NS_MAX, FILE_PLACES_MAX, FILES_BYTES_MAX, FILES_MAX, FILES_OPEN_MAX,
};
use crate::normalize::MappedFile;
use crate::path;
use debug_file::DebugFile;
use hashbrown::HashMap;
pub(crate) use lock_owner::LockOwner;
use proto::BuildId;
use rustix::fs::MemfdFlags;
use std::collections::VecDeque;
use std::fmt;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What stands behind an executable mapping.
#[derive(Clone, Debug)]
pub enum Backing {
    /// Nothing that can be read as code: JIT memory, a device, a file that is no executable.
    Anonymous,
    /// A file (the vDSO counts as one).
    File(Arc<MappedFile>),
}

/// A mapping whose file is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Who maps it, `None` if it does no longer.
    pub task: Option<Task>,
    /// Who may see the same files, if it is gone: the process that made it, the host's first one.
    pub relatives: [Task; 2],
    /// Where and which.
    pub mapping: &'a MapsEntry,
    /// Build id that the kernel reported with the mapping.
    pub build_id: Option<&'a BuildId>,
    /// Which file it reported, where there is none, and when it was mapped.
    pub inode: Option<(Inode, MonotonicNs)>,
}

/// What happened so far, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCounts {
    /// Files known now.
    pub known: u64,
    /// Descriptors open now, with those of debug files.
    pub open: u64,
    /// Bytes of what is known of them, about.
    pub bytes: u64,
    /// Files that were forgotten to make room.
    pub forgotten: u64,
    /// Mappings whose file was not taken in, because too many are mapped.
    pub refused: u64,
    /// Mappings whose file could not be opened and was not known by its build id.
    pub unreadable: u64,
    /// Files that could be opened and not understood.
    pub malformed: u64,
    /// Mappings that may show a library inside a larger file and were not looked at, because of a limit.
    pub embedded_left_out: u64,
}

/// All files. Shared with the thread that names: it asks for descriptors.
pub struct Files {
    host: Arc<dyn Host>,
    foreign: Arc<dyn ForeignFiles>,
    state: Mutex<State>,
    /// Bytes of libraries inside larger files that are being copied.
    copying_bytes: AtomicU64,
}

#[derive(Default)]
struct State {
    next_id: u32,
    by_key: HashMap<Key, FileId>,
    /// Files that were read, by the build id they carry and their path. Only those that their owner may be
    /// believed: a build id is what whoever made the file wrote there.
    by_build_id: HashMap<(BuildId, String), FileId>,
    entries: HashMap<FileId, Entry>,
    /// The vDSO, and the length of its mapping.
    vdso: Option<(u64, Backing)>,
    counts: FileCounts,
    clock: u64,
    /// Bytes of all entries.
    bytes: usize,
    /// No room is looked for before: all that is known is mapped.
    full_until: MonotonicNs,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// A file that was opened, or what lies inside it and is mapped from there on.
    Opened(FileIdentity, Option<FileOffset>),
    /// A file that was not, by what the kernel said of it.
    Reported(Vec<u8>, Option<BuildId>),
}

struct Entry {
    key: Key,
    /// `None` for a file that is no executable.
    file: Option<Arc<MappedFile>>,
    descriptor: Option<Arc<OwnedFd>>,
    /// Bytes of memory behind the descriptor, if it is a copy out of a larger file.
    copy_bytes: u64,
    /// How often a library was looked for in this file and not found.
    searches: u8,
    /// Length of its path.
    path_bytes: usize,
    /// True for the vDSO: its descriptor is memory that nobody else has.
    pinned: bool,
    places: VecDeque<(Task, MapsEntry)>,
    used: u64,
    opened_at: MonotonicNs,
    debug_file: DebugFile,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Files {
    /// Knows no file yet.
    #[must_use]
    pub fn new(host: Arc<dyn Host>, foreign: Arc<dyn ForeignFiles>) -> Self {
        Self { host, foreign, state: Mutex::default(), copying_bytes: AtomicU64::new(0) }
    }

    /// Whose files these are.
    pub(super) fn host(&self) -> &dyn Host {
        &*self.host
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> FileCounts {
        let state = self.state();
        let (known, open) = (count(state.entries.len()), count(state.open()));
        FileCounts { known, open, bytes: count(state.bytes), ..state.counts }
    }

    /// Finds what stands behind a mapping. Never fails: a file that cannot be read is a file without
    /// facts.
    pub fn behind(&self, wanted: Wanted<'_>) -> Backing {
        match wanted.mapping.path.as_slice() {
            b"[vdso]" => self.vdso(wanted),
            // Perf's name of anonymous executable memory (kernel/events/core.c, perf_event_mmap_event).
            b"//anon" => Backing::Anonymous,
            [b'/', ..] => self.file(wanted),
            _ => Backing::Anonymous,
        }
    }

    /// Files that may have locks to probe, among those that came after the `seen`th, which moves on.
    pub(crate) fn new_with_locks(&self, seen: &mut u32) -> Vec<(FileId, LockOwner)> {
        let state = self.state();
        let owner = |id: FileId| {
            let file = state.entries.get(&id).and_then(|entry| entry.file.as_ref())?;
            Some((id, LockOwner::of(file)?))
        };
        let new = (*seen..state.next_id).map(FileId).filter_map(owner).collect();
        *seen = state.next_id;
        new
    }

    /// True if somebody else holds the file: a process that maps it, or a window. `None` if it is forgotten.
    pub(crate) fn is_mapped(&self, id: FileId) -> Option<bool> {
        let state = self.state();
        let file = state.entries.get(&id)?.file.as_ref()?;
        Some(Arc::strong_count(file) > 1)
    }

    /// Takes a file that was opened by somebody else (the preload of a command).
    pub fn take_opened(&self, opened: OpenedFile, path: &[u8]) -> Backing {
        self.opened(opened, None, None, path)
    }

    /// Forgets what nobody maps any more and closes descriptors that were not used for a while. Cheap
    /// enough to be called once per window.
    pub fn tidy(&self) {
        let now = monotonic_now();
        let mut state = self.state();
        for entry in state.entries.values_mut().filter(|entry| !entry.pinned) {
            if now.0.saturating_sub(entry.opened_at.0) > FILE_OPEN_NS_MAX {
                entry.close();
            }
        }
        state.make_room(FILES_MAX, FILES_BYTES_MAX);
    }

    /// Forgets every file that nobody maps.
    #[cfg(test)]
    pub(crate) fn forget_unused(&self) {
        self.state().make_room(0, 0);
    }

    /// Closes every descriptor.
    #[cfg(test)]
    pub(crate) fn close_all(&self) {
        for entry in self.state().entries.values_mut() {
            entry.close();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, wanted: Wanted<'_>) -> Backing {
        let Some(task) = wanted.task else { return self.gone(wanted) };
        let backing = match self.host.open(task, wanted.mapping) {
            // Nothing but a build id tells whether it is the file meant.
            Ok(opened) if opened.other_path.is_some() => return self.renamed(opened, wanted),
            Ok(opened) => {
                let place = Some((task, wanted.mapping));
                self.opened(opened, place, wanted.build_id, &wanted.mapping.path)
            }
            Err(OpenError::NotRegular) => return Backing::Anonymous,
            Err(OpenError::TooLarge { .. } | OpenError::Io(_)) => return self.gone(wanted),
        };
        if let Some(backing) = self.inside(&backing, task, wanted.mapping) {
            return backing;
        }
        // The process may have executed another program since, whose mappings lie in the same place.
        match (&backing, wanted.build_id) {
            (Backing::File(file), Some(reported))
                if carried(file).is_some_and(|carried| carried != reported) =>
            {
                self.gone(wanted)
            }
            _ => backing,
        }
    }

    /// A file that is called otherwise than the mapping says: kept under its own name, used if the build id
    /// that the kernel reported is its own.
    fn renamed(&self, opened: OpenedFile, wanted: Wanted<'_>) -> Backing {
        let Some(reported) = wanted.build_id else { return self.gone(wanted) };
        let path = opened.other_path.clone().unwrap_or_default();
        match self.opened(opened, None, None, &path) {
            Backing::File(file) if carried(&file) == Some(reported) => Backing::File(file),
            _ => self.gone(wanted),
        }
    }

    fn opened(
        &self,
        opened: OpenedFile,
        place: Option<(Task, &MapsEntry)>,
        build_id: Option<&BuildId>,
        path: &[u8],
    ) -> Backing {
        let key = Key::Opened(opened.identity, None);
        {
            let mut state = self.state();
            if let Some(backing) = state.known(&key, place) {
                return backing;
            }
            if !state.has_room() {
                return Backing::Anonymous;
            }
        }
        // Reading takes its time: the lock is not held, and another thread may be at the same file.
        let facts = match self.foreign.inspect(&opened.descriptor) {
            Ok(facts) => Some(facts),
            Err(error) => {
                self.state().counts.malformed += 1;
                tracing::debug!(%error, path = %String::from_utf8_lossy(path), "file without facts");
                if matches!(error, ForeignFileError::Malformed { .. }) {
                    let mut state = self.state();
                    if state.known(&key, place).is_none() {
                        state.add(Entry::new(key, None, None, place), None);
                    }
                    return Backing::Anonymous;
                }
                None
            }
        };
        let carried = facts.as_ref().and_then(|facts| facts.gnu_build_id.clone());
        let carried = carried.filter(|_| trusted(&opened.descriptor));
        let mut state = self.state();
        if let Some(backing) = state.known(&key, place) {
            return backing;
        }
        let Some(id) = state.new_id() else { return Backing::Anonymous };
        let file = Arc::new(MappedFile {
            id,
            path: if opened.named { String::from_utf8_lossy(path) } else { path::shown(path) }
                .into_owned(),
            facts,
            kernel_build_id: build_id.cloned(),
        });
        let descriptor = Some(Arc::new(opened.descriptor));
        let mut entry = Entry::new(key, Some(Arc::clone(&file)), descriptor, place);
        entry.opened_at = monotonic_now();
        state.add(entry, Some((id, carried)));
        Backing::File(file)
    }

    /// The process is gone, or shields itself. A file of the same path and build id that was read before
    /// is as good if nobody else could have made it; else the process that made it may see the same file.
    fn gone(&self, wanted: Wanted<'_>) -> Backing {
        let path = &wanted.mapping.path;
        if let Some(build_id) = wanted.build_id {
            if let Some(backing) = self.state().with_build_id(build_id, path) {
                return backing;
            }
            for relative in wanted.relatives {
                let Ok(opened) = self.host.open_path(relative, path) else { continue };
                let backing = self.opened(opened, None, Some(build_id), path);
                if let Backing::File(file) = &backing
                    && carried(file) == Some(build_id)
                {
                    return backing;
                }
            }
        }
        if let Some(backing) = self.unchanged(wanted) {
            return backing;
        }
        let mut state = self.state();
        let (backing, new) = state.reported(path, wanted.build_id);
        state.counts.unreadable += u64::from(new);
        backing
    }

    /// By whose mounts the paths of a look are meant, if only by a relative's where the process is gone.
    #[must_use]
    pub fn view(&self, look: &Look) -> Vec<u8> {
        let mut tasks = look.task.into_iter().chain(look.relatives);
        tasks.find_map(|task| self.host.view(task).ok()).unwrap_or_default()
    }

    /// What stands behind a mapping until somebody has looked: a file that is known by its path alone.
    #[must_use]
    pub fn stand_in(&self, path: &[u8], build_id: Option<&BuildId>) -> Backing {
        match path {
            b"//anon" => Backing::Anonymous,
            [b'/', ..] => self.state().reported(path, build_id).0,
            _ => Backing::Anonymous,
        }
    }

    /// The vDSO is the same for all processes of 64 bits. The agent's own is taken: a process may write over its own,
    /// which would be everybody's then. Kept in memory that looks like a file. One of another length is that of
    /// 32 bits, whose stacks are not walked, or no whole one.
    fn vdso(&self, wanted: Wanted<'_>) -> Backing {
        let Wanted { mapping, .. } = wanted;
        let known = self.state().vdso.clone();
        let Some((length, backing)) = known.or_else(|| self.own_vdso()) else {
            return Backing::Anonymous;
        };
        let is_whole = mapping.end.0.saturating_sub(mapping.start.0) == length;
        if is_whole { backing } else { Backing::Anonymous }
    }

    fn own_vdso(&self) -> Option<(u64, Backing)> {
        let opened = self.host.vdso().and_then(|(length, bytes)| {
            let descriptor = rustix::fs::memfd_create("vdso", MemfdFlags::CLOEXEC)?;
            let mut file = std::fs::File::from(descriptor);
            file.write_all(&bytes)?;
            let identity =
                FileIdentity { device: 0, inode: 0, size: length, modified_ns: 0, changed_ns: 0 };
            let descriptor = file.into();
            Ok((length, OpenedFile { descriptor, identity, named: true, other_path: None }))
        });
        let (length, opened) = opened.ok()?;
        let backing = self.opened(opened, None, None, b"[vdso]");
        let mut state = self.state();
        if let Backing::File(file) = &backing
            && let Some(entry) = state.entries.get_mut(&file.id)
        {
            entry.pinned = true;
        }
        if matches!(backing, Backing::Anonymous) && state.is_full() {
            return None; // it is asked for again
        }
        Some(state.vdso.insert((length, backing)).clone())
    }
}

impl OpenFiles for Files {
    fn open(&self, id: FileId) -> Option<Arc<OwnedFd>> {
        if let Some(entry) = self.state().entries.get_mut(&id)
            && let Some(descriptor) = &entry.descriptor
        {
            entry.opened_at = monotonic_now();
            return Some(Arc::clone(descriptor));
        }
        self.open_again(id)
    }

    fn open_debug(&self, id: FileId) -> Option<Arc<OwnedFd>> {
        self.debug_file(id)
    }
}

impl Entry {
    fn new(
        key: Key,
        file: Option<Arc<MappedFile>>,
        descriptor: Option<Arc<OwnedFd>>,
        place: Option<(Task, &MapsEntry)>,
    ) -> Self {
        let places = place.map(|(task, mapping)| (task, mapping.clone())).into_iter().collect();
        let debug_file = DebugFile::NotLooked;
        let opened_at = MonotonicNs(0);
        let reported = match &key {
            Key::Reported(path, _) => path.len(),
            Key::Opened(..) => 0,
        };
        let placed = place.map_or(0, |(_, mapping)| mapping.path.len());
        let path_bytes = file.as_ref().map_or(0, |file| file.path.len()).max(reported).max(placed);
        Self {
            key,
            file,
            descriptor,
            copy_bytes: 0,
            searches: 0,
            path_bytes,
            pinned: false,
            places,
            used: 0,
            opened_at,
            debug_file,
        }
    }

    fn backing(&self) -> Backing {
        self.file.as_ref().map_or(Backing::Anonymous, |file| Backing::File(Arc::clone(file)))
    }

    /// Descriptors that it holds.
    fn open(&self) -> usize {
        let debug_file = matches!(self.debug_file, DebugFile::Open(_));
        usize::from(self.descriptor.is_some()) + usize::from(debug_file)
    }

    fn close(&mut self) {
        self.descriptor = None;
        if matches!(self.debug_file, DebugFile::Open(_)) {
            self.debug_file = DebugFile::NotLooked;
        }
    }

    /// Nobody but this table holds the file.
    fn unused(&self) -> bool {
        !self.pinned && self.file.as_ref().is_none_or(|file| Arc::strong_count(file) == 1)
    }
}

impl State {
    fn new_id(&mut self) -> Option<FileId> {
        let id = FileId(self.next_id);
        self.next_id = self.next_id.checked_add(1)?;
        Some(id)
    }

    fn known(&mut self, key: &Key, place: Option<(Task, &MapsEntry)>) -> Option<Backing> {
        let id = *self.by_key.get(key)?;
        self.clock += 1;
        let entry = self.entries.get_mut(&id)?;
        entry.used = self.clock;
        if let Some((task, mapping)) = place
            && !entry.places.iter().any(|(known, _)| known.pid == task.pid)
        {
            entry.places.push_back((task, mapping.clone()));
            if entry.places.len() > FILE_PLACES_MAX {
                entry.places.pop_front();
            }
        }
        Some(entry.backing())
    }

    /// A file that nobody can look at, and whether it was not known before.
    fn reported(&mut self, path: &[u8], build_id: Option<&BuildId>) -> (Backing, bool) {
        let key = Key::Reported(path.to_vec(), build_id.cloned());
        if let Some(backing) = self.known(&key, None) {
            return (backing, false);
        }
        if !self.has_room() {
            return (Backing::Anonymous, false);
        }
        let Some(id) = self.new_id() else { return (Backing::Anonymous, false) };
        let file = Arc::new(MappedFile {
            id,
            // Nobody can look at it: the kernel's remark is likelier than a file that is called so.
            path: path::shown(path).into_owned(),
            facts: None,
            kernel_build_id: build_id.cloned(),
        });
        self.add(Entry::new(key, Some(Arc::clone(&file)), None, None), Some((id, None)));
        (Backing::File(file), true)
    }

    fn with_build_id(&mut self, build_id: &BuildId, path: &[u8]) -> Option<Backing> {
        let id = *self.by_build_id.get(&(build_id.clone(), path::shown(path).into_owned()))?;
        self.clock += 1;
        let entry = self.entries.get_mut(&id)?;
        entry.used = self.clock;
        Some(entry.backing())
    }

    /// Adds a file, for which there is room; `named` is its number and the build id that it may be found by.
    fn add(&mut self, mut entry: Entry, named: Option<(FileId, Option<BuildId>)>) {
        if entry.descriptor.is_some() {
            self.close_least_used(FILES_OPEN_MAX.saturating_sub(1));
        }
        self.clock += 1;
        entry.used = self.clock;
        let (id, build_id) = match named {
            Some((id, build_id)) => (id, build_id),
            None => match self.new_id() {
                Some(id) => (id, None),
                None => return,
            },
        };
        self.by_key.insert(entry.key.clone(), id);
        if let Some((build_id, file)) = build_id.zip(entry.file.as_ref()) {
            self.by_build_id.entry((build_id, file.path.clone())).or_insert(id);
        }
        self.bytes = self.bytes.saturating_add(entry.bytes());
        self.entries.insert(id, entry);
    }

    /// Descriptors held, of files and of their debug files.
    fn open(&self) -> usize {
        self.entries.values().map(Entry::open).sum()
    }

    fn close_least_used(&mut self, open_max: usize) {
        let mut open = self.open();
        while open > open_max {
            let entries = self.entries.values_mut();
            let closable = entries.filter(|entry| entry.open() > 0 && !entry.pinned);
            let Some(least) = closable.min_by_key(|entry| entry.opened_at) else { return };
            open -= least.open();
            least.close();
        }
    }
}

/// The build id that a file carries.
fn carried(file: &MappedFile) -> Option<&BuildId> {
    file.facts.as_ref()?.gnu_build_id.as_ref()
}

/// True for a file of root or of the agent's own user. Anybody else can give a file the path (in a mount
/// namespace) and the build id of another and have it mapped first: its names and rows would be those of
/// processes that run the real one and can no longer be asked.
fn trusted(file: &OwnedFd) -> bool {
    let own = rustix::process::geteuid().as_raw();
    rustix::fs::fstat(file).is_ok_and(|stat| [0, own].contains(&stat.st_uid))
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// A mapping as a lifecycle record states it.
#[must_use]
pub fn reported_mapping(
    start: AbsAddr,
    length: u64,
    offset: u64,
    path: Vec<u8>,
) -> Option<MapsEntry> {
    let end = AbsAddr(start.0.checked_add(length).filter(|&end| end > start.0)?);
    Some(MapsEntry { start, end, file_offset: FileOffset(offset), inode: 0, path })
}

#[cfg(test)]
mod tests;
