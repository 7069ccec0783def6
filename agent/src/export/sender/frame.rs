//! gRPC's message frame: one byte that says whether the message is compressed, four bytes of length, the
//! message.

use crate::limits;
use prost::Message as _;
use prost::bytes::Bytes;
use proto::otlp::collector::ExportProfilesServiceResponse;
use std::io::Write as _;

/// Bytes in front of a message.
const HEAD_BYTES: usize = 5;

/// How a message is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Zstd,
    Gzip,
    Identity,
}

impl Encoding {
    /// The value of `grpc-encoding`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Identity => "identity",
        }
    }
}

/// Why a message cannot be framed, or an answer not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("compressing failed: {0}")]
    Compress(#[from] std::io::Error),
    #[error("a message of {bytes} bytes has no frame")]
    TooLong { bytes: usize },
    #[error("the answer is compressed, which nobody asked for")]
    Compressed,
    #[error("the answer is cut off")]
    Truncated,
    #[error("the answer is malformed: {0}")]
    Malformed(#[from] prost::DecodeError),
}

/// Compresses and frames a message.
pub(super) fn pack(message: &[u8], encoding: Encoding) -> Result<Bytes, FrameError> {
    let body = match encoding {
        Encoding::Zstd => zstd::bulk::compress(message, limits::EXPORT_ZSTD_LEVEL)?,
        Encoding::Gzip => {
            let level = flate2::Compression::default();
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), level);
            gzip.write_all(message)?;
            gzip.finish()?
        }
        Encoding::Identity => message.to_vec(),
    };
    let too_long = |_| FrameError::TooLong { bytes: body.len() };
    let length = u32::try_from(body.len()).map_err(too_long)?;
    let mut framed = Vec::with_capacity(HEAD_BYTES + body.len());
    framed.push(u8::from(encoding != Encoding::Identity));
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(&body);
    Ok(framed.into())
}

/// Reads the one message of an answer; no message is the empty one.
pub(super) fn unpack(bytes: &[u8]) -> Result<ExportProfilesServiceResponse, FrameError> {
    if bytes.is_empty() {
        return Ok(ExportProfilesServiceResponse::default());
    }
    let (head, body) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(FrameError::Truncated)?;
    let [compressed, length @ ..] = *head;
    if compressed != 0 {
        return Err(FrameError::Compressed);
    }
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    let message = body.get(..length).ok_or(FrameError::Truncated)?;
    Ok(ExportProfilesServiceResponse::decode(message)?)
}
