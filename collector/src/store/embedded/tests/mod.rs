//! The embedded engine against torn logs, lost writes, full disks, damage, limits and kill -9.

mod crash;
mod deletion;
mod faults;
mod faulty;
mod inspect;
mod limits;
mod locks;
mod merges;
mod recall;
mod retention;
mod torn;

use super::files::Disk;
use super::*;
use crate::profile::WriteBatch;
use crate::store::Retention;
use crate::store::memory::MemoryStore;
use crate::store::sample_data::{self, START_MS};
use crate::store::test_answers::{check_same, everything, merged, one_profile};

fn options(dir: &Path) -> EmbeddedOptions {
    EmbeddedOptions {
        data_dir: dir.to_owned(),
        data_bytes_max: None,
        retention: Retention::default(),
        clock: Clock::new(|| START_MS + sample_data::SPAN_MS),
    }
}

fn open(dir: &Path) -> EmbeddedStore {
    EmbeddedStore::open(options(dir)).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
