//! Columns of numbers as bytes: blocks of 128 bit-packed values, the rest as varints. Values of 64 bits are
//! stored as (value - smallest) / greatest common divisor, because sampled values are multiples of a period.

use super::codec::{Malformed, Reader, Writer};
use crate::limits;
use bitpacking::{BitPacker as _, BitPacker4x};

/// Values in a block.
const BLOCK: usize = BitPacker4x::BLOCK_LEN;
/// Bytes of a block at the largest width.
const BLOCK_BYTES_MAX: usize = BLOCK * 4;

/// How the values of 64 bits are stored.
const MODE_CONSTANT: u8 = 0;
const MODE_NARROW: u8 = 1;
const MODE_WIDE: u8 = 2;

/// Appends values of 32 bits.
pub(super) fn pack(values: &[u32], into: &mut Writer) {
    let packer = BitPacker4x::new();
    let mut blocks = values.chunks_exact(BLOCK);
    for block in &mut blocks {
        let bits = packer.num_bits(block);
        append_block(into, bits, |bytes| packer.compress(block, bytes, bits));
    }
    blocks.remainder().iter().for_each(|&value| into.number(value.into()));
}

/// Appends values of 32 bits that never fall.
pub(super) fn pack_sorted(values: &[u32], into: &mut Writer) {
    let packer = BitPacker4x::new();
    let mut last = 0;
    let mut blocks = values.chunks_exact(BLOCK);
    for block in &mut blocks {
        let bits = packer.num_bits_sorted(last, block);
        append_block(into, bits, |bytes| packer.compress_sorted(last, block, bytes, bits));
        last = block[BLOCK - 1];
    }
    for &value in blocks.remainder() {
        into.number(value.saturating_sub(last).into());
        last = value;
    }
}

/// Appends values of 64 bits.
pub(super) fn pack_wide(values: &[i64], into: &mut Writer) {
    let smallest = values.iter().copied().min().unwrap_or(0);
    let offsets: Vec<u64> =
        values.iter().map(|value| value.wrapping_sub(smallest).cast_unsigned()).collect();
    let divisor = offsets.iter().fold(0, |divisor, &offset| common_divisor(divisor, offset));
    into.signed(smallest);
    if divisor == 0 {
        into.byte(MODE_CONSTANT);
        return;
    }
    let scaled = || offsets.iter().map(|offset| offset / divisor);
    let fits = scaled().all(|value| value <= u32::MAX.into());
    into.byte(if fits { MODE_NARROW } else { MODE_WIDE });
    into.number(divisor);
    let low: Vec<u32> = scaled().map(low_half).collect();
    pack(&low, into);
    if !fits {
        let high: Vec<u32> = scaled().map(|value| low_half(value >> 32)).collect();
        pack(&high, into);
    }
}

/// Reads `count` values of 32 bits.
pub(super) fn unpack(
    reader: &mut Reader<'_>,
    count: usize,
    values: &mut Vec<u32>,
) -> Result<(), Malformed> {
    let blocks = resize(reader, count, values)?;
    let packer = BitPacker4x::new();
    let (packed, rest) = values.split_at_mut(blocks);
    for block in packed.chunks_exact_mut(BLOCK) {
        let (bits, bytes) = read_block(reader)?;
        packer.decompress(bytes, block, bits);
    }
    for value in rest {
        *value = reader.small()?;
    }
    Ok(())
}

/// Reads `count` values of 32 bits that never fall.
pub(super) fn unpack_sorted(
    reader: &mut Reader<'_>,
    count: usize,
    values: &mut Vec<u32>,
) -> Result<(), Malformed> {
    let blocks = resize(reader, count, values)?;
    let packer = BitPacker4x::new();
    let (packed, rest) = values.split_at_mut(blocks);
    let mut last = 0;
    for block in packed.chunks_exact_mut(BLOCK) {
        let (bits, bytes) = read_block(reader)?;
        packer.decompress_sorted(last, bytes, block, bits);
        last = block[BLOCK - 1];
    }
    for value in rest {
        last = last.checked_add(reader.small()?).ok_or(Malformed("a column exceeds 32 bits"))?;
        *value = last;
    }
    Ok(())
}

/// Reads `count` values of 64 bits; `scratch` is a buffer to reuse.
pub(super) fn unpack_wide(
    reader: &mut Reader<'_>,
    count: usize,
    values: &mut Vec<i64>,
    scratch: &mut Vec<u32>,
) -> Result<(), Malformed> {
    let smallest = reader.signed()?;
    let mode = reader.byte()?;
    values.clear();
    if mode == MODE_CONSTANT {
        if count > limits::SEGMENT_ROWS_MAX {
            return Err(Malformed("a column is too long"));
        }
        values.resize(count, smallest);
        return Ok(());
    }
    let divisor = reader.number()?;
    unpack(reader, count, scratch)?;
    let value = |scaled: u64| smallest.wrapping_add(scaled.wrapping_mul(divisor).cast_signed());
    values.extend(scratch.iter().map(|&low| value(low.into())));
    if mode == MODE_WIDE {
        unpack(reader, count, scratch)?;
        for (sum, &high) in values.iter_mut().zip(scratch.iter()) {
            let offset = (u64::from(high) << 32).wrapping_mul(divisor);
            *sum = sum.wrapping_add(offset.cast_signed());
        }
    } else if mode != MODE_NARROW {
        return Err(Malformed("a column of an unknown mode"));
    }
    Ok(())
}

/// Makes room for `count` values; answers how many of them are in whole blocks.
fn resize(reader: &Reader<'_>, count: usize, values: &mut Vec<u32>) -> Result<usize, Malformed> {
    let bytes_min = count / BLOCK + count % BLOCK;
    if count > limits::SEGMENT_ROWS_MAX || bytes_min > reader.rest().len() {
        return Err(Malformed("a column is too long"));
    }
    values.resize(count, 0);
    Ok(count - count % BLOCK)
}

fn append_block(into: &mut Writer, bits: u8, compress: impl FnOnce(&mut [u8]) -> usize) {
    let mut bytes = [0; BLOCK_BYTES_MAX];
    let length = compress(&mut bytes);
    into.byte(bits);
    into.raw(&bytes[..length]);
}

fn read_block<'a>(reader: &mut Reader<'a>) -> Result<(u8, &'a [u8]), Malformed> {
    let bits = reader.byte()?;
    if bits > 32 {
        return Err(Malformed("a block is wider than 32 bits"));
    }
    Ok((bits, reader.raw(usize::from(bits) * BLOCK / 8)?))
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
fn low_half(value: u64) -> u32 {
    value as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check_wide(values: &[i64]) {
        let mut writer = Writer::default();
        pack_wide(values, &mut writer);
        let mut reader = Reader::new(&writer.bytes);
        let (mut read, mut scratch) = (vec![9], vec![9]);
        unpack_wide(&mut reader, values.len(), &mut read, &mut scratch).unwrap();
        assert_eq!(read, values);
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn extremes_survive() {
        let rows: [&[i64]; 6] = [
            &[],
            &[0],
            &[i64::MIN, i64::MAX],
            &[i64::MIN, 0, i64::MAX, -1],
            &[52_631_578, 105_263_156, 52_631_578],
            &[-5, -5, -5],
        ];
        rows.into_iter().for_each(check_wide);
    }

    #[test]
    fn multiples_of_a_period_take_few_bits() {
        let mut writer = Writer::default();
        let values: Vec<i64> = (0..1_280).map(|at| 52_631_578 * (1 + at % 4)).collect();
        pack_wide(&values, &mut writer);
        assert!(writer.bytes.len() < 1_280 / 4 + 30, "{}", writer.bytes.len());
    }

    proptest! {
        #[test]
        fn columns_survive(values in prop::collection::vec(any::<u32>(), 0..600), shift in 0..32,
                           wide in prop::collection::vec(any::<i64>(), 0..300), factor in any::<i64>()) {
            let mut values: Vec<u32> = values.into_iter().map(|value| value >> shift).collect();
            let mut writer = Writer::default();
            pack(&values, &mut writer);
            let mut read = vec![];
            unpack(&mut Reader::new(&writer.bytes), values.len(), &mut read).unwrap();
            prop_assert_eq!(&read, &values);
            values.sort_unstable();
            let mut writer = Writer::default();
            pack_sorted(&values, &mut writer);
            unpack_sorted(&mut Reader::new(&writer.bytes), values.len(), &mut read).unwrap();
            prop_assert_eq!(&read, &values);
            check_wide(&wide);
            check_wide(&wide.iter().map(|value| (value >> 40).wrapping_mul(factor)).collect::<Vec<_>>());
        }

        #[test]
        fn random_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..400),
                                            count in 0_usize..600) {
            let (mut read, mut wide) = (vec![], vec![]);
            // Any bytes may be a column; what counts is that nothing panics and lengths are right.
            if unpack(&mut Reader::new(&bytes), count, &mut read).is_ok() {
                prop_assert_eq!(read.len(), count);
            }
            if unpack_sorted(&mut Reader::new(&bytes), count, &mut read).is_ok() {
                prop_assert_eq!(read.len(), count);
            }
            if unpack_wide(&mut Reader::new(&bytes), count, &mut wide, &mut read).is_ok() {
                prop_assert_eq!(wide.len(), count);
            }
        }
    }
}
