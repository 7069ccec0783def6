//! Texts of senders that are longer than one may be.

use crate::limits::LABEL_BYTES_MAX;

/// As much of a text as a label's value may have.
pub(in crate::ingest) fn fitting(text: &str) -> &str {
    text.get(..text.floor_char_boundary(LABEL_BYTES_MAX)).unwrap_or_default()
}
