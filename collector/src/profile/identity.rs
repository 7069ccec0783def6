//! When two things that senders describe are the same thing: the identity rules of locations, functions and
//! names. Identities are 128-bit hashes of canonical bytes (xxh3, whose output is stable), so that an engine
//! compares 16 bytes instead of strings; at 10 billion entries the chance of one collision is 10^-19.
//! Every choice here is an order over contents, never over arrival, so any order of batches ends in one state.

use super::{FunctionDef, LocationDef, MappingDef, WriteBatch};
use proto::FrameKind;
use xxhash_rust::xxh3::xxh3_128;

/// Who gave the names of a location; later ones are better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NameSource {
    /// Whoever sent the samples.
    #[default]
    Sender,
    /// The file that holds the code, or the one with its debug information.
    DebugFile,
}

/// How good the names of a location are: the larger replaces the smaller. Those of debug files are better than
/// others, more inlined frames are better, then more files and lines; equal qualities are told apart by their contents, deterministically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineQuality {
    /// Who gave the names.
    pub source: NameSource,
    /// Lines whose function has a name.
    pub named: u32,
    /// Of them, with a source file.
    pub with_file: u32,
    /// Of them, with a line number.
    pub with_line: u32,
    /// Hash of the contents: the tie-break.
    pub contents: u128,
}

/// How good the shown part of a function (file, first line) is: the larger replaces the smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DisplayQuality {
    /// True if it has a source file.
    pub has_file: bool,
    /// True if it has a first line.
    pub has_line: bool,
    /// Hash of the contents: the tie-break.
    pub contents: u128,
}

/// The identities of one batch's locations, in the order of its table.
#[derive(Debug)]
pub struct BatchIdentities {
    /// Identity of each location.
    pub locations: Vec<u128>,
    /// Quality of the names of each location.
    pub qualities: Vec<LineQuality>,
}

impl BatchIdentities {
    /// Computes them. The batch must have passed [`WriteBatch::check`].
    #[must_use]
    pub fn of(batch: &WriteBatch) -> Self {
        let mut digest = Digest::default();
        let files: Vec<u128> =
            batch.mappings.iter().map(|mapping| file_identity(&mut digest, mapping)).collect();
        let functions: Vec<u128> =
            batch.functions.iter().map(|function| contents_of(&mut digest, function)).collect();
        let mut locations = Vec::with_capacity(batch.locations.len());
        let mut qualities = Vec::with_capacity(batch.locations.len());
        for location in &batch.locations {
            locations.push(location_identity(&mut digest, batch, location, &files));
            qualities.push(line_quality(&mut digest, batch, location, &functions));
        }
        Self { locations, qualities }
    }
}

/// The identity of a function: kind, linkage name without the suffixes that compilers add to copies, and
/// the file name of the binary; where no binary is behind it (interpreters) the source file takes its place,
/// else every `__init__` of a program would be one function.
#[must_use]
pub fn function_identity(kind: FrameKind, module: &str, function: &FunctionDef) -> u128 {
    let mut digest = Digest::default();
    digest.start(b'f').number(kind_code(kind)).text(&base_name(linkage_name(function)));
    digest.text(module).text(if module.is_empty() { &function.file } else { "" });
    digest.finish()
}

/// The identity of the stand-in function of a location without names.
#[must_use]
pub fn unnamed_identity(kind: FrameKind, module: &str, name: &str) -> u128 {
    let mut digest = Digest::default();
    digest.start(b'u').number(kind_code(kind)).text(name).text(module);
    digest.finish()
}

/// Quality of what is shown of a function.
#[must_use]
pub fn display_quality(function: &FunctionDef) -> DisplayQuality {
    let mut digest = Digest::default();
    DisplayQuality {
        has_file: !function.file.is_empty(),
        has_line: function.start_line != 0,
        contents: contents_of(&mut digest, function),
    }
}

/// True if the function has a name of its own.
#[must_use]
pub fn is_named(function: &FunctionDef) -> bool {
    !linkage_name(function).is_empty()
}

/// The name to show: the sender's, without the suffixes of compiler-made copies.
#[must_use]
pub fn shown_name(function: &FunctionDef) -> String {
    let name = if function.name.is_empty() { &function.system_name } else { &function.name };
    base_name(name)
}

/// The name to show for a location without names: `file+0xaddress`.
#[must_use]
pub fn unnamed_name(module: &str, address: u64) -> String {
    if module.is_empty() { format!("0x{address:x}") } else { format!("{module}+0x{address:x}") }
}

/// File name of a path as mappings write it: `/usr/lib/libc.so.6` is `libc.so.6`, `[vdso]` is itself.
#[must_use]
pub fn module_name(filename: &str) -> &str {
    filename.rsplit('/').find(|part| !part.is_empty()).unwrap_or("")
}

/// A linkage or shown name without the suffixes that one source function's copies differ in: Rust's
/// `::h<16 hex>` (mangled: `17h<16 hex>E`), LLVM's `.llvm.N`, GCC's `.constprop.N`, `.isra.N`, `.part.N`,
/// `.cold` and `.cold.N`. Suffixes stack, so they are taken off until none is left.
#[must_use]
pub fn base_name(name: &str) -> String {
    let mut rest = name;
    while let Some(shorter) = without_copy_suffix(rest) {
        rest = shorter;
    }
    if let Some((head, hash)) = rest.rsplit_once("::h")
        && is_rust_hash(hash)
        && !head.is_empty()
    {
        return head.to_owned();
    }
    if let Some(inner) = rest.strip_suffix('E')
        && let Some((head, hash)) = inner.rsplit_once("17h")
        && is_rust_hash(hash)
        && rest.starts_with("_ZN")
    {
        return format!("{head}E");
    }
    rest.to_owned()
}

fn without_copy_suffix(name: &str) -> Option<&str> {
    let (head, last) = name.rsplit_once('.')?;
    if head.is_empty() {
        return None;
    }
    if last == "cold" {
        return Some(head);
    }
    if !last.bytes().all(|byte| byte.is_ascii_digit()) || last.is_empty() {
        return None;
    }
    let (head, tag) = head.rsplit_once('.')?;
    let known = matches!(tag, "llvm" | "constprop" | "cold" | "isra" | "part");
    (known && !head.is_empty()).then_some(head)
}

fn is_rust_hash(hash: &str) -> bool {
    hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn linkage_name(function: &FunctionDef) -> &str {
    if function.system_name.is_empty() { &function.name } else { &function.system_name }
}

/// True if code of this kind is identified by address where a file backs it. Interpreted and jitted code
/// is not: its addresses change from run to run. Kernel addresses change from boot to boot.
pub(crate) fn has_stable_addresses(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::Native | FrameKind::Go | FrameKind::Rust | FrameKind::Unknown)
}

/// True if a file (not `[heap]`, `//anon` or nothing) is behind the mapping.
fn is_file_backed(mapping: &MappingDef) -> bool {
    let name = &mapping.filename;
    let pseudo = name.is_empty()
        || name.starts_with('[')
        || name.starts_with("//")
        || name.starts_with("anon")
        || name.starts_with("/memfd:");
    mapping.build_id.is_some() || !pseudo
}

fn file_identity(digest: &mut Digest, mapping: &MappingDef) -> u128 {
    digest.start(b'm');
    match &mapping.build_id {
        Some(id) => digest.number(1).bytes(id.as_bytes()),
        None => digest.number(0).text(&mapping.filename),
    };
    digest.finish()
}

fn location_identity(
    digest: &mut Digest,
    batch: &WriteBatch,
    location: &LocationDef,
    files: &[u128],
) -> u128 {
    let mapping = location.mapping.map(|index| index as usize);
    let backed = mapping.is_some_and(|index| is_file_backed(&batch.mappings[index]));
    let named =
        location.lines.iter().any(|line| is_named(&batch.functions[line.function as usize]));
    let by_address =
        !named || (has_stable_addresses(location.kind) && backed && location.address != 0);
    if by_address {
        digest.start(b'a').number(kind_code(location.kind)).number(location.address);
        digest.bytes(&mapping.map_or(0, |index| files[index]).to_le_bytes());
        return digest.finish();
    }
    let module = mapping.map_or("", |index| module_name(&batch.mappings[index].filename));
    digest.start(b'n').number(kind_code(location.kind)).text(module);
    let whole = location.kind != FrameKind::Kernel;
    for line in &location.lines {
        let function = &batch.functions[line.function as usize];
        digest.text(linkage_name(function));
        if whole {
            digest.text(&function.file).number(line.line.cast_unsigned());
        }
    }
    digest.finish()
}

fn line_quality(
    digest: &mut Digest,
    batch: &WriteBatch,
    location: &LocationDef,
    contents: &[u128],
) -> LineQuality {
    let mut quality = LineQuality::default();
    // One build id may lie under several file names: the names decide then, not who came first.
    let mapping = location.mapping.map(|index| &batch.mappings[index as usize]);
    digest.start(b'l').text(mapping.map_or("", |mapping| module_name(&mapping.filename)));
    for line in &location.lines {
        let index = line.function as usize;
        let function = &batch.functions[index];
        if is_named(function) {
            quality.named += 1;
            quality.with_file += u32::from(!function.file.is_empty());
            quality.with_line += u32::from(line.line != 0);
            digest.bytes(&contents[index].to_le_bytes()).number(line.line.cast_unsigned());
        }
    }
    quality.contents = digest.finish();
    quality
}

fn contents_of(digest: &mut Digest, function: &FunctionDef) -> u128 {
    digest.start(b'd').text(&function.name).text(&function.system_name).text(&function.file);
    digest.number(function.start_line.cast_unsigned()).finish()
}

/// The stored number of a kind: its position in [`FrameKind::ALL`], which is append only.
#[must_use]
pub fn kind_code(kind: FrameKind) -> u64 {
    FrameKind::ALL.iter().position(|&known| known == kind).map_or(0, |position| position as u64)
}

/// Canonical bytes of an identity: every part carries its length, so that no two lists of parts collide.
#[derive(Debug, Default)]
struct Digest {
    buffer: Vec<u8>,
}

impl Digest {
    fn start(&mut self, domain: u8) -> &mut Self {
        self.buffer.clear();
        self.buffer.push(domain);
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.buffer.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64);
        self.buffer.extend_from_slice(bytes);
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    fn finish(&self) -> u128 {
        xxh3_128(&self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_one_function_have_one_base_name() {
        let rows = [
            ("main", "main"),
            ("foo::bar::h0123456789abcdef", "foo::bar"),
            ("_ZN3foo3bar17h0123456789abcdefE", "_ZN3foo3barE"),
            ("_ZN3foo3bar17h0123456789abcdefE.llvm.1234", "_ZN3foo3barE"),
            ("work.constprop.0.cold", "work"),
            ("work.part.3.isra.12", "work"),
            ("work.cold.7", "work"),
            ("main.main", "main.main"),
            ("main.work.func1", "main.work.func1"),
            (".cold", ".cold"),
            ("a.llvm.", "a.llvm."),
            ("std::hash", "std::hash"),
            ("::h0123456789abcdef", "::h0123456789abcdef"),
            ("", ""),
        ];
        for (name, base) in rows {
            assert_eq!(base_name(name), base, "{name}");
        }
    }

    #[test]
    fn module_names_are_the_last_part_of_a_path() {
        let rows = [
            ("/usr/lib/libc.so.6", "libc.so.6"),
            ("[vdso]", "[vdso]"),
            ("", ""),
            ("//anon", "anon"),
            ("dir/", "dir"),
        ];
        for (path, name) in rows {
            assert_eq!(module_name(path), name, "{path}");
        }
    }
}
