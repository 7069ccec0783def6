//! The bytes of a protobuf message, field by field, without making an object of any. A [`Span`] is where a
//! nested message, a text or packed numbers lie; who wants it walks into it.

use super::fault::Fault;

/// A range of the body; a body is at most 64 MiB, so 32 bits are enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// The whole body. Bodies above 4 GiB are cut; none is that long.
    pub(super) fn whole(bytes: &[u8]) -> Self {
        Self { start: 0, end: position(bytes.len()) }
    }

    pub(super) fn bytes(self, body: &[u8]) -> &[u8] {
        body.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    pub(super) const fn len(self) -> usize {
        (self.end - self.start) as usize
    }
}

fn position(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A varint.
    Number(u64),
    /// A message, a text, or packed numbers.
    Span(Span),
    /// 4 or 8 bytes, which no field of pprof has.
    Fixed,
}

impl Value {
    pub(super) fn number(self, field: &'static str) -> Result<u64, Fault> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Span(_) | Self::Fixed => Err(Fault::WireType { field }),
        }
    }

    /// A number with a sign, which pprof writes in two's complement.
    pub(super) fn signed(self, field: &'static str) -> Result<i64, Fault> {
        self.number(field).map(u64::cast_signed)
    }

    pub(super) fn span(self, field: &'static str) -> Result<Span, Fault> {
        match self {
            Self::Span(span) => Ok(span),
            Self::Number(_) | Self::Fixed => Err(Fault::WireType { field }),
        }
    }

    /// Calls `each` with every number of a repeated field: packed, or one at a time.
    pub(super) fn numbers(
        self,
        body: &[u8],
        field: &'static str,
        mut each: impl FnMut(u64) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        match self {
            Self::Number(number) => each(number),
            Self::Fixed => Err(Fault::WireType { field }),
            Self::Span(span) => {
                let mut packed = Message::new(body, span);
                while !packed.is_at_end() {
                    each(packed.varint()?)?;
                }
                Ok(())
            }
        }
    }
}

/// Walks through the fields of one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    /// Up to the end of the message.
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Message<'a> {
    pub(super) fn new(body: &'a [u8], span: Span) -> Self {
        Self { bytes: body.get(..span.end as usize).unwrap_or(body), at: span.start as usize }
    }

    fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Number and value of the next field; nothing at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Value)>, Fault> {
        if self.is_at_end() {
            return Ok(None);
        }
        let tag_at = self.at;
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.fixed(8)?,
            2 => {
                let length = self.varint()?;
                let start = self.at;
                let end = usize::try_from(length).ok().and_then(|length| start.checked_add(length));
                match end {
                    Some(end) if end <= self.bytes.len() => self.at = end,
                    _ => return Err(self.truncated()),
                }
                Value::Span(Span { start: position(start), end: position(self.at) })
            }
            5 => self.fixed(4)?,
            _ => return Err(Fault::Tag { at: tag_at }),
        };
        // Numbers of fields end at 2^29 - 1 (protobuf's own rule).
        if !(1..1 << 29).contains(&(tag >> 3)) {
            return Err(Fault::Tag { at: tag_at });
        }
        Ok(Some((tag >> 3, value)))
    }

    fn fixed(&mut self, length: usize) -> Result<Value, Fault> {
        let end = self.at.saturating_add(length);
        if end > self.bytes.len() {
            return Err(self.truncated());
        }
        self.at = end;
        Ok(Value::Fixed)
    }

    fn truncated(&self) -> Fault {
        Fault::Truncated { at: self.bytes.len() }
    }

    /// Nearly all numbers are ids, lines and lengths of one or two bytes.
    #[inline]
    fn varint(&mut self) -> Result<u64, Fault> {
        match self.bytes.get(self.at..) {
            Some(&[byte, ..]) if byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            Some(&[low, high, ..]) if high < 0x80 => {
                self.at += 2;
                Ok(u64::from(high) << 7 | u64::from(low & 0x7f))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Fault> {
        let start = self.at;
        let mut value = 0;
        for (shift, &byte) in (0..70).step_by(7).zip(self.bytes.get(start..).unwrap_or_default()) {
            // The tenth byte holds the last bit.
            if shift == 63 && byte > 1 {
                return Err(Fault::Varint { at: start });
            }
            value |= u64::from(byte & 0x7f) << shift;
            self.at += 1;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        if self.is_at_end() { Err(self.truncated()) } else { Err(Fault::Varint { at: start }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &[u8]) -> Result<Vec<(u64, Value)>, Fault> {
        let mut message = Message::new(bytes, Span::whole(bytes));
        let mut all = Vec::new();
        while let Some(field) = message.next()? {
            all.push(field);
        }
        Ok(all)
    }

    #[test]
    fn fields_of_every_wire_type() {
        let bytes = [
            &[0x08, 0x96, 0x01][..],                                             // 1: 150
            &[0x12, 2, b'h', b'i'],                                              // 2: "hi"
            &[0x19, 0, 0, 0, 0, 0, 0, 0, 0],                                     // 3: fixed64
            &[0x25, 0, 0, 0, 0],                                                 // 4: fixed32
            &[0x48, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], // 9: -1
        ]
        .concat();
        let expected = vec![
            (1, Value::Number(150)),
            (2, Value::Span(Span { start: 5, end: 7 })),
            (3, Value::Fixed),
            (4, Value::Fixed),
            (9, Value::Number(u64::MAX)),
        ];
        assert_eq!(fields(&bytes), Ok(expected));
    }

    #[test]
    fn what_is_no_protobuf() {
        let rows: [(&[u8], Fault); 9] = [
            (&[0x08], Fault::Truncated { at: 1 }),
            (&[0x08, 0x80], Fault::Truncated { at: 2 }),
            (&[0x12, 3, 1, 2], Fault::Truncated { at: 4 }),
            (&[0x19, 0, 0], Fault::Truncated { at: 3 }),
            (&[0x0b], Fault::Tag { at: 0 }),
            (&[0x00, 0x00], Fault::Tag { at: 0 }),
            (&[0x08, 0, 0xf8, 0xff, 0xff, 0xff, 0x7f, 0], Fault::Tag { at: 2 }),
            (&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2], Fault::Varint { at: 1 }),
            (&[0x12, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1], Fault::Truncated { at: 11 }),
        ];
        for (bytes, fault) in rows {
            assert_eq!(fields(bytes), Err(fault), "{bytes:x?}");
        }
    }

    #[test]
    fn numbers_packed_and_not() {
        let bytes = [0x0a, 3, 1, 0x80, 0x01, 0x08, 7];
        let mut seen = Vec::new();
        for (_, value) in fields(&bytes).unwrap() {
            let push = |number| {
                seen.push(number);
                Ok(())
            };
            value.numbers(&bytes, "field", push).unwrap();
        }
        assert_eq!(seen, [1, 128, 7]);
    }
}
