//! Names of small programs with a known truth, compiled here.

use super::NativeNames;
use super::recent::Recent;
use crate::address::{ElfAddr, FileId};
use object::{Object as _, ObjectSymbol as _};
use std::fs::File;
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

fn names(path: &Path, addresses: &[u64]) -> Vec<Vec<String>> {
    let addresses: Vec<ElfAddr> = addresses.iter().copied().map(ElfAddr).collect();
    let lines =
        NativeNames::default().names(FileId(1), &File::open(path).unwrap().into(), &addresses);
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
        let expected = [
            "inner program.cc:3",
            "middle program.cc:6",
            "space::outer(int volatile*) program.cc:8",
        ];
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
