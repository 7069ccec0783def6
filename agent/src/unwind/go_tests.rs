//! Go programs built here, in every form that people ship: the rows agree with Go's own DWARF, the names
//! with Go's own tools.

use super::RowTable;
use crate::address::{ElfAddr, FileId};
use crate::elf::{ForeignFiles as _, LocalFiles, Runtime, SourceLine};
use agent_ebpf::RuleKind;
use gimli::{BaseAddresses, CfaRule, LittleEndian, Register, UnwindContext, UnwindSection as _};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds `package` of `testdata/go` with `arguments`; nothing, and a word about it, without Go.
pub(crate) fn build(directory: &Path, package: &str, arguments: &[&str]) -> Option<PathBuf> {
    let output = directory.join(package);
    let status = Command::new("go")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/go"))
        .env("GOFLAGS", "-mod=mod")
        .env("GOTOOLCHAIN", "local")
        .arg("build")
        .args(arguments)
        .arg("-o")
        .arg(&output)
        .arg(format!("./{package}"))
        .status();
    match status {
        Ok(status) => {
            assert!(status.success(), "go build {arguments:?} {package}");
            Some(output)
        }
        Err(error) => {
            eprintln!("skipped: no Go on this machine ({error})");
            None
        }
    }
}

fn rows(path: &Path) -> RowTable {
    LocalFiles::new().unwind_rows(&File::open(path).unwrap().into()).unwrap()
}

fn names(path: &Path, addresses: &[u64]) -> Vec<Vec<SourceLine>> {
    let addresses: Vec<ElfAddr> = addresses.iter().copied().map(ElfAddr).collect();
    let names = LocalFiles::new().names(FileId(1), &File::open(path).unwrap().into(), &addresses);
    names.into_iter().map(Result::unwrap_or_default).collect()
}

/// Addresses and sizes of functions, from the symbol table.
fn functions(path: &Path) -> BTreeMap<u64, (u64, String)> {
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    file.symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
        .map(|symbol| (symbol.address(), (symbol.size(), symbol.name().unwrap().to_owned())))
        .collect()
}

fn strip(path: &Path) -> PathBuf {
    let stripped = path.with_extension("stripped");
    let status =
        Command::new("objcopy").arg("--strip-all").arg(path).arg(&stripped).status().unwrap();
    assert!(status.success());
    stripped
}

/// The forms: package, arguments of `go build`.
const FORMS: [(&str, &[&str]); 4] = [
    ("chain", &[]),
    ("chain", &["-buildmode=pie"]),
    ("mixed", &[]),
    ("mixed", &["-buildmode=pie"]),
];

/// Go writes `.debug_frame` from the same stack depths by another road (cmd/link/internal/ld/dwarf.go):
/// at each of its rows ours says the same CFA, where the function does not leave its stack.
#[test]
fn rows_agree_with_gos_own_dwarf() {
    let directory = tempfile::tempdir().unwrap();
    for (package, arguments) in FORMS {
        let mut arguments = arguments.to_vec();
        arguments.push("-ldflags=-compressdwarf=false");
        let Some(path) = build(directory.path(), package, &arguments) else { return };
        let table = rows(&strip(&path));
        let bytes = std::fs::read(&path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let section = file.section_by_name(".debug_frame").unwrap();
        let mut frame = gimli::DebugFrame::new(section.data().unwrap(), LittleEndian);
        frame.set_address_size(8);
        let bases = BaseAddresses::default();
        let mut context = UnwindContext::new();
        let (mut same, mut special) = (0, 0);
        let mut entries = frame.entries(&bases);
        while let Some(entry) = entries.next().unwrap() {
            let gimli::CieOrFde::Fde(fde) = entry else { continue };
            let fde = fde.parse(gimli::DebugFrame::cie_from_offset).unwrap();
            let mut fde_rows = fde.rows(&frame, &bases, &mut context).unwrap();
            while let Some(row) = fde_rows.next_row().unwrap() {
                let CfaRule::RegisterAndOffset { register: Register(7), offset } = *row.cfa()
                else {
                    panic!("Go's CFA is relative to rsp")
                };
                let at = row.start_address();
                let ours = table.rule_at(at).unwrap();
                if ours.kind == RuleKind::RspOffset as u8 {
                    assert_eq!(i64::from(ours.offset), offset, "{package} {arguments:?} {at:#x}");
                    same += 1;
                } else {
                    special += 1;
                }
            }
        }
        eprintln!(
            "{package} {arguments:?}: {same} rows the same, {special} special, {} rows",
            table.len()
        );
        assert!(same > 10_000 && special < 200, "{package} {arguments:?}: {same}, {special}");
    }
}

#[test]
fn every_function_of_a_stripped_program_has_its_name() {
    let directory = tempfile::tempdir().unwrap();
    for (package, arguments) in FORMS {
        let Some(path) = build(directory.path(), package, arguments) else { return };
        let functions = functions(&path);
        let stripped = strip(&path);
        let addresses: Vec<u64> = functions.keys().copied().collect();
        let found = names(&stripped, &addresses);
        let (mut go, mut other) = (0, 0);
        for ((address, (_, name)), lines) in functions.iter().zip(found) {
            // The linker adds the calling convention to names of its symbol table; C has no pclntab.
            let name = name.trim_end_matches(".abi0").trim_end_matches(".abiinternal");
            match lines.last() {
                Some(line) => {
                    let found = line.function.replace('·', ".");
                    let same = found == name
                        || name.starts_with("go:") // marks of the linker
                        || found.replace("[...]", "") == without_type_arguments(name);
                    assert!(same, "{package} {address:#x}: {name}, found {found}");
                    go += 1;
                }
                None => other += 1,
            }
        }
        eprintln!("{package} {arguments:?}: {go} named, {other} not Go");
        assert!(go > 1000 && other * 10 < go, "{package} {arguments:?}: {go}, {other}");
    }
}

/// `slices.SortFunc[go.shape.int]` is `slices.SortFunc[...]` in the pclntab.
fn without_type_arguments(name: &str) -> String {
    let mut depth = 0;
    let keep = |character: &char| {
        depth += i32::from(*character == '[');
        let keep = depth == 0;
        depth -= i32::from(*character == ']');
        keep
    };
    name.chars().filter(keep).collect()
}

/// `go tool addr2line` names the outermost function and the line of the innermost.
#[test]
fn lines_agree_with_gos_own_tool() {
    let directory = tempfile::tempdir().unwrap();
    let Some(path) = build(directory.path(), "chain", &[]) else { return };
    let own = functions(&path).into_iter().filter(|(_, (_, name))| name.starts_with("main."));
    let addresses: Vec<u64> =
        own.flat_map(|(start, (size, _))| (start..start + size).step_by(3)).collect();
    let found = names(&strip(&path), &addresses);
    let input: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    let expected = run_with_input("go", &["tool", "addr2line", path.to_str().unwrap()], &input);
    let expected: Vec<&str> = expected.lines().collect();
    assert!(addresses.len() > 200);
    for ((address, lines), expected) in addresses.iter().zip(found).zip(expected.chunks(2)) {
        let inner = lines.first().unwrap();
        let shown =
            [lines.last().unwrap().function.clone(), format!("{}:{}", inner.file, inner.line)];
        assert_eq!(shown, expected, "{address:#x}");
    }
}

#[test]
fn inlined_calls_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let Some(path) = build(directory.path(), "chain", &["-ldflags=-s -w"]) else { return };
    let unstripped = build(&directory.path().join("unstripped"), "chain", &[]).unwrap();
    let (start, (size, _)) =
        functions(&unstripped).into_iter().find(|(_, (_, name))| name == "main.inlining").unwrap();
    let addresses: Vec<u64> = (start..start + size).collect();
    let chain = ["main.square", "main.twice", "main.inlining"];
    let found = names(&unstripped, &addresses);
    let has = |lines: &Vec<SourceLine>| lines.iter().map(|line| &line.function).eq(chain);
    assert!(found.iter().any(has), "{found:#?}");
    let stripped = LocalFiles::new().inspect(&File::open(path).unwrap().into()).unwrap();
    assert_eq!(stripped.runtime, Runtime::Go);
    assert!(stripped.go_build_id.is_some());
}

fn run_with_input(program: &str, arguments: &[&str], input: &str) -> String {
    use std::io::Write as _;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    String::from_utf8(output.stdout).unwrap()
}
