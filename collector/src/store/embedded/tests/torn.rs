//! A WAL that ends anywhere.

use super::*;
use crate::store::embedded::wal::{self, Replayed};

/// Name, version and salt of a file.
const HEADER: usize = 16;
/// Where the second of three records begins, and where it ends.
const SECOND: usize = HEADER + 9 + 10;
const THIRD: usize = SECOND + 9 + 300;

/// Payloads of three records and the bytes of their file.
fn three_records(dir: &Path) -> (Vec<Vec<u8>>, PathBuf, Vec<u8>) {
    write_records(dir, vec![vec![1; 10], vec![2; 300], vec![3; 40]])
}

fn write_records(dir: &Path, payloads: Vec<Vec<u8>>) -> (Vec<Vec<u8>>, PathBuf, Vec<u8>) {
    let mut log = Wal::new(Arc::new(Disk), dir.to_owned(), 7);
    for payload in &payloads {
        let mut record = Vec::new();
        log.frame(9, payload, &mut record).unwrap();
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
    let ends = [HEADER, SECOND, THIRD, bytes.len()];
    for length in 0..=bytes.len() {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let complete = ends.iter().filter(|&&end| end <= length).count().saturating_sub(1);
        let (found, report) = replay(&path);
        assert_eq!(found, payloads[..complete], "length {length}");
        let intact = if length < HEADER { 0 } else { ends[complete] };
        assert_eq!(report.torn_bytes, (length - intact) as u64, "length {length}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), intact as u64);
        assert_eq!(replay(&path).1.torn_bytes, 0, "cut once");
    }
}

#[test]
fn every_wrong_byte_of_the_last_record_loses_that_record_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (payloads, path, bytes) = three_records(dir.path());
    for at in THIRD..bytes.len() {
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
    for (at, flip) in (SECOND..THIRD).flat_map(|at| [1, 0x40, 0xff].map(|flip| (at, flip))) {
        let mut wrong = bytes.clone();
        wrong[at] ^= flip;
        std::fs::write(&path, &wrong).unwrap();
        let (found, report) = replay(&path);
        assert_eq!(found, [payloads[0].clone(), payloads[2].clone()], "byte {at} ^ {flip}");
        assert_eq!(report, Replayed { records: 2, torn_bytes: 0, damaged: 1 });
    }
}

/// What a client sends becomes part of a record. A record made up in it is none, in whichever version.
#[test]
fn a_record_inside_of_a_damaged_record_is_not_taken_for_one() {
    let dir = tempfile::tempdir().unwrap();
    let forged = [9; 20];
    let mut inside = vec![7; 50];
    inside.extend(u32::try_from(forged.len()).unwrap().to_le_bytes());
    inside.extend(crc32c::crc32c(&forged).to_le_bytes());
    inside.extend(forged);
    let (payloads, path, salted) =
        write_records(dir.path(), vec![vec![1; 10], inside, vec![3; 40]]);
    let mut unsalted = b"VSTWAL\x00\x01".to_vec();
    for payload in &payloads {
        let body = [&[9][..], payload].concat();
        unsalted.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
        unsalted.extend(crc32c::crc32c(&body).to_le_bytes());
        unsalted.extend(body);
    }
    std::fs::write(&path, &unsalted).unwrap();
    assert_eq!(replay(&path).0, payloads, "the first version is still read");
    let lengths = [(salted, SECOND, vec![0, 2]), (unsalted, SECOND - 8, vec![0])];
    for (mut bytes, second, left) in lengths {
        bytes[second + 2] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let left: Vec<Vec<u8>> = left.into_iter().map(|at: usize| payloads[at].clone()).collect();
        assert_eq!(replay(&path).0, left);
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
