use super::{KernelRegions, KernelSymbols, SymbolTable, plain_name};
use crate::address::AbsAddr;
use crate::bpf::KernelSymbolEvent;
use crate::clock::{MonotonicNs, monotonic_now};
use crate::limits::{
    KALLSYMS_READ_INTERVAL_NS_MAX, KALLSYMS_READ_INTERVAL_NS_MIN, KERNEL_SYMBOLS_MAX,
    MODULES_LOOK_INTERVAL_NS,
};
use crate::normalize::{Frame, KernelRegion};
use crate::symbolize::UnnamedReason;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

/// Out of order as on a real machine: BPF text lies between the kernel's and a module's.
const TEXT: &str = "\
ffffffff81000000 T _stext
ffffffff81000000 T startup_64
ffffffff81000100 t do_one_thing.isra.0
ffffffff81000180 t do_one_thing.cold
ffffffff81000200 T __memcpy
ffffffff81000200 W memcpy
ffffffff81000300 T _etext
ffffffff82000000 D some_data
0000000000000000 A fixed_percpu_data
ffffffffc0300000 t helper\t[zfs]
ffffffffc0300040 t other\t[zfs]
ffffffffc0200000 t ftrace_trampoline\t[__builtin__ftrace]
ffffffffa0001000 t bpf_prog_6deef7357e7b4530_sample\t[bpf]
";

const NONE: KernelRegion = KernelRegion(0);

fn read(proc_root: &Path) -> KernelSymbols {
    KernelSymbols::read(proc_root, Arc::default())
}

fn shown(table: &SymbolTable, address: u64) -> String {
    match table.find(address) {
        Some(symbol) => format!("{} [{}]", symbol.name, symbol.module),
        None => "-".into(),
    }
}

#[test]
fn addresses_are_named_up_to_the_next_symbol() {
    let table = SymbolTable::read(TEXT.as_bytes()).unwrap();
    for (address, expected) in [
        (0xffff_ffff_80ff_ffff, "-"),
        (0xffff_ffff_8100_0000, "startup_64 [vmlinux]"),
        (0xffff_ffff_8100_0100, "do_one_thing [vmlinux]"),
        (0xffff_ffff_8100_01ff, "do_one_thing [vmlinux]"),
        (0xffff_ffff_8100_0200, "memcpy [vmlinux]"),
        (0xffff_ffff_8100_02ff, "memcpy [vmlinux]"),
        (0xffff_ffff_8200_0000, "-"),
        (0xffff_ffff_a000_1010, "bpf_prog_6deef7357e7b4530_sample [bpf]"),
        (0xffff_ffff_a100_1010, "-"),
        (0xffff_ffff_c020_0001, "ftrace_trampoline [__builtin__ftrace]"),
        (0xffff_ffff_c030_003f, "helper [zfs]"),
        (0xffff_ffff_c030_0040, "other [zfs]"),
        (0xffff_ffff_ffff_ffff, "-"),
        (0, "-"),
    ] {
        assert_eq!(shown(&table, address), expected, "{address:#x}");
    }
}

/// What a module ran while it was loaded lay behind it and is gone; so may another module's.
#[test]
fn the_last_function_of_a_module_ends_with_its_page() {
    let text = "ffffffffc0201000 t first\t[raid]\nffffffffc0203e00 t last\t[raid]\n\
        ffffffffc0206000 d table\t[raid]\nffffffffc0207f00 t alone\t[other]\n\
        ffffffffc0300000 t bpf_prog_1\t[bpf]\n";
    let table = SymbolTable::read(text.as_bytes()).unwrap();
    for (address, expected) in [
        (0xffff_ffff_c020_3dff, "first [raid]"),
        (0xffff_ffff_c020_3fff, "last [raid]"),
        (0xffff_ffff_c020_4000, "-"),
        (0xffff_ffff_c020_7fff, "alone [other]"),
        (0xffff_ffff_c020_8000, "-"),
        (0xffff_ffff_c030_1000, "bpf_prog_1 [bpf]"),
    ] {
        assert_eq!(shown(&table, address), expected, "{address:#x}");
    }
}

#[test]
fn suffixes_of_compilers() {
    for (name, expected) in [
        ("vfs_read", "vfs_read"),
        ("foo.isra.0", "foo"),
        ("foo.constprop.12", "foo"),
        ("foo.isra.0.cold", "foo"),
        ("foo.part.0", "foo.part.0"),
        ("foo.llvm.1234567890123", "foo"),
        ("foo.cold.3", "foo"),
        (".cold", ".cold"),
        ("a.b", "a.b"),
        ("foo.", "foo."),
    ] {
        assert_eq!(plain_name(name.as_bytes()), expected.as_bytes(), "{name}");
    }
}

#[test]
fn hidden_and_broken_files_name_nothing() {
    let hidden = "0000000000000000 T _stext\n0000000000000000 t foo\t[bar]\n";
    let table = SymbolTable::read(hidden.as_bytes()).unwrap();
    assert!(table.symbols.is_empty());
    assert_eq!(table.hidden, 2);
    for text in
        ["", "\n\n", "ffffffff81000000", "ffffffff81000000 T", "x T y", "ffffffff81000000 TT y"]
    {
        assert!(SymbolTable::read(text.as_bytes()).unwrap().symbols.is_empty(), "{text:?}");
    }
    let missing = read(Path::new("/nonexistent"));
    assert!(missing.is_empty());
}

#[test]
fn modules_that_come_later_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kallsyms");
    std::fs::write(&path, TEXT).unwrap();
    let mut symbols = read(folder.path());
    let new = AbsAddr(0xffff_ffff_c050_0010);
    let now = monotonic_now();
    assert_eq!(symbols.kernel_at(new, NONE, now), None);
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"ffffffffc0500000 t late_function\t[late]\n").unwrap();
    assert_eq!(symbols.kernel_at(new, NONE, now), None, "not read again at once");
    let later = MonotonicNs(now.0 + KALLSYMS_READ_INTERVAL_NS_MIN);
    assert_eq!(symbols.kernel_at(new, NONE, later).unwrap().module, "late");
    // The module goes, another takes its place: the old name is not kept for ever.
    std::fs::write(&path, TEXT.replace("[zfs]", "[xfs]")).unwrap();
    let zfs = AbsAddr(0xffff_ffff_c030_0000);
    assert_eq!(symbols.kernel_at(zfs, NONE, later).unwrap().module, "zfs");
    let much_later = MonotonicNs(later.0 + KALLSYMS_READ_INTERVAL_NS_MAX);
    assert_eq!(symbols.kernel_at(zfs, NONE, much_later).unwrap().module, "xfs");
    assert_eq!(symbols.kernel_at(new, NONE, much_later), None);
}

#[test]
fn this_kernel_is_read() {
    let started = std::time::Instant::now();
    let symbols = read(Path::new("/proc"));
    let taken = started.elapsed();
    if symbols.is_empty() {
        eprintln!("skipped: kernel addresses are hidden from this user");
        return;
    }
    eprintln!("{} kernel symbols in {taken:?}", symbols.len());
    let bytes = symbols.table.symbols.len() * 16 + symbols.table.names.len();
    assert!(bytes < 16 << 20, "{bytes} bytes");
    let text = std::fs::read_to_string("/proc/kallsyms").unwrap();
    let line = text.lines().find(|line| line.ends_with(" vfs_read")).unwrap();
    let address = u64::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap();
    assert_eq!(shown(&symbols.table, address), "vfs_read [vmlinux]");
    assert_eq!(shown(&symbols.table, address + 1), "vfs_read [vmlinux]");
    assert!(!shown(&symbols.table, address - 1).starts_with("vfs_read"));
}

#[test]
fn a_module_in_the_place_of_another_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("kallsyms", TEXT);
    write("modules", "zfs 1048576 1 - Live 0xffffffffc0300000 (OE)\n");
    let mut symbols = read(folder.path());
    let address = AbsAddr(0xffff_ffff_c030_0000);
    let now = monotonic_now();
    assert_eq!(symbols.kernel_at(address, NONE, now).unwrap().module, "zfs");
    // Used more often: the same modules.
    write("kallsyms", &TEXT.replace("[zfs]", "[xfs]"));
    write("modules", "zfs 1048576 7 - Live 0xffffffffc0300000 (OE)\n");
    let later = MonotonicNs(now.0 + MODULES_LOOK_INTERVAL_NS);
    assert_eq!(symbols.kernel_at(address, NONE, later).unwrap().module, "zfs");
    write("modules", "xfs 1048576 1 - Live 0xffffffffc0300000\n");
    assert_eq!(symbols.kernel_at(address, NONE, later).unwrap().module, "zfs", "not due yet");
    let later = MonotonicNs(later.0 + MODULES_LOOK_INTERVAL_NS);
    assert_eq!(symbols.kernel_at(address, NONE, later).unwrap().module, "xfs");
}

#[test]
fn a_program_in_the_place_of_another_never_gets_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kallsyms");
    std::fs::write(&path, TEXT).unwrap();
    let regions = Arc::new(KernelRegions::default());
    let mut symbols = KernelSymbols::read(folder.path(), Arc::clone(&regions));
    let address = AbsAddr(0xffff_ffff_a000_1010);
    let event = |name: &str, gone| KernelSymbolEvent {
        address: AbsAddr(0xffff_ffff_a000_1000),
        length: 0x100,
        gone,
        bpf: true,
        name: name.into(),
    };
    let mut named = |time: MonotonicNs| {
        let mut frames = [Frame::Kernel { address, region: NONE }];
        regions.place(&mut frames, time);
        let [Frame::Kernel { region, .. }] = frames else { unreachable!("still one") };
        symbols.kernel_at(address, region, monotonic_now()).map(|symbol| symbol.name)
    };
    let begin = monotonic_now().0;
    let at = |seconds: u64| MonotonicNs(begin + seconds * 1_000_000_000);
    let old = "bpf_prog_6deef7357e7b4530_sample";
    assert_eq!(named(at(0)).as_deref(), Some(old));
    regions.apply(event(old, true), at(1));
    regions.apply(event("bpf_prog_0123456789abcdef_other", false), at(2));
    std::fs::write(&path, TEXT.replace(old, "bpf_prog_0123456789abcdef_other")).unwrap();
    assert_eq!(named(at(0)).as_deref(), Some(old), "sampled while the old one was there");
    assert_eq!(named(at(3)).as_deref(), Some("bpf_prog_0123456789abcdef_other"));
}

#[test]
fn a_huge_file_is_cut_and_that_is_counted() {
    let mut text = String::new();
    for number in 0..KERNEL_SYMBOLS_MAX + 1000 {
        // Backwards: the file is in no order.
        let address = u64::MAX - number as u64 * 16;
        writeln!(text, "{address:016x} t f{number:x}").unwrap();
    }
    let table = SymbolTable::read(text.as_bytes()).unwrap();
    assert_eq!((table.symbols.len(), table.left_out), (KERNEL_SYMBOLS_MAX, 1000));
    assert!(table.symbols.is_sorted_by_key(|symbol| symbol.start));
    assert_eq!(shown(&table, u64::MAX - 16), "f1 [vmlinux]");
    assert_eq!(table.why_unnamed(), UnnamedReason::Limit);
}
