//! The string table of a profile, whose texts share one piece of memory.

use super::fault::{Fault, cap};
use super::wire::Span;
use crate::ingest::fitting::fitting;
use crate::limits::{LABEL_BYTES_MAX, STRING_BYTES_MAX};
use crate::profile::Text;
use hashbrown::HashMap;
use std::sync::Arc;

/// The table.
pub(super) struct Texts {
    /// All texts, one behind the other, and where each of them ends.
    whole: Arc<str>,
    ends: Vec<u32>,
    /// Copies, by index, of those that outlive the profile's tables.
    shared: HashMap<u64, Arc<str>>,
    /// Texts that were not UTF-8; the bytes that are wrong became U+FFFD.
    pub(super) replaced: u64,
    /// Values of labels that were longer than [`LABEL_BYTES_MAX`].
    pub(super) truncated: u64,
}

impl Texts {
    pub(super) fn read(body: &[u8], spans: &[Span]) -> Result<Self, Fault> {
        if spans.first().is_some_and(|first| first.len() > 0) {
            return Err(Fault::FirstString);
        }
        let mut replaced = 0;
        let (whole, ends) =
            joined(body, spans).unwrap_or_else(|| mended(body, spans, &mut replaced));
        let whole = Arc::from(whole);
        Ok(Self { whole, ends, shared: HashMap::new(), replaced, truncated: 0 })
    }

    /// The text at an index as the wire has it.
    pub(super) fn get(&self, index: u64, field: &'static str) -> Result<Text, Fault> {
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        let start = at.checked_sub(1).map_or(Some(&0), |before| self.ends.get(before));
        match (start, self.ends.get(at)) {
            (Some(&start), Some(&end)) => {
                cap("a string, in bytes,", (end - start) as usize, STRING_BYTES_MAX)?;
                Ok(Text::part(&self.whole, start, end))
            }
            // Unset fields refer to it where there is no table, too.
            _ if index == 0 => Ok(Text::default()),
            _ => {
                let (index, len) = (index.cast_signed(), self.ends.len());
                Err(Fault::Text { field, index, len })
            }
        }
    }

    /// A copy of the text at an index.
    pub(super) fn shared(&mut self, index: u64, field: &'static str) -> Result<Arc<str>, Fault> {
        let text = self.get(index, field)?;
        Ok(Arc::clone(self.shared.entry(index).or_insert_with(|| Arc::from(&*text))))
    }

    /// The text as a label's value, cut where it is longer than one may be.
    pub(super) fn label(&mut self, index: u64, field: &'static str) -> Result<Arc<str>, Fault> {
        let text = self.shared(index, field)?;
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

/// All texts if all of them are UTF-8: they are if they are one text together that may be cut at each end.
fn joined(body: &[u8], spans: &[Span]) -> Option<(String, Vec<u32>)> {
    let mut bytes = Vec::with_capacity(spans.iter().map(|span| span.len()).sum());
    let mut ends = Vec::with_capacity(spans.len());
    for span in spans {
        bytes.extend_from_slice(span.bytes(body));
        ends.push(position(bytes.len()));
    }
    let whole = String::from_utf8(bytes).ok()?;
    ends.iter().all(|&end| whole.is_char_boundary(end as usize)).then_some((whole, ends))
}

/// All texts, the wrong bytes replaced; counts those that are not UTF-8.
fn mended(body: &[u8], spans: &[Span], replaced: &mut u64) -> (String, Vec<u32>) {
    let (mut whole, mut ends) = (String::new(), Vec::with_capacity(spans.len()));
    for span in spans {
        let bytes = span.bytes(body);
        let text = String::from_utf8_lossy(bytes);
        *replaced += u64::from(*text.as_bytes() != *bytes);
        whole.push_str(&text);
        ends.push(position(whole.len()));
    }
    (whole, ends)
}

/// `REQUEST_BYTES_MAX` keeps them below 2^32 together, also where each wrong byte became three.
fn position(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
