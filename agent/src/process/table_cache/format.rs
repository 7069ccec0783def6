//! One table in a file: a head, the rules, the rows. A digest in the head says whether all of it is as it was
//! written.

use crate::elf::UnwindDigest;
use crate::process::compile::Unwound;
use crate::unwind::{RowLosses, RowTable};
use agent_ebpf::{RuleKind, UnwindRule};
use sha2::{Digest as _, Sha256};

/// The first bytes: what it is, and which version of this layout. What the compiler means by a row is part of the
/// digest (`elf/unwind_digest.rs`).
const MAGIC: &[u8; 16] = b"vesta rows v2\0\0\0";
/// A rule on disk, bytes.
const RULE_BYTES: usize = size_of::<UnwindRule>();
/// A row on disk, bytes.
const ROW_BYTES: usize = size_of::<u32>() + size_of::<u16>();

/// Magic, digest of the source, digest of rows and losses, base, number of rules, number of rows, what was lost; the rules;
/// the rows, each its start and its rule.
pub(super) fn encode(digest: &UnwindDigest, unwound: &Unwound) -> Vec<u8> {
    let rows = &unwound.rows;
    let (base, rules) = (rows.base(), rows.rules());
    let mut bytes = Vec::with_capacity(160 + rules.len() * RULE_BYTES + rows.len() * ROW_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&digest.0);
    bytes.extend_from_slice(&seal(unwound));
    bytes.extend_from_slice(&base.to_le_bytes());
    bytes.extend_from_slice(&(rules.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(rows.len() as u64).to_le_bytes());
    for lost in lost(unwound) {
        bytes.extend_from_slice(&lost.to_le_bytes());
    }
    bytes.extend(rules.iter().flat_map(crate::process::compile::rule_bytes));
    for (pc, rule) in rows.rows() {
        bytes.extend_from_slice(&pc.to_le_bytes());
        bytes.extend_from_slice(&rule.to_le_bytes());
    }
    bytes
}

/// `None` for anything but what [`encode`] wrote for this digest.
pub(super) fn decode(bytes: &[u8], digest: &UnwindDigest) -> Option<Unwound> {
    let rest = bytes.strip_prefix(MAGIC)?.strip_prefix(&digest.0)?;
    let (sealed, rest) = rest.split_first_chunk::<32>()?;
    let (base, rest) = number(rest)?;
    let (rule_count, rest) = number(rest)?;
    let (row_count, rest) = number(rest)?;
    let (damaged, rest) = number(rest)?;
    let (left_out, rest) = number(rest)?;
    let (rules_refused, rest) = number(rest)?;
    let (out_of_time, rest) = number(rest)?;
    let losses = RowLosses { damaged, left_out, rules_refused, out_of_time };
    let (rule_count, row_count) =
        (usize::try_from(rule_count).ok()?, usize::try_from(row_count).ok()?);
    let (rules, rest) = rest.split_at_checked(rule_count.checked_mul(RULE_BYTES)?)?;
    if rest.len() != row_count.checked_mul(ROW_BYTES)? {
        return None;
    }
    let rules: Option<Vec<UnwindRule>> =
        rules.as_chunks::<RULE_BYTES>().0.iter().map(rule).collect();
    let rows =
        rest.as_chunks::<ROW_BYTES>().0.iter().map(|&[a, b, c, d, e, f]| {
            (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, f]))
        });
    let unwound = Unwound::new(RowTable::new(base, rules?, rows)?.with_losses(losses));
    (seal(&unwound) == *sealed).then_some(unwound)
}

/// A digest of rows and losses.
fn seal(unwound: &Unwound) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(unwound.digest.as_bytes());
    for lost in lost(unwound) {
        hash.update(lost.to_le_bytes());
    }
    hash.finalize().into()
}

fn lost(unwound: &Unwound) -> [u64; 4] {
    let RowLosses { damaged, left_out, rules_refused, out_of_time } = unwound.rows.losses();
    [damaged, left_out, rules_refused, out_of_time]
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}

fn rule(bytes: &[u8; RULE_BYTES]) -> Option<UnwindRule> {
    let [kind, rbp, rbp_from_rbp, reserved, a, b, c, d, e, f, g, h] = *bytes;
    (kind <= RuleKind::LAST as u8).then_some(UnwindRule {
        kind,
        rbp: rbp.cast_signed(),
        rbp_from_rbp,
        reserved,
        offset: i32::from_le_bytes([a, b, c, d]),
        addend: i32::from_le_bytes([e, f, g, h]),
    })
}
