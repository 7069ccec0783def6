//! Which processes wait for the table of which file: looked up from either side, because a table comes for all
//! who wait for it, and a process ends while it waits for many.

use crate::address::{FileId, Pid};
use hashbrown::{HashMap, HashSet};

/// Who waits for what.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    by_file: HashMap<FileId, HashSet<Pid>>,
    by_process: HashMap<Pid, HashSet<FileId>>,
}

impl Waiting {
    /// A process waits for a file.
    pub(super) fn add(&mut self, file: FileId, pid: Pid) {
        self.by_file.entry(file).or_default().insert(pid);
        self.by_process.entry(pid).or_default().insert(file);
    }

    /// What a process waits for.
    pub(super) fn files(&self, pid: Pid) -> Vec<FileId> {
        self.by_process.get(&pid).into_iter().flatten().copied().collect()
    }

    /// How many wait for a file.
    #[cfg(test)]
    pub(super) fn pids(&self, file: FileId) -> usize {
        self.by_file.get(&file).map_or(0, HashSet::len)
    }

    /// True if nobody waits for anything.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_file.is_empty() && self.by_process.is_empty()
    }

    /// The wait for a file is over. Answers whose it was.
    pub(super) fn end(&mut self, file: FileId) -> HashSet<Pid> {
        let pids = self.by_file.remove(&file).unwrap_or_default();
        for pid in &pids {
            remove(&mut self.by_process, *pid, file);
        }
        pids
    }

    /// A process waits no more. Its files are made all the same.
    pub(super) fn forget(&mut self, pid: Pid) {
        for file in self.by_process.remove(&pid).unwrap_or_default() {
            remove(&mut self.by_file, file, pid);
        }
    }
}

fn remove<K: std::hash::Hash + Eq, V: std::hash::Hash + Eq>(
    map: &mut HashMap<K, HashSet<V>>,
    key: K,
    value: V,
) {
    let Some(values) = map.get_mut(&key) else { return };
    values.remove(&value);
    if values.is_empty() {
        map.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn sorted<T: Ord>(values: impl IntoIterator<Item = T>) -> Vec<T> {
        let mut values: Vec<T> = values.into_iter().collect();
        values.sort_unstable();
        values
    }

    #[test]
    fn both_sides_agree() {
        let mut waiting = Waiting::default();
        for (file, pid) in [(1, 10), (1, 11), (2, 10), (3, 11)] {
            waiting.add(FileId(file), Pid(pid));
        }
        assert_eq!(sorted(waiting.files(Pid(10))), [FileId(1), FileId(2)]);
        assert_eq!(sorted(waiting.end(FileId(1))), [Pid(10), Pid(11)]);
        assert_eq!(sorted(waiting.files(Pid(10))), [FileId(2)]);
        waiting.forget(Pid(11));
        assert_eq!(waiting.files(Pid(11)), []);
        assert!(waiting.end(FileId(3)).is_empty());
        waiting.forget(Pid(10));
        assert!(waiting.is_empty());
    }

    #[test]
    fn processes_that_end_do_not_meet_the_files_of_others() {
        let mut waiting = Waiting::default();
        let count = 30_000;
        for number in 0..count {
            waiting.add(FileId(number), Pid(1));
            waiting.add(FileId(count), Pid(2 + number));
        }
        let begin = Instant::now();
        for number in 0..count {
            waiting.forget(Pid(2 + number));
        }
        // Each against every file would be a thousand million look-ups.
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        assert_eq!(waiting.files(Pid(1)).len(), 30_000);
    }
}
