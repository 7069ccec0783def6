//! Bytes of stored records: a writer, and a reader that trusts nothing. Numbers are LEB128 varints, signed
//! ones zigzag, texts carry their length. Not responsible for checksums: whoever frames the bytes adds one.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zstd::bulk::{Compressor, Decompressor};

/// Stored bytes do not say what they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Malformed(pub(super) &'static str);

/// Appends to a buffer.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// What was written.
    pub(super) bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(super) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(low_byte(number) | 0x80);
            number >>= 7;
        }
        self.bytes.push(low_byte(number));
    }

    pub(super) fn signed(&mut self, number: i64) {
        self.number((number << 1 ^ number >> 63).cast_unsigned());
    }

    pub(super) fn length(&mut self, length: usize) {
        self.number(length as u64);
    }

    pub(super) fn wide(&mut self, number: u128) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn blob(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.raw(bytes);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.blob(text.as_bytes());
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low byte is what is asked for")]
fn low_byte(number: u64) -> u8 {
    number as u8
}

/// Reads from a slice; every length is checked against what is left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn raw(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Malformed("it ends early"))?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.raw(1)?[0])
    }

    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed("a number exceeds 64 bits"))
    }

    pub(super) fn signed(&mut self) -> Result<i64, Malformed> {
        let number = self.number()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    pub(super) fn small(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).ok().ok_or(Malformed("a number exceeds 32 bits"))
    }

    /// Number of entries that follow, each of at least `entry_bytes_min` bytes: a wrong length must not
    /// reserve memory.
    pub(super) fn count(&mut self, entry_bytes_min: usize) -> Result<usize, Malformed> {
        let count =
            usize::try_from(self.number()?).ok().ok_or(Malformed("a length is too large"))?;
        match count.checked_mul(entry_bytes_min) {
            Some(bytes) if bytes <= self.rest.len() => Ok(count),
            _ => Err(Malformed("a length exceeds what is left")),
        }
    }

    pub(super) fn wide(&mut self) -> Result<u128, Malformed> {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(self.raw(16)?);
        Ok(u128::from_le_bytes(bytes))
    }

    pub(super) fn blob(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.count(1)?;
        self.raw(length)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.blob()?).ok().ok_or(Malformed("a text is not UTF-8"))
    }

    pub(super) fn shared_text(&mut self) -> Result<Arc<str>, Malformed> {
        Ok(self.text()?.into())
    }

    pub(super) fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("bytes follow its end")) }
    }
}

/// Level of compression: the fastest.
const ZSTD_LEVEL: i32 = 1;

/// Compressors and their counterparts at rest: to make one takes longer than to use it for a small batch.
static COMPRESSORS: Pool<Compressor<'static>> = Pool(Mutex::new(Vec::new()));
static DECOMPRESSORS: Pool<Decompressor<'static>> = Pool(Mutex::new(Vec::new()));

/// Of each kind that are kept, some 600 KB each.
const POOLED_MAX: usize = 4;

struct Pool<T>(Mutex<Vec<T>>);

impl<T> Pool<T> {
    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works with one that rests, or with a new one.
    fn with<R>(
        &self,
        make: impl FnOnce() -> io::Result<T>,
        work: impl FnOnce(&mut T) -> io::Result<R>,
    ) -> io::Result<R> {
        let pooled = self.lock().pop();
        let mut one = pooled.map_or_else(make, Ok)?;
        let result = work(&mut one)?;
        let mut all = self.lock();
        if all.len() < POOLED_MAX {
            all.push(one);
        }
        Ok(result)
    }
}

/// Appends bytes compressed.
pub(super) fn press(plain: &[u8], into: &mut Writer) -> io::Result<()> {
    let make = || Compressor::new(ZSTD_LEVEL);
    let pressed = COMPRESSORS.with(make, |one| one.compress(plain))?;
    into.length(plain.len());
    into.blob(&pressed);
    Ok(())
}

/// Reads what [`press`] wrote, if it has at most `bytes_max` bytes.
pub(super) fn unpress(reader: &mut Reader<'_>, bytes_max: usize) -> Result<Vec<u8>, Malformed> {
    let length = usize::try_from(reader.number()?).unwrap_or(usize::MAX);
    let pressed = reader.blob()?;
    if length > bytes_max {
        return Err(Malformed("compressed bytes are too many"));
    }
    let plain = DECOMPRESSORS.with(Decompressor::new, |one| one.decompress(pressed, length)).ok();
    let plain = plain.filter(|plain| plain.len() == length);
    plain.ok_or(Malformed("compressed bytes do not decompress"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(numbers in prop::collection::vec(any::<u64>(), 0..20),
                                   signed in any::<i64>(), text in ".*", wide in any::<u128>()) {
            let mut writer = Writer::default();
            numbers.iter().for_each(|&number| writer.number(number));
            writer.signed(signed);
            writer.text(&text);
            writer.wide(wide);
            let mut reader = Reader::new(&writer.bytes);
            for number in numbers {
                prop_assert_eq!(reader.number(), Ok(number));
            }
            prop_assert_eq!(reader.signed(), Ok(signed));
            prop_assert_eq!(reader.text(), Ok(text.as_str()));
            prop_assert_eq!(reader.wide(), Ok(wide));
            prop_assert_eq!(reader.end(), Ok(()));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(Reader::new(&[0x80]).number(), Err(Malformed("it ends early")));
        assert_eq!(Reader::new(&[0xff; 11]).number(), Err(Malformed("a number exceeds 64 bits")));
        assert_eq!(
            Reader::new(&[200, 1, 0]).count(2),
            Err(Malformed("a length exceeds what is left"))
        );
        assert_eq!(Reader::new(&[1, 0xff]).text(), Err(Malformed("a text is not UTF-8")));
    }
}
