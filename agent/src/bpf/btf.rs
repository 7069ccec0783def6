//! Finds the offset of one field of one kernel structure in the kernel's own type information
//! (Documentation/bpf/btf.rst). Needed for user registers on kernels before
//! 5.15, and for the tasks that tracepoints speak of.

use super::decode::{u16_at, u32_at};

/// The kernel's type information.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";
const KIND_STRUCT: u32 = 4;

/// Byte offset of `structure.field` in the running kernel; `None` if the kernel does not say.
pub(super) fn kernel_field_offset(structure: &str, field: &str) -> Option<u32> {
    let [offset] = kernel_field_offsets(structure, [field]);
    offset
}

/// The same of several fields, for one reading of 6 MB.
pub(super) fn kernel_field_offsets<const N: usize>(
    structure: &str,
    fields: [&str; N],
) -> [Option<u32>; N] {
    let blob = std::fs::read(KERNEL_BTF).unwrap_or_default();
    fields.map(|field| field_offset(&blob, structure, field))
}

/// The same in the bytes of a BTF blob.
fn field_offset(blob: &[u8], structure: &str, field: &str) -> Option<u32> {
    if u16_at(blob, 0)? != 0xeb9f {
        return None;
    }
    let word = |offset| usize::try_from(u32_at(blob, offset)?).ok();
    let header = word(4)?;
    let part = |offset: usize, length: usize| {
        let start = header.checked_add(word(offset)?)?;
        blob.get(start..start.checked_add(word(length)?)?)
    };
    let types = part(8, 12)?;
    let strings = part(16, 20)?;
    let named = |offset: u32, name: &str| {
        let tail = usize::try_from(offset).ok().and_then(|offset| strings.get(offset..));
        tail.is_some_and(|tail| super::decode::until_nul(tail) == name.as_bytes())
    };
    let mut at = 0;
    while let Some(name) = u32_at(types, at) {
        let info = u32_at(types, at + 4)?;
        let (kind, members) = (info >> 24 & 0x1f, info & 0xffff);
        let members = usize::try_from(members).ok()?;
        if kind == KIND_STRUCT && named(name, structure) {
            let bitfields = info >> 31 == 1; // then the upper 8 bits hold a width
            let member = (0..members).map(|member| at + 12 + member * 12);
            let found = member
                .into_iter()
                .find(|place| u32_at(types, *place).is_some_and(|name| named(name, field)))?;
            let bits = u32_at(types, found + 8)?;
            return Some(if bitfields { bits & 0x00ff_ffff } else { bits } / 8);
        }
        at = at.checked_add(12 + tail_bytes(kind, members)?)?;
    }
    None
}

/// Bytes that follow the three words of a type; `None` for a kind that is not known.
fn tail_bytes(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        2 | 7..=12 | 16 | 18 => 0, // pointer, forward, typedef, qualifiers, function, float, type tag
        1 | 14 | 17 => 4,          // integer, variable, declaration tag
        3 => 12,                   // array
        4 | 5 | 15 | 19 => 12 * members, // structure, union, data section, 64-bit enumeration
        6 | 13 => 8 * members,     // enumeration, function prototype
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_says_where_its_stack_pointer_lies() {
        let offset = kernel_field_offset("task_struct", "stack").expect("this kernel has BTF");
        assert!(offset > 0 && offset < 4096 && offset.is_multiple_of(8), "{offset}");
        assert_eq!(kernel_field_offset("task_struct", "no such field"), None);
        assert_eq!(kernel_field_offset("list_head", "prev"), Some(8), "known from its definition");
    }

    proptest::proptest! {
        #[test]
        fn random_bytes_are_refused(mut blob in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            field_offset(&blob, "task_struct", "stack");
            for (to, from) in blob.iter_mut().zip([0x9f, 0xeb, 1, 0, 24, 0, 0, 0, 0, 0, 0, 0, 90, 0, 0, 0]) {
                *to = from;
            }
            field_offset(&blob, "task_struct", "stack");
        }
    }
}
