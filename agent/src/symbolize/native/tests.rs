//! Names of small programs with a known truth, compiled here.

use super::NativeNames;
use super::recent::Recent;
use super::symbols::SymbolTable;
use crate::address::{ElfAddr, FileId};
use crate::clock::MonotonicNs;
use crate::elf::headers::Elf;
use crate::elf::source::Source;
use crate::limits::{PLT_RELOCATION_BYTES_MAX, SYMBOLS_READ_PER_TABLE_MAX};
use crate::symbolize::UnnamedReason;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `source` with `arguments` into `directory`.
fn compile(directory: &Path, source: &str, compiler: &str, arguments: &[&str]) -> PathBuf {
    let extension = if compiler == "g++" { "cc" } else { "c" };
    let input = directory.join(format!("program.{extension}"));
    std::fs::write(&input, source).unwrap();
    let output = directory.join("program");
    let status = Command::new(compiler).args(arguments).arg("-o").arg(&output).arg(&input).status();
    assert!(status.unwrap().success(), "{compiler} {arguments:?}");
    output
}

/// Address and size of a symbol, from the object crate.
fn symbol(path: &Path, name: &str) -> (u64, u64) {
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name)).unwrap();
    (symbol.address(), symbol.size())
}

fn open(path: &Path) -> OwnedFd {
    File::open(path).unwrap().into()
}

const FOREVER: MonotonicNs = MonotonicNs(u64::MAX);

fn names(path: &Path, addresses: &[u64]) -> Vec<Vec<String>> {
    let addresses: Vec<ElfAddr> = addresses.iter().copied().map(ElfAddr).collect();
    let lines = NativeNames::default().names(FileId(1), &open(path), None, &addresses, FOREVER);
    let show = |line: crate::elf::SourceLine| {
        let file = line.file.rsplit('/').next().unwrap_or_default().to_owned();
        format!("{} {file}:{}", line.function, line.line)
    };
    lines
        .into_iter()
        .map(|lines| lines.unwrap_or_default().into_iter().map(show).collect())
        .collect()
}

const SHORT_NAMES: &str = "
int f(int a) { return a * 3; }
int g(int a) { return a * 5; }
int d(int a) { return a * 7; }
int main(int c, char **v) { return f(c) + g(c) + d(c); }
";

#[test]
fn short_c_names_are_not_taken_for_mangled_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = compile(directory.path(), SHORT_NAMES, "gcc", &["-O0"]);
    let at = |name| symbol(&path, name).0 + 1;
    let found = names(&path, &[at("f"), at("g"), at("d"), at("main")]);
    assert_eq!(found, [["f :0"], ["g :0"], ["d :0"], ["main :0"]]);
}

#[test]
fn a_symbol_names_nothing_beyond_its_size() {
    let directory = tempfile::tempdir().unwrap();
    let path = compile(directory.path(), SHORT_NAMES, "gcc", &["-O0", "-falign-functions=64"]);
    let (f, size) = symbol(&path, "f");
    let (g, _) = symbol(&path, "g");
    let found = names(&path, &[f, f + size - 1, f + size, g - 1, g]);
    let [of_f, of_g] = ["f :0", "g :0"].map(str::to_owned);
    assert_eq!(found, [vec![of_f.clone()], vec![of_f], vec![], vec![], vec![of_g]]);
}

#[test]
fn a_local_function_of_a_stripped_library_has_no_neighbours_name() {
    let directory = tempfile::tempdir().unwrap();
    let source = "
        int before(int a) { return a * 3; }
        __attribute__((noinline)) static int hidden(int a) { return a * 11 + 1; }
        int after(int a) { return hidden(a) + 5; }
    ";
    let path = compile(
        directory.path(),
        source,
        "gcc",
        &["-O1", "-shared", "-fPIC", "-fno-toplevel-reorder"],
    );
    let hidden = symbol(&path, "hidden").0;
    let before = symbol(&path, "before").0;
    assert!(Command::new("strip").arg(&path).status().unwrap().success());
    let found = names(&path, &[before, hidden]);
    assert_eq!(found, [vec!["before :0".to_owned()], vec![]]);
}

#[test]
fn debug_information_adds_lines_and_inlined_functions() {
    let directory = tempfile::tempdir().unwrap();
    let source = "
        static inline __attribute__((always_inline)) int inner(volatile int *p) {
            return *p + 1;
        }
        static inline __attribute__((always_inline)) int middle(volatile int *p) {
            return inner(p) * 2;
        }
        namespace space { int outer(volatile int *p) { return middle(p); } }
        int main() { volatile int i = 1; return space::outer(&i); }
    ";
    for compression in ["-gz=none", "-gz=zlib"] {
        let path = compile(directory.path(), source, "g++", &["-O2", "-g", compression]);
        let (start, _) = symbol(&path, "_ZN5space5outerEPVi");
        let found = names(&path, &[start]);
        let expected = ["inner program.cc:3", "middle program.cc:6", "space::outer program.cc:8"];
        assert_eq!(found, [expected], "{compression}");
    }
}

#[test]
fn what_is_no_code_has_no_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = compile(directory.path(), SHORT_NAMES, "gcc", &["-O0", "-g"]);
    assert_eq!(names(&path, &[0, 1, u64::MAX, u64::MAX - 1]), vec![Vec::<String>::new(); 4]);
}

#[test]
fn the_cache_is_bounded_and_keeps_what_is_used() {
    let mut cache = Recent::new(10);
    for number in 0..1000 {
        cache.insert(number, number, 1);
        assert_eq!(cache.get(&0), Some(0), "used all the time");
        assert!(cache.len() <= 21);
    }
    assert_eq!(cache.get(&500), None);
}

/// Runs a tool and answers what it printed.
fn run(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool).args(arguments).output().unwrap();
    assert!(output.status.success(), "{tool} {arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// One function per name that the program calls in another file.
const CALLS: &str = "
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
int (*pointer)(const char *) = puts;
int main(int c, char **v) { printf(\"%f\", sin(c)); qsort(v, c, 8, 0); return puts(v[0]) + atoi(v[0]); }
";

#[test]
fn stubs_bear_the_name_of_what_they_jump_to() {
    let directory = tempfile::tempdir().unwrap();
    for layout in [
        &["-Wl,-z,lazy", "-fcf-protection=none"][..],
        &["-Wl,-z,lazy", "-Wl,-z,ibtplt", "-fcf-protection=full"],
        &["-Wl,-z,now", "-fcf-protection=full"],
        &["-fuse-ld=lld", "-Wl,-z,lazy"],
        &["-no-pie", "-Wl,-z,lazy"],
        &["-fno-plt"],
    ] {
        let arguments: Vec<&str> = ["-O0", "-fno-builtin"].iter().chain(layout).copied().collect();
        let arguments: Vec<&str> =
            arguments.into_iter().chain(["-Wl,--no-as-needed", "-lm"]).collect();
        let path = compile(directory.path(), CALLS, "gcc", &arguments);
        // objdump is the second opinion: `0000000000001030 <puts@plt>:`.
        let listing = run("objdump", &["-d", path.to_str().unwrap()]);
        let stubs: Vec<(u64, String)> = listing
            .lines()
            .filter_map(|line| {
                let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
                let name = name.ends_with("@plt").then_some(name)?;
                Some((u64::from_str_radix(address, 16).ok()?, name.to_owned()))
            })
            .collect();
        assert!(!stubs.is_empty() || layout.contains(&"-fno-plt"), "{layout:?}: {listing}");
        for (address, name) in stubs {
            let expected = [format!("{name} :0")];
            let found = names(&path, &[address, address + 5]);
            assert_eq!(found, [&expected, &expected], "{layout:?} {address:#x} {name}");
        }
    }
}

#[test]
fn a_debug_file_of_this_very_build_names_local_functions() {
    let directory = tempfile::tempdir().unwrap();
    let source = "
        __attribute__((noinline)) static int hidden(int a) { return a * 11 + 1; }
        int visible(int a) { return hidden(a) + 5; }
    ";
    let arguments = ["-O1", "-shared", "-fPIC", "-Wl,--build-id"];
    let path = compile(directory.path(), source, "gcc", &arguments);
    let hidden = symbol(&path, "hidden").0;
    let text = path.to_str().unwrap();
    let debug = directory.path().join("program.debug");
    run("objcopy", &["--only-keep-debug", text, debug.to_str().unwrap()]);
    run("strip", &[text]);
    run("objcopy", &[&format!("--add-gnu-debuglink={}", debug.display()), text]);
    let addresses = [ElfAddr(hidden)];
    let with = |debug: &Path| {
        let debug = open(debug);
        let names = NativeNames::default().names(
            FileId(1),
            &open(&path),
            Some(&debug),
            &addresses,
            FOREVER,
        );
        names.into_iter().next().unwrap().map(|lines| lines[0].function.clone())
    };
    assert_eq!(with(&debug).as_deref(), Ok("hidden"));
    assert_eq!(names(&path, &[hidden]), [Vec::<String>::new()]);
    use crate::elf::ForeignFiles as _;
    let link = crate::elf::LocalFiles::new().debug_link(&open(&path));
    assert_eq!(link.as_deref(), Some("program.debug"));
    // Of another build.
    std::fs::create_dir(directory.path().join("other")).unwrap();
    let other =
        compile(&directory.path().join("other"), &source.replace("11", "12"), "gcc", &arguments);
    assert_eq!(with(&other), Err(UnnamedReason::NoSymbol));
}

#[test]
fn assembly_without_sizes_is_bounded_by_the_function_and_the_section() {
    let directory = tempfile::tempdir().unwrap();
    let source = "
        int main(void) { return 0; }
        __asm__(\".text\\n\"
            \".globl first\\n.type first,@function\\nfirst: .cfi_startproc\\n.fill 32,1,0x90\\nret\\n.cfi_endproc\\n\"
            \".cfi_startproc\\n.fill 32,1,0x90\\nret\\n.cfi_endproc\\n\"
            \".globl bare\\nbare: .fill 16,1,0x90\\nret\\n\"
            \".globl next\\nnext: ret\\n\"
            \".section .other,\\\"ax\\\"\\n.fill 16,1,0x90\\n\");
    ";
    let path = compile(directory.path(), source, "gcc", &["-O0"]);
    let (first, bare, next) =
        (symbol(&path, "first").0, symbol(&path, "bare").0, symbol(&path, "next").0);
    let found = names(&path, &[first, first + 32, first + 33, first + 65, bare, bare + 16, next]);
    let [named, of_bare, of_next] =
        ["first :0", "bare :0", "next :0"].map(|name| vec![name.to_owned()]);
    let expected = [
        named.clone(),
        named,
        // A function of its own, which nothing names.
        vec![],
        vec![],
        of_bare.clone(),
        of_bare,
        of_next,
    ];
    assert_eq!(found, expected);
    let bytes = std::fs::read(&path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let other = file.section_by_name(".other").unwrap();
    assert_eq!(names(&path, &[other.address()]), [Vec::<String>::new()]);
    // Exported names alone: only what begins where a function begins.
    let library = compile(directory.path(), source, "gcc", &["-O0", "-shared", "-fPIC"]);
    let (first, bare) = (symbol(&library, "first").0, symbol(&library, "bare").0);
    run("strip", &[library.to_str().unwrap()]);
    let found = names(&library, &[first + 8, first + 40, bare]);
    assert_eq!(found, [vec!["first :0".to_owned()], vec![], vec![]]);
}

#[test]
fn equal_functions_that_share_their_code_have_one_name_always_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let source = "
        int zebra(int a) { return a * 3 + 1; }
        int aardvark(int a) { return a * 3 + 1; }
        static int __attribute__((used)) a(int a) { return a * 3 + 1; }
        int main(int c, char **v) { return zebra(c) + aardvark(c) + a(c); }
    ";
    let folded = [
        "-O1",
        "-fno-inline",
        "-fno-ipa-icf",
        "-ffunction-sections",
        "-fuse-ld=gold",
        "-Wl,--icf=all",
    ];
    let path = compile(directory.path(), source, "gcc", &folded);
    let [zebra, aardvark] = ["zebra", "aardvark"].map(|name| symbol(&path, name).0);
    assert_eq!(zebra, aardvark, "the linker folded them");
    // Global before local, then the shortest.
    assert_eq!(names(&path, &[zebra]), [["zebra :0"]]);
}

#[test]
fn versions_are_no_part_of_a_name() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("versions");
    std::fs::write(&script, "V1 { global: shared; local: *; }; V2 { global: shared; };").unwrap();
    let source = "
        int old(int a) { return a + 1; }
        int young(int a) { return a + 2; }
        __asm__(\".symver old,shared@V1\");
        __asm__(\".symver young,shared@@V2\");
    ";
    let version = format!("-Wl,--version-script={}", script.display());
    let arguments = ["-O1", "-shared", "-fPIC", &version];
    let path = compile(directory.path(), source, "gcc", &arguments);
    let (old, young) = (symbol(&path, "old").0, symbol(&path, "young").0);
    for stripped in [false, true] {
        if stripped {
            run("strip", &[path.to_str().unwrap()]);
        }
        let found = names(&path, &[old, young]);
        assert!(!found.iter().flatten().any(|name| name.contains('@')), "{found:?}");
        if stripped {
            assert_eq!(found, [["shared :0"], ["shared :0"]]);
        }
        assert_eq!(found.iter().flatten().count(), 2, "{found:?}");
    }
}

#[test]
fn bounds_of_functions_agree_with_the_symbol_table() {
    let directory = tempfile::tempdir().unwrap();
    let path = compile(directory.path(), SHORT_NAMES, "gcc", &["-O2"]);
    let file = open(&path);
    let elf = Elf::parse(Source::file(file.as_fd()).unwrap()).unwrap();
    for name in ["f", "g", "d", "main"] {
        let (start, size) = symbol(&path, name);
        for address in [start, start + size - 1] {
            assert_eq!(
                super::functions::containing(&elf, address),
                Some(start..start + size),
                "{name}"
            );
        }
    }
    assert_eq!(super::functions::containing(&elf, 0), None);
    assert_eq!(super::functions::containing(&elf, u64::MAX), None);
}

/// A file of nothing but sections: name, type, flags, and as many bytes as stated of `bytes`.
fn file_of(sections: &[(&str, u32, u64, usize)], bytes: usize) -> Vec<u8> {
    let mut names = vec![0];
    let mut headers = vec![0; 64];
    for &(name, kind, flags, size) in sections {
        let mut header = [0; 64];
        header[..4].copy_from_slice(&u32::try_from(names.len()).unwrap().to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[8..16].copy_from_slice(&flags.to_le_bytes());
        header[24..32].copy_from_slice(&64_u64.to_le_bytes());
        header[32..40].copy_from_slice(&(size as u64).to_le_bytes());
        headers.extend_from_slice(&header);
        names.extend_from_slice(name.as_bytes());
        names.push(0);
    }
    let mut file = vec![0; 64 + bytes];
    let names_at = file.len() as u64;
    let mut header = [0; 64];
    header[24..32].copy_from_slice(&names_at.to_le_bytes());
    header[32..40].copy_from_slice(&(names.len() as u64).to_le_bytes());
    headers.extend_from_slice(&header);
    file.extend_from_slice(&names);
    let count = u16::try_from(headers.len() / 64).unwrap();
    let headers_at = file.len() as u64;
    file.extend_from_slice(&headers);
    file[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    file[18..20].copy_from_slice(&object::elf::EM_X86_64.0.to_le_bytes());
    file[40..48].copy_from_slice(&headers_at.to_le_bytes());
    file[58..60].copy_from_slice(&64_u16.to_le_bytes());
    file[60..62].copy_from_slice(&count.to_le_bytes());
    file[62..64].copy_from_slice(&(count - 1).to_le_bytes());
    file
}

/// The tables of a file, and whether some of its stubs are missing.
fn tables_of(file: &[u8], until: MonotonicNs) -> (SymbolTable, bool) {
    let elf = Elf::parse(Source::memory(file)).unwrap();
    (SymbolTable::read(&elf, None, until), super::plt::stubs(&elf, until).cut)
}

#[test]
fn tables_without_end_are_cut() {
    use object::elf::{SHF_ALLOC, SHF_EXECINSTR, SHT_PROGBITS, SHT_RELA, SHT_SYMTAB};
    let never = MonotonicNs(u64::MAX);
    let code = (".plt", SHT_PROGBITS.0, SHF_ALLOC.0 | SHF_EXECINSTR.0, 16);
    let largest = usize::try_from(PLT_RELOCATION_BYTES_MAX).unwrap();
    let rela = |name| (name, SHT_RELA.0, 0, largest);
    // Many sections over the same bytes: the first one counts.
    let mut sections = vec![code];
    sections.resize(20_000, rela(".rela.plt"));
    let (table, cut) = tables_of(&file_of(&sections, largest), never);
    assert_eq!((table.missing(), cut), (UnnamedReason::NoSymbol, false));
    let sections = [code, rela(".rela.plt"), rela(".rela.dyn")];
    let (table, cut) = tables_of(&file_of(&sections, largest), never);
    assert_eq!((table.missing(), cut), (UnnamedReason::Limit, true));
    // More symbols than are read, which are not even there.
    let too_many = usize::try_from(SYMBOLS_READ_PER_TABLE_MAX + 1).unwrap() * 24;
    let file = file_of(&[(".symtab", SHT_SYMTAB.0, 0, too_many)], 0);
    assert_eq!(tables_of(&file, never).0.missing(), UnnamedReason::Limit);
    // The second table is not looked at, and none is when time is up.
    let file =
        file_of(&[(".symtab", SHT_SYMTAB.0, 0, 240), (".symtab", SHT_SYMTAB.0, 0, too_many)], 240);
    let (table, _) = tables_of(&file, never);
    assert_eq!((table.missing(), table.is_late()), (UnnamedReason::NoSymbol, false));
    let (table, _) = tables_of(&file, MonotonicNs(0));
    assert_eq!((table.missing(), table.is_late()), (UnnamedReason::Limit, true));
}

#[test]
fn variables_are_named_with_what_lies_between() {
    let directory = tempfile::tempdir().unwrap();
    let source = "static long locks[4] = {1}; long other; const long constant = 3;
        int main(int c, char **v) { locks[c & 3] = other; return (int)(locks[2] + constant); }";
    let path = compile(directory.path(), source, "gcc", &["-O1"]);
    let (locks, size) = symbol(&path, "locks");
    assert_eq!(size, 32);
    let (other, _) = symbol(&path, "other");
    let (constant, _) = symbol(&path, "constant");
    let found = names(&path, &[locks, locks + 16, other, constant, 1 << 40]);
    let found: Vec<&str> =
        found.iter().map(|lines| lines.first().map_or("", String::as_str)).collect();
    assert_eq!(found, ["locks :0", "locks+0x10 :0", "other :0", "", ""]);
}

#[test]
fn a_variable_that_time_left_out_is_looked_for_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = compile(directory.path(), "long lock = 1; int main() { return lock; }", "gcc", &[]);
    let address = [ElfAddr(symbol(&path, "lock").0)];
    let names = NativeNames::default();
    let ask = |until| names.names(FileId(1), &open(&path), None, &address, until).remove(0);
    assert_eq!(ask(MonotonicNs(0)), Err(UnnamedReason::Limit));
    assert_eq!(ask(FOREVER).unwrap()[0].function, "lock");
}
