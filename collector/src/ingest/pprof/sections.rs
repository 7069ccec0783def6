//! The top level of a profile: where its messages and texts lie. Writers put them in any order (Go's has
//! samples first and texts last), so this is the one place that sees the order of the wire.

use super::fault::{Fault, cap};
use super::wire::{Message, Span, Value};
use crate::limits::DECODED_BYTES_MAX;

/// Bytes of memory that one message becomes at most, besides its texts and numbers: its span here, its entry
/// of the batch, its id. Vectors double, so up to twice the room is taken.
const MESSAGE_BYTES: usize = 160;

/// Bytes of memory of a text's entry: its span and its end in the memory that all texts share.
const TEXT_BYTES: usize = 24;

/// Times that the bytes of a text are there: while the memory that texts share is made, and in it. Where wrong bytes each
/// become three it is more for a moment, but the request's limit bounds that too.
const TEXT_COPIES: usize = 2;

/// Bytes of memory for a byte of a location: a line takes 2 bytes on the wire at least, and 16 in the batch.
/// Frames, values and labels of samples have limits of their own, in `samples`.
const LINE_BYTES: usize = 8;

/// What a profile consists of.
#[derive(Debug, Default)]
pub(super) struct Sections {
    pub(super) sample_types: Vec<Span>,
    pub(super) samples: Vec<Span>,
    pub(super) mappings: Vec<Span>,
    pub(super) locations: Vec<Span>,
    pub(super) functions: Vec<Span>,
    pub(super) texts: Vec<Span>,
    pub(super) time_nanos: i64,
    pub(super) duration_nanos: i64,
    pub(super) period_type: Span,
    pub(super) period: i64,
    /// Index of the text that names the type to show first.
    pub(super) default_type: u64,
    charged: usize,
}

impl Sections {
    /// Walks through the top level, and bounds what reading the rest will take.
    pub(super) fn find(body: &[u8]) -> Result<Self, Fault> {
        let mut this = Self::default();
        let mut message = Message::new(body, Span::whole(body));
        while let Some((field, value)) = message.next()? {
            this.take(field, value)?;
        }
        Ok(this)
    }

    fn take(&mut self, field: u64, value: Value) -> Result<(), Fault> {
        match field {
            1 => self.sample_types.push(charged(&mut self.charged, value, "sample_type")?),
            2 => self.samples.push(charged(&mut self.charged, value, "sample")?),
            3 => self.mappings.push(charged(&mut self.charged, value, "mapping")?),
            4 => self.locations.push(charged(&mut self.charged, value, "location")?),
            5 => self.functions.push(charged(&mut self.charged, value, "function")?),
            6 => {
                let span = value.span("string_table")?;
                charge(&mut self.charged, TEXT_BYTES + TEXT_COPIES * span.len())?;
                self.texts.push(span);
            }
            9 => self.time_nanos = value.signed("time_nanos")?,
            10 => self.duration_nanos = value.signed("duration_nanos")?,
            11 => self.period_type = value.span("period_type")?,
            12 => self.period = value.signed("period")?,
            14 => self.default_type = value.number("default_sample_type")?,
            // drop_frames, keep_frames, comment, doc_url say how to show the profile; others are unknown.
            _ => {}
        }
        Ok(())
    }
}

/// The span of a message, whose memory is charged.
fn charged(sum: &mut usize, value: Value, field: &'static str) -> Result<Span, Fault> {
    let span = value.span(field)?;
    let lines = if field == "location" { LINE_BYTES * span.len() } else { 0 };
    charge(sum, MESSAGE_BYTES + lines)?;
    Ok(span)
}

fn charge(sum: &mut usize, bytes: usize) -> Result<(), Fault> {
    *sum = sum.saturating_add(bytes);
    cap("the memory that decoding would take, in bytes,", *sum, DECODED_BYTES_MAX)
}
