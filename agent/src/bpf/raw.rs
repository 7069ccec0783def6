//! The few bpf(2) calls that aya 0.14 does not offer. No knowledge of profiles.

use super::BpfError;
use aya_obj::generated::{bpf_attach_type, bpf_attr, bpf_cmd, bpf_map_type, bpf_prog_type};
use aya_obj::{Function, Program};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// Type id of the key and of the value in [`load_value_btf`].
const BTF_KEY: u32 = 1;
const BTF_VALUE: u32 = 3;

/// Every instruction that the verifier looks at: `BPF_LOG_LEVEL1` in the kernel's `bpf_verifier.h`.
const LOG_VERBOSE: u32 = 1;

fn bpf(command: bpf_cmd, attr: &mut bpf_attr, call: &'static str) -> Result<OwnedFd, BpfError> {
    let size = size_of::<bpf_attr>();
    // SAFETY: `attr` is initialised, and everything it points to lives until the call returns.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command as u32, &raw mut *attr, size) };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(BpfError::last(call));
    }
    // SAFETY: the call returned a descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn zeroed() -> bpf_attr {
    // SAFETY: a union of plain integers; the kernel wants unused bytes to be zero.
    unsafe { std::mem::zeroed() }
}

/// Describes a map value of `bytes` bytes to the kernel: `struct { u32 values[bytes / 4]; }`.
pub(super) fn load_value_btf(bytes: usize) -> Result<OwnedFd, BpfError> {
    load_btf(&value_btf(u32::try_from(bytes).expect("25 KiB")))
}

/// Tells the kernel of types.
pub(super) fn load_btf(blob: &[u8]) -> Result<OwnedFd, BpfError> {
    let mut attr = zeroed();
    // SAFETY: the fields of this command, in a zeroed union.
    let fields = unsafe { &mut attr.__bindgen_anon_7 };
    fields.btf = blob.as_ptr() as u64;
    fields.btf_size = u32::try_from(blob.len()).expect("less than a megabyte");
    bpf(bpf_cmd::BPF_BTF_LOAD, &mut attr, "bpf(BPF_BTF_LOAD)")
}

/// Loads a program of user probes that [`link_probes`] attaches (Linux 6.6). The verifier's log goes to `log`, none if that
/// is empty.
pub(super) fn load_linkable(
    name: &str,
    (program, function): (&Program, &Function),
    btf: BorrowedFd<'_>,
    log: &mut [u8],
) -> Result<OwnedFd, BpfError> {
    let described = function.func_info.func_info_bytes();
    let count = |length: usize| u32::try_from(length).expect("a program or a log, megabytes");
    let mut attr = zeroed();
    // SAFETY: the fields of this command, in a zeroed union.
    let fields = unsafe { &mut attr.__bindgen_anon_3 };
    fields.prog_type = bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32;
    fields.expected_attach_type = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
    fields.insns = function.instructions.as_ptr() as u64;
    fields.insn_cnt = count(function.instructions.len());
    fields.license = program.license.as_ptr() as u64;
    if !log.is_empty() {
        fields.log_level = LOG_VERBOSE;
        fields.log_buf = log.as_mut_ptr() as u64;
        fields.log_size = count(log.len());
    }
    fields.prog_btf_fd = btf.as_raw_fd().cast_unsigned();
    fields.func_info = described.as_ptr() as u64;
    fields.func_info_rec_size = count(function.func_info_rec_size);
    fields.func_info_cnt = count(function.func_info.func_info.len());
    let (kept, _end) = fields.prog_name.split_at_mut(15);
    for (to, from) in kept.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr, "bpf(BPF_PROG_LOAD) of a probe")
}

/// Attaches a program to places of a file, in every process: offsets in bytes.
pub(super) fn link_probes(
    program: BorrowedFd<'_>,
    path: &CStr,
    offsets: &[u64],
) -> Result<OwnedFd, BpfError> {
    let mut attr = zeroed();
    // SAFETY: the fields of this command, in a zeroed union.
    let fields = unsafe { &mut attr.link_create };
    fields.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
    fields.attach_type = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
    // SAFETY: the fields of this kind of link, in a zeroed union.
    let places = unsafe { &mut fields.__bindgen_anon_3.uprobe_multi };
    places.path = path.as_ptr() as u64;
    places.offsets = offsets.as_ptr() as u64;
    places.cnt = u32::try_from(offsets.len()).expect("64 places");
    bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr, "bpf(BPF_LINK_CREATE) of probes")
}

/// The format of Documentation/bpf/btf.rst: header, types, strings.
fn value_btf(bytes: u32) -> Vec<u8> {
    const KIND_INT: u32 = 1 << 24;
    const KIND_ARRAY: u32 = 3 << 24;
    const KIND_STRUCT: u32 = 4 << 24;
    let strings = b"\0u32\0chunk\0values\0";
    let (name_u32, name_chunk, name_values) = (1, 5, 11);
    let types: [u32; 16] = [
        name_u32,
        KIND_INT,
        4,
        32, // 1: four bytes, 32 bits
        0,
        KIND_ARRAY,
        0,
        BTF_KEY,
        BTF_KEY,
        bytes / 4, // 2: u32[bytes / 4]
        name_chunk,
        KIND_STRUCT | 1,
        bytes,
        name_values,
        2,
        0, // 3: one member of type 2
    ];
    let types_bytes = u32::try_from(size_of_val(&types)).expect("64 bytes");
    let strings_bytes = u32::try_from(strings.len()).expect("18 bytes");
    let mut blob = Vec::new();
    blob.extend_from_slice(&0xeb9f_u16.to_ne_bytes());
    blob.extend_from_slice(&[1, 0]); // version, flags
    for word in [24, 0, types_bytes, types_bytes, strings_bytes].iter().chain(&types) {
        blob.extend_from_slice(&word.to_ne_bytes());
    }
    blob.extend_from_slice(strings);
    blob
}

/// An array map of `entries` values of `value_bytes` bytes, described by `btf`.
pub(super) fn create_array(
    value_bytes: usize,
    entries: usize,
    btf: BorrowedFd<'_>,
) -> Result<OwnedFd, BpfError> {
    let mut attr = zeroed();
    // SAFETY: the fields of this command, in a zeroed union.
    let fields = unsafe { &mut attr.__bindgen_anon_1 };
    fields.map_type = bpf_map_type::BPF_MAP_TYPE_ARRAY as u32;
    fields.key_size = 4;
    fields.value_size = u32::try_from(value_bytes).expect("25 KiB");
    fields.max_entries = u32::try_from(entries).expect("128");
    fields.btf_fd = btf.as_raw_fd().cast_unsigned();
    fields.btf_key_type_id = BTF_KEY;
    fields.btf_value_type_id = BTF_VALUE;
    for (to, from) in fields.map_name.iter_mut().zip(b"SLAB") {
        *to = from.cast_signed();
    }
    bpf(bpf_cmd::BPF_MAP_CREATE, &mut attr, "bpf(BPF_MAP_CREATE) for a slab of unwind rows")
}

/// Kernel memory of a map in bytes, as `/proc/self/fdinfo` states it.
pub(super) fn map_bytes(map: BorrowedFd<'_>) -> Result<u64, BpfError> {
    let call = "/proc/self/fdinfo of a BPF map";
    let path = format!("/proc/self/fdinfo/{}", map.as_raw_fd());
    let text = std::fs::read_to_string(path).map_err(|source| BpfError::System { call, source })?;
    let memlock = text.lines().find_map(|line| line.strip_prefix("memlock:"));
    memlock.and_then(|value| value.trim().parse().ok()).ok_or_else(|| BpfError::System {
        call,
        source: io::Error::new(io::ErrorKind::InvalidData, "no line `memlock:`"),
    })
}

/// Reads a whole hash map, many entries a call (`BPF_MAP_LOOKUP_BATCH`, Linux 5.6). Entries that come or go meanwhile
/// may be missing; to go on from a key that went would begin anew.
pub(super) struct Batches<K, V> {
    keys: Vec<K>,
    values: Vec<V>,
    /// Entries of the last call.
    entries: usize,
    /// Where the next call goes on, a bucket of the map whatever its keys are (kernel kernel/bpf/hashtab.c); `None` at the
    /// start.
    place: Option<u32>,
}

impl<K: aya::Pod + Default, V: aya::Pod + Default> Batches<K, V> {
    /// So many entries a call.
    pub(super) fn new(entries_max: usize) -> Self {
        let (keys, values) = (vec![K::default(); entries_max], vec![V::default(); entries_max]);
        Self { keys, values, entries: 0, place: None }
    }

    /// The next entries; false if these are the last.
    pub(super) fn next(&mut self, map: BorrowedFd<'_>) -> Result<bool, BpfError> {
        let place = self.place.unwrap_or_default();
        let mut next_place = 0u32;
        let mut attr = zeroed();
        // SAFETY: the fields of this command, in a zeroed union.
        let fields = unsafe { &mut attr.batch };
        fields.in_batch = if self.place.is_some() { (&raw const place) as u64 } else { 0 };
        fields.out_batch = (&raw mut next_place) as u64;
        fields.keys = self.keys.as_mut_ptr() as u64;
        fields.values = self.values.as_mut_ptr() as u64;
        fields.count = u32::try_from(self.keys.len()).expect("a thousand");
        fields.map_fd = map.as_raw_fd().cast_unsigned();
        let (command, size) = (bpf_cmd::BPF_MAP_LOOKUP_BATCH as u32, size_of::<bpf_attr>());
        // SAFETY: `attr` is initialised, and keys and values have room for `count` entries of the map, whose
        // keys are of type `K` and values of type `V`.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attr, size) };
        let error = (result < 0).then(io::Error::last_os_error);
        // SAFETY: the kernel wrote the field of this command, also at the end of the map.
        let count = unsafe { attr.batch.count };
        self.entries = usize::try_from(count).unwrap_or(0).min(self.keys.len());
        self.place = Some(next_place);
        match error {
            None => Ok(true),
            Some(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Some(source) => Err(BpfError::System { call: "bpf(BPF_MAP_LOOKUP_BATCH)", source }),
        }
    }

    /// The entries of the last call.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&K, &V)> {
        self.keys.iter().zip(&self.values).take(self.entries)
    }
}

/// Copies the value at `index` of an array map.
#[cfg(test)]
pub(super) fn lookup(map: BorrowedFd<'_>, index: u32, value: &mut [u8]) -> Result<(), BpfError> {
    let mut attr = zeroed();
    // SAFETY: the fields of this command, in a zeroed union.
    let fields = unsafe { &mut attr.__bindgen_anon_2 };
    fields.map_fd = map.as_raw_fd().cast_unsigned();
    fields.key = (&raw const index) as u64;
    fields.__bindgen_anon_1.value = value.as_mut_ptr() as u64;
    let (command, size) = (bpf_cmd::BPF_MAP_LOOKUP_ELEM as u32, size_of::<bpf_attr>());
    // SAFETY: `attr` is initialised, and key and value live until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attr, size) };
    if result < 0 { Err(BpfError::last("bpf(BPF_MAP_LOOKUP_ELEM)")) } else { Ok(()) }
}
