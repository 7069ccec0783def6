//! What is written, found, refused and deleted. Times are set, not waited for.

use super::*;
use crate::elf::{ForeignFiles as _, LocalFiles};
use crate::unwind::{RowLosses, RowTable};
use agent_ebpf::{RuleKind, UnwindRule};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

fn table(rows: u32) -> Unwound {
    let rules = vec![
        UnwindRule { offset: -8, rbp: -2, ..UnwindRule::plain(RuleKind::RspOffset) },
        UnwindRule::plain(RuleKind::NoInfo),
    ];
    let rows = (0..rows).map(|row| (row * 16, u16::from(row % 2 == 0)));
    Unwound::new(RowTable::new(0x1000, rules, rows).unwrap())
}

fn digest(number: u8) -> UnwindDigest {
    UnwindDigest([number; 32])
}

fn names(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn what_was_stored_is_found_by_what_it_was_made_of() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("cache");
    let cache = TableCache::open(&folder, 1 << 20).unwrap();
    assert!(cache.find(&digest(1)).is_none());
    let mut unwound = table(1000);
    unwound.rows = unwound.rows.with_losses(RowLosses { left_out: 7, ..RowLosses::default() });
    cache.store(&digest(1), &unwound);
    let found = TableCache::open(&folder, 1 << 20).unwrap().find(&digest(1)).unwrap();
    assert_eq!((found.rows, found.digest), (unwound.rows, unwound.digest));
    assert!(cache.find(&digest(2)).is_none());
    let counts = CacheCounts { misses: 2, stored: 1, ..CacheCounts::default() };
    assert_eq!(cache.counts(), counts);
    let mode = std::fs::metadata(&names(&folder)[0]).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn what_is_damaged_is_deleted() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("cache");
    let cache = TableCache::open(&folder, 1 << 20).unwrap();
    cache.store(&digest(1), &table(20));
    let whole = std::fs::read(&names(&folder)[0]).unwrap();
    let mut damaged: Vec<Vec<u8>> = (0..whole.len()).map(|at| whole[..at].to_vec()).collect();
    damaged.extend((0..whole.len()).map(|at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        bytes
    }));
    damaged.push([&whole[..], b"more"].concat());
    for (number, bytes) in damaged.iter().enumerate() {
        std::fs::write(folder.join(file_name(&digest(1))), bytes).unwrap();
        assert!(cache.find(&digest(1)).is_none(), "damage {number}");
        assert_eq!(names(&folder).len(), 0, "damage {number}");
    }
    assert_eq!(cache.counts().damaged, damaged.len() as u64);
}

#[test]
fn what_was_not_used_for_longest_makes_room() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("cache");
    let size = format::encode(&digest(0), &table(1000)).len() as u64;
    let cache = TableCache::open(&folder, 3 * size).unwrap();
    for number in 1..=3 {
        cache.store(&digest(number), &table(1000));
        let time =
            std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number.into());
        let path = folder.join(file_name(&digest(number)));
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }
    assert!(cache.find(&digest(1)).is_some(), "now it is the last one");
    cache.store(&digest(4), &table(1000));
    let there = (1..=4).map(|number| cache.find(&digest(number)).is_some());
    assert_eq!(there.collect::<Vec<_>>(), [true, false, true, true]);
    assert_eq!(cache.counts().deleted, 1);
    // Too large for all of it; and a smaller budget at the next start.
    cache.store(&digest(5), &table(5000));
    assert_eq!(names(&folder).len(), 3);
    drop(TableCache::open(&folder, size).unwrap());
    assert_eq!(names(&folder).len(), 1);
}

#[test]
fn a_folder_of_others_is_refused_and_no_link_is_followed() {
    let parent = tempfile::tempdir().unwrap();
    let open = parent.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o770)).unwrap();
    assert!(matches!(TableCache::open(&open, 1 << 20), Err(CacheError::NotOwn)));
    let folder = parent.path().join("cache");
    let cache = TableCache::open(&folder, 1 << 20).unwrap();
    let link = parent.path().join("link");
    std::os::unix::fs::symlink(&folder, &link).unwrap();
    assert!(matches!(TableCache::open(&link, 1 << 20), Err(CacheError::Io(_))));
    assert!(TableCache::open(&parent.path().join("a/b"), 1 << 20).is_err());
    let target = parent.path().join("target");
    std::fs::write(&target, format::encode(&digest(1), &table(20))).unwrap();
    std::os::unix::fs::symlink(&target, folder.join(file_name(&digest(1)))).unwrap();
    assert!(cache.find(&digest(1)).is_none());
    assert_eq!(cache.counts().failed, 1);
    cache.store(&digest(1), &table(30));
    assert_eq!(cache.find(&digest(1)).unwrap().rows.len(), 30, "the link is replaced");
    assert_ne!(std::fs::read(&target).unwrap().len(), 0);
}

#[test]
fn what_was_not_written_to_its_end_is_deleted_and_no_writer_is_in_the_way_of_another() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("cache");
    drop(TableCache::open(&folder, 1 << 20).unwrap());
    let left = folder.join(format!("{}.{}", file_name(&digest(1)), std::process::id()));
    std::fs::write(&left, b"half").unwrap();
    let foreign = folder.join("README.md");
    std::fs::write(&foreign, b"").unwrap();
    let cache = TableCache::open(&folder, 1 << 20).unwrap();
    assert_eq!(names(&folder), [foreign]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..20).for_each(|_| cache.store(&digest(1), &table(50))));
        }
    });
    assert_eq!(cache.counts(), CacheCounts { stored: 80, ..CacheCounts::default() });
    assert_eq!(names(&folder).len(), 2);
    assert!(cache.find(&digest(1)).is_some());
}

/// Prints what it saves; see `limits::TABLE_CACHE_INPUT_BYTES_MIN`.
#[test]
fn it_pays() {
    let folder = tempfile::tempdir().unwrap();
    let cache = TableCache::open(&folder.path().join("cache"), 1 << 30).unwrap();
    let root = std::process::Command::new("rustc").args(["--print", "sysroot"]).output();
    let lib = root.ok().and_then(|out| {
        Some(PathBuf::from(String::from_utf8(out.stdout).ok()?.trim()).join("lib"))
    });
    let driver = lib.and_then(|lib| {
        let mut files = std::fs::read_dir(lib).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        files.find(|path| path.to_string_lossy().contains("librustc_driver"))
    });
    let own = std::env::current_exe().unwrap();
    for path in ["/usr/bin/python3", "/usr/bin/node", "/usr/bin/perl"]
        .map(PathBuf::from)
        .into_iter()
        .chain(driver)
        .chain([own])
    {
        let Ok(file) = File::open(&path) else { continue };
        let file = OwnedFd::from(file);
        let files = LocalFiles::new();
        let begin = std::time::Instant::now();
        let unwound = Unwound::new(files.unwind_rows(&file).unwrap());
        let compiled = begin.elapsed();
        let begin = std::time::Instant::now();
        let Some(digest) = files.unwind_digest(&file).unwrap() else {
            eprintln!(
                "{}: {} rows compiled in {compiled:?}; too small",
                path.display(),
                unwound.rows.len()
            );
            continue;
        };
        let digested = begin.elapsed();
        let begin = std::time::Instant::now();
        cache.store(&digest, &unwound);
        let stored = begin.elapsed();
        let begin = std::time::Instant::now();
        let found = cache.find(&digest).unwrap();
        let read = begin.elapsed();
        assert_eq!(found.digest, unwound.digest);
        eprintln!(
            "{}: {} rows compiled in {compiled:?}; digest {digested:?}, store {stored:?}, read {read:?}",
            path.display(),
            unwound.rows.len(),
        );
    }
}
