//! The string table of a profile: each text is checked and copied once, when something refers to it.

use super::fault::{Fault, cap};
use super::wire::Span;
use crate::ingest::fitting::fitting;
use crate::limits::{LABEL_BYTES_MAX, STRING_BYTES_MAX};
use std::sync::Arc;

/// The table.
pub(super) struct Texts<'a> {
    body: &'a [u8],
    spans: &'a [Span],
    /// By index, once asked for.
    shared: Vec<Option<Arc<str>>>,
    none: Arc<str>,
    /// Texts that were not UTF-8; the bytes that are wrong became U+FFFD.
    pub(super) replaced: u64,
    /// Values of labels that were longer than [`LABEL_BYTES_MAX`].
    pub(super) truncated: u64,
}

impl<'a> Texts<'a> {
    pub(super) fn new(body: &'a [u8], spans: &'a [Span]) -> Result<Self, Fault> {
        if spans.first().is_some_and(|first| first.len() > 0) {
            return Err(Fault::FirstString);
        }
        let shared = vec![None; spans.len()];
        Ok(Self { body, spans, shared, none: Arc::from(""), replaced: 0, truncated: 0 })
    }

    /// The text at an index as the wire has it.
    pub(super) fn get(&mut self, index: u64, field: &'static str) -> Result<Arc<str>, Fault> {
        if index == 0 {
            return Ok(Arc::clone(&self.none));
        }
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        let (Some(&span), Some(slot)) = (self.spans.get(at), self.shared.get_mut(at)) else {
            let (index, len) = (index.cast_signed(), self.spans.len());
            return Err(Fault::Text { field, index, len });
        };
        if let Some(text) = slot {
            return Ok(Arc::clone(text));
        }
        cap("a string, in bytes,", span.len(), STRING_BYTES_MAX)?;
        let bytes = span.bytes(self.body);
        let text: Arc<str> = match std::str::from_utf8(bytes) {
            Ok(text) => Arc::from(text),
            Err(_) => {
                self.replaced += 1;
                Arc::from(String::from_utf8_lossy(bytes))
            }
        };
        *slot = Some(Arc::clone(&text));
        Ok(text)
    }

    /// The text as a label's value, cut where it is longer than one may be.
    pub(super) fn label(&mut self, index: u64, field: &'static str) -> Result<Arc<str>, Fault> {
        let text = self.get(index, field)?;
        if text.len() <= LABEL_BYTES_MAX {
            return Ok(text);
        }
        Ok(self.cut(&text))
    }

    /// As much of a text as a label's value may have.
    pub(super) fn cut(&mut self, text: &str) -> Arc<str> {
        let fits = fitting(text);
        self.truncated += u64::from(fits.len() < text.len());
        Arc::from(fits)
    }
}
