//! A WAL that ends anywhere.

use super::*;
use crate::store::embedded::wal::{self, Replayed};

/// Payloads of three records and the bytes of their file.
fn three_records(dir: &Path) -> (Vec<Vec<u8>>, PathBuf, Vec<u8>) {
    let payloads = vec![vec![1; 10], vec![2; 300], vec![3; 40]];
    let mut log = Wal::new(Arc::new(Disk), dir.to_owned(), 7);
    for payload in &payloads {
        let mut record = Vec::new();
        wal::frame(9, payload, &mut record).unwrap();
        log.write(&record).unwrap();
    }
    let path = dir.join("0000000000000007.wal");
    let bytes = std::fs::read(&path).unwrap();
    (payloads, path, bytes)
}

fn replay(path: &Path) -> (Vec<Vec<u8>>, Replayed) {
    let (mut found, mut report) = (Vec::new(), Replayed::default());
    wal::replay(&Disk, path, &mut report, &mut |kind, payload| {
        assert_eq!(kind, 9);
        found.push(payload.to_vec());
        Ok(())
    })
    .unwrap();
    (found, report)
}

#[test]
fn every_length_gives_the_records_before_it_and_is_cut_there() {
    let dir = tempfile::tempdir().unwrap();
    let (payloads, path, bytes) = three_records(dir.path());
    let ends = [8, 8 + 9 + 10, 8 + 9 + 10 + 9 + 300, bytes.len()];
    for length in 0..=bytes.len() {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let complete = ends.iter().filter(|&&end| end <= length).count().saturating_sub(1);
        let (found, report) = replay(&path);
        assert_eq!(found, payloads[..complete], "length {length}");
        let intact = if length < 8 { 0 } else { ends[complete] };
        assert_eq!(report.torn_bytes, (length - intact) as u64, "length {length}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), intact as u64);
        assert_eq!(replay(&path).1.torn_bytes, 0, "cut once");
    }
}

#[test]
fn every_wrong_byte_of_the_last_record_loses_that_record_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (payloads, path, bytes) = three_records(dir.path());
    for at in 8 + 9 + 10 + 9 + 300..bytes.len() {
        let mut wrong = bytes.clone();
        wrong[at] ^= 0x40;
        std::fs::write(&path, &wrong).unwrap();
        assert_eq!(replay(&path).0, payloads[..2], "byte {at}");
    }
}

/// Also where the damage is in its length, which says where the next one begins.
#[test]
fn any_wrong_byte_of_a_record_loses_that_record_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (payloads, path, bytes) = three_records(dir.path());
    let second = 8 + 9 + 10..8 + 9 + 10 + 9 + 300;
    for (at, flip) in second.flat_map(|at| [1, 0x40, 0xff].map(|flip| (at, flip))) {
        let mut wrong = bytes.clone();
        wrong[at] ^= flip;
        std::fs::write(&path, &wrong).unwrap();
        let (found, report) = replay(&path);
        assert_eq!(found, [payloads[0].clone(), payloads[2].clone()], "byte {at} ^ {flip}");
        assert_eq!(report, Replayed { records: 2, torn_bytes: 0, damaged: 1 });
    }
}

#[test]
fn garbage_behind_the_end_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let (payloads, path, bytes) = three_records(dir.path());
    for garbage in [vec![0; 4096], vec![0xff; 4096], b"\x05\0\0\0junkjunk".to_vec()] {
        std::fs::write(&path, [bytes.clone(), garbage].concat()).unwrap();
        assert_eq!(replay(&path).0, payloads);
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}
