//! Content codings of request bodies, with the limit on what comes out applied while it comes out. The
//! only place of the collector that decompresses what a sender compressed.

use crate::limits::{REQUEST_BYTES_MAX, ZSTD_WINDOW_LOG_MAX};
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use std::io::Read;

/// A content coding that is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// None.
    Identity,
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
    /// RFC 1950, as HTTP means it.
    Deflate,
}

impl Coding {
    /// The coding a header names, or nothing if it is not understood (lists of several included).
    #[must_use]
    pub fn from_header(value: &str) -> Option<Self> {
        match value.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Some(Self::Identity),
            "gzip" | "x-gzip" => Some(Self::Gzip),
            "zstd" => Some(Self::Zstd),
            "deflate" => Some(Self::Deflate),
            _ => None,
        }
    }

    /// The coding that HTTP's header names; nothing if it is not understood.
    #[must_use]
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let named = headers.get(CONTENT_ENCODING).map_or(Some(""), |value| value.to_str().ok());
        named.and_then(Self::from_header)
    }
}

/// What a sender is told whose coding is not understood.
pub const UNKNOWN_CODING: &str = "the content encoding must be gzip, zstd, deflate or identity";

/// Why a body cannot be decompressed.
#[derive(Debug, thiserror::Error)]
pub enum DecompressError {
    /// More comes out than is allowed; nothing of it is kept.
    #[error("the body decompresses to more than {max} bytes")]
    TooLarge {
        /// The limit.
        max: usize,
    },
    /// The stream is damaged or cut off.
    #[error("the body is no valid {coding:?} stream: {source}")]
    Corrupt {
        /// The coding it was said to have.
        coding: Coding,
        /// What the decoder says.
        source: std::io::Error,
    },
}

/// A body without its coding, at most [`REQUEST_BYTES_MAX`].
///
/// # Errors
/// See [`DecompressError`].
pub fn plain(body: Bytes, coding: Coding) -> Result<Bytes, DecompressError> {
    match coding {
        Coding::Identity => Ok(body),
        _ => decompress(coding, &body, REQUEST_BYTES_MAX).map(Bytes::from),
    }
}

/// Decompresses at most `bytes_max` bytes. Never holds more than one byte above that.
///
/// # Errors
/// See [`DecompressError`].
pub fn decompress(
    coding: Coding,
    body: &[u8],
    bytes_max: usize,
) -> Result<Vec<u8>, DecompressError> {
    let corrupt = |source| DecompressError::Corrupt { coding, source };
    let mut reader: Box<dyn Read + '_> = match coding {
        Coding::Identity => Box::new(body),
        Coding::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(body)),
        Coding::Deflate => Box::new(flate2::bufread::ZlibDecoder::new(body)),
        Coding::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(body).map_err(corrupt)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(corrupt)?;
            Box::new(decoder)
        }
    };
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    let mut out = Vec::with_capacity(likely_length(coding, body).min(bytes_max));
    reader.by_ref().take(limit).read_to_end(&mut out).map_err(corrupt)?;
    if out.len() > bytes_max { Err(DecompressError::TooLarge { max: bytes_max }) } else { Ok(out) }
}

/// How many bytes will likely come out: gzip says it at its end (RFC 1952, ISIZE). Nothing forbids it to lie, so no more
/// is believed than profiles compress by.
fn likely_length(coding: Coding, body: &[u8]) -> usize {
    const RATIO_MAX: usize = 16;
    let said = match (coding, body.last_chunk::<4>()) {
        (Coding::Gzip, Some(&size)) => usize::try_from(u32::from_le_bytes(size)).unwrap_or(0),
        _ => body.len(),
    };
    said.clamp(body.len(), RATIO_MAX * body.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn compress(coding: Coding, body: &[u8]) -> Vec<u8> {
        match coding {
            Coding::Identity => body.to_vec(),
            Coding::Gzip => {
                let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                to.write_all(body).unwrap();
                to.finish().unwrap()
            }
            Coding::Deflate => {
                let mut to =
                    flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
                to.write_all(body).unwrap();
                to.finish().unwrap()
            }
            Coding::Zstd => zstd::encode_all(body, 1).unwrap(),
        }
    }

    #[test]
    fn every_coding_round_trips_and_stops_at_the_limit() {
        let body = vec![7u8; 100_000];
        for coding in [Coding::Identity, Coding::Gzip, Coding::Deflate, Coding::Zstd] {
            let small = compress(coding, &body);
            assert_eq!(decompress(coding, &small, body.len()).unwrap(), body, "{coding:?}");
            let refused = decompress(coding, &small, body.len() - 1);
            assert!(matches!(refused, Err(DecompressError::TooLarge { .. })), "{coding:?}");
            if coding != Coding::Identity {
                let cut = decompress(coding, &small[..small.len() / 2], body.len());
                assert!(matches!(cut, Err(DecompressError::Corrupt { .. })), "{coding:?}");
            }
        }
    }
}
