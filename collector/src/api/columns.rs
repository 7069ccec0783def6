//! Long columns of numbers as JSON: a large flame graph is some millions of numbers, and to write them is much of its
//! time. Several columns are written at once, each is given back as soon as it is written, and nothing is copied into one text.

use crate::limits::QUERY_THREADS_MAX;
use axum::body::Body;
use bytes::Bytes;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

/// Numbers from which on a second thread is worth its start.
const NUMBERS_ALONE_MAX: usize = 50_000;

/// A column.
pub(super) enum Numbers {
    Positions(Vec<u32>),
    Values(Vec<i64>),
    Flags(Vec<u8>),
}

impl Numbers {
    fn len(&self) -> usize {
        match self {
            Self::Positions(numbers) => numbers.len(),
            Self::Values(numbers) => numbers.len(),
            Self::Flags(numbers) => numbers.len(),
        }
    }

    /// The JSON of the column.
    fn text(self) -> Vec<u8> {
        match self {
            Self::Positions(numbers) => list(&numbers),
            Self::Values(numbers) => list(&numbers),
            Self::Flags(numbers) => list(&numbers),
        }
    }
}

/// The texts of an answer, one behind the other: `before`, an object of the columns, `behind`.
pub(super) fn texts(
    before: Vec<u8>,
    columns: Vec<(&'static str, Numbers)>,
    behind: Vec<u8>,
) -> Vec<Bytes> {
    let count: usize = columns.iter().map(|(_, numbers)| numbers.len()).sum();
    let written: Vec<Mutex<Vec<u8>>> = columns.iter().map(|_| Mutex::default()).collect();
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let waiting = Mutex::new(columns.into_iter().enumerate());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((at, (_, numbers))) = next() {
            let text = numbers.text();
            *written[at].lock().unwrap_or_else(PoisonError::into_inner) = text;
        }
    };
    let others = if count > NUMBERS_ALONE_MAX { QUERY_THREADS_MAX - 1 } else { 0 };
    std::thread::scope(|scope| {
        for _ in 0..others {
            scope.spawn(work);
        }
        work();
    });
    let mut texts = vec![Bytes::from(before)];
    for (at, (name, text)) in names.into_iter().zip(written).enumerate() {
        let comma = if at == 0 { '{' } else { ',' };
        texts.push(Bytes::from(format!("{comma}\"{name}\":")));
        texts.push(Bytes::from(text.into_inner().unwrap_or_else(PoisonError::into_inner)));
    }
    texts.push(Bytes::from_static(b"}"));
    texts.push(Bytes::from(behind));
    texts
}

/// The body of these texts.
pub(super) fn body(texts: Vec<Bytes>) -> Body {
    Body::from_stream(futures_util::stream::iter(texts.into_iter().map(Ok::<_, Infallible>)))
}

fn list<T: Copy + Into<i64>>(numbers: &[T]) -> Vec<u8> {
    // Most numbers are small; values have some ten digits.
    let mut text = Vec::with_capacity(2 + numbers.len() * (1 + size_of::<T>()));
    text.push(b'[');
    for (at, &number) in numbers.iter().enumerate() {
        if at > 0 {
            text.push(b',');
        }
        push_number(&mut text, number.into());
    }
    text.push(b']');
    text
}

fn push_number(text: &mut Vec<u8>, number: i64) {
    /// Digits of the longest number.
    const DIGITS_MAX: usize = 20;
    if number < 0 {
        text.push(b'-');
    }
    let (mut digits, mut first, mut rest) = ([0; DIGITS_MAX], DIGITS_MAX, number.unsigned_abs());
    loop {
        first -= 1;
        digits[first] = b'0' + u8::try_from(rest % 10).unwrap_or_default();
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[first..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_the_json_that_serde_reads() {
        let values = vec![0, 7, -1, 10, 1_234_567_890, i64::MAX, i64::MIN];
        let positions = vec![0, u32::MAX];
        let columns = vec![
            ("values", Numbers::Values(values.clone())),
            ("positions", Numbers::Positions(positions.clone())),
            ("flags", Numbers::Flags(vec![])),
            ("long", Numbers::Flags(vec![1; NUMBERS_ALONE_MAX])),
        ];
        let text = texts(b"{\"nodes\":".to_vec(), columns, b",\"more\":1}".to_vec()).concat();
        let read: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let expected = serde_json::json!({
            "nodes": {
                "values": values, "positions": positions, "flags": [],
                "long": vec![1; NUMBERS_ALONE_MAX],
            },
            "more": 1,
        });
        assert_eq!(read, expected);
    }
}
