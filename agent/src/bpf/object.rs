//! The object with the BPF programs, as `build.rs` embedded it.

/// The object's bytes; `None` if the binary was built without.
#[cfg(bpf_object)]
pub(super) const OBJECT: Option<&[u8]> =
    Some(aya::include_bytes_aligned!(env!("VESTA_BPF_OBJECT_PATH")));
/// The object's bytes; `None` if the binary was built without.
#[cfg(not(bpf_object))]
pub(super) const OBJECT: Option<&[u8]> = None;
