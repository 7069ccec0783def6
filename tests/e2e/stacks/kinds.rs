//! Every case, as data, in batches that run at the same time.

use super::build::{bolt, keep_debug_frame, keep_own_symbols};
use super::case::{Case, Compiler, Expect, Library, Opinion};
use super::place::{copied, in_namespaces, in_overlay, in_squashfs, with_library};

/// A library of two frames that any loader can map.
const LIBRARY: Library = Library {
    source: "library.c",
    flags: &["-nostdlib", "-Wl,-e,library_middle", "-Wl,-Bsymbolic"],
    linked: false,
};

/// Stubs that bind at the first call.
const STUBS: Library = Library { source: "plt_library.c", flags: &[], linked: true };

/// A thousand functions that are bound when they are called, through stubs of their own library.
const LAZY: Library = Library { source: "lazy_library.c", flags: &["-Wl,-z,lazy"], linked: true };

/// How a program may be linked.
pub(super) const LINKS: [Case; 11] = [
    Case::plain("pie", "C, position independent, glibc"),
    Case::plain("fixed", "C at a fixed address").flags(&["-no-pie", "-fno-pie"]),
    Case::plain("static", "static glibc").flags(&["-static"]).beside(Opinion::Gdb),
    Case::plain("static-pie", "static position independent glibc")
        .flags(&["-static-pie"])
        .beside(Opinion::Gdb),
    Case::plain("musl", "musl, whose own code has no unwind information").by(Compiler::Musl),
    Case::plain("musl-static", "static musl").by(Compiler::Musl).flags(&["-static"]),
    Case::plain("musl-stripped", "static musl without unwind information and symbols but its own")
        .by(Compiler::Musl)
        .flags(&["-static", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"])
        .then(keep_own_symbols),
    Case::plain("lld", "linked by lld").flags(&["-fuse-ld=lld"]).needs("VESTA_LLD", "ld.lld"),
    Case::plain("lld-separate", "lld, `-z separate-code`")
        .flags(&["-fuse-ld=lld", "-Wl,-z,separate-code"])
        .needs("VESTA_LLD", "ld.lld"),
    Case::plain("gold", "linked by gold").flags(&["-fuse-ld=gold"]).needs("VESTA_GOLD", "ld.gold"),
    Case::plain("bolt", "BOLT: two executable segments, two `.eh_frame`")
        .flags(&["-Wl,--emit-relocs", "-fno-reorder-blocks-and-partition", "-Wl,-z,now"])
        .then(bolt),
];

/// Where unwind information comes from.
pub(super) const TABLES: [Case; 4] = [
    Case::plain("debug-frame", "`.debug_frame` alone")
        .flags(&["-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"])
        .then(keep_debug_frame)
        .beside(Opinion::Gdb),
    Case::plain("frame-pointers", "frame pointers, no unwind information").flags(&[
        "-fno-asynchronous-unwind-tables",
        "-fno-unwind-tables",
        "-fno-omit-frame-pointer",
        "-mno-omit-leaf-frame-pointer",
    ]),
    Case::plain("nothing", "neither: rows from the code itself")
        .flags(&["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"])
        .beside(Opinion::None),
    Case::of("jit.c", "jit", "code made at run time, with frame pointers and a perf map"),
];

/// Frames that are unlike others.
pub(super) const FRAMES: [Case; 11] = [
    Case::of("huge.c", "huge", "frames of 540 KiB").beside(Opinion::Gdb),
    Case::of("drap.c", "drap", "realigned frames (DRAP)"),
    Case::of("plt.c", "plt", "time in stubs of `.plt`")
        .with(STUBS)
        .calling(3)
        .flags(&["-fcf-protection=none", "-Wl,-z,lazy"]),
    Case::of("plt.c", "plt-ibt", "time in stubs of `.plt.sec`")
        .with(STUBS)
        .calling(3)
        .flags(&["-fcf-protection", "-Wl,-z,ibtplt"]),
    Case::of("plt.c", "plt-lld", "time in stubs of lld, which have no unwind information")
        .with(STUBS)
        .calling(3)
        .flags(&["-fuse-ld=lld", "-Wl,-z,lazy"])
        .needs("VESTA_LLD", "ld.lld"),
    Case::of("plt_halves.c", "plt-halves", "both halves of a lazy stub"),
    Case::of("lazy.c", "lazy", "in the loader, which binds functions at their first call")
        .with(LAZY)
        .calling(8)
        .flags(&["-Wl,-z,lazy"]),
    Case::of("assembly.c", "assembly", "assembly with an expression, as OpenSSL's"),
    Case::of("assembly.c", "assembly-register", "assembly that keeps its frame in a register")
        .flags(&["-DBY_REGISTER"]),
    Case::of("coroutine.c", "coroutine", "on a stack made by `makecontext`"),
    Case::of("noreturn.c", "noreturn", "calls that end their functions"),
];

/// The chain in a thread.
pub(super) const THREAD: Case = Case::of("thread.c", "thread", "a second thread");

/// Moments that interrupt a chain.
pub(super) const MOMENTS: [Case; 8] = [
    Case::of("signals.c", "signal", "in a signal handler"),
    Case::of("signals.c", "signal-alternate", "in a signal handler on a stack of its own")
        .flags(&["-DALTERNATE"])
        .beside(Opinion::Gdb),
    Case::of("vdso.c", "vdso", "in the vDSO").calling(3),
    Case::of("vfork.c", "vfork", "in a child of `vfork`").beside(Opinion::Gdb),
    Case {
        has_children: true,
        ..Case::of("vfork.c", "vfork-loop", "in `vfork` itself, return address in a register")
            .flags(&["-DLOOP"])
            .calling(3)
    },
    Case {
        // While the language's own unwinder puts the registers of the handler into its frame's places, that frame
        // belongs to nobody: 1 to 2 % of this program's time.
        right_min: 0.97,
        ..Case::of("exceptions.cpp", "exceptions", "C++ that throws and catches")
            .by(Compiler::Cpp)
            .calling(24)
    },
    THREAD,
    Case::of("thread.c", "musl-thread", "a second thread of static musl")
        .by(Compiler::Musl)
        .flags(&["-static", "-DMUSL"]),
];

/// Where the file may lie, and who may see it.
pub(super) const PLACES: [Case; 9] = [
    Case::plain("deleted", "file deleted").flags(&["-DUNLINK"]).started(copied),
    Case::of("memfd.c", "memfd", "executable in a memfd"),
    Case::of("loader.c", "memfd-library", "library in a memfd")
        .flags(&["-DMEMFD"])
        .with(LIBRARY)
        .started(with_library),
    Case::of("loader.c", "deleted-library", "library whose file is deleted")
        .flags(&["-DDELETED"])
        .with(LIBRARY)
        .started(with_library),
    Case::of("loader.c", "offset-library", "library mapped from inside a larger file, an archive")
        .flags(&["-DOFFSET"])
        .with(LIBRARY)
        .started(with_library)
        .beside(Opinion::None),
    Case::plain("namespaces", "other user, mount and PID namespaces").started(in_namespaces),
    Case::plain("overlay", "chroot on an overlay, other namespaces").started(in_overlay),
    Case::plain("squashfs", "from a mounted squashfs image").started(in_squashfs),
    Case::of("bits32.c", "bits32", "32-bit program: not yet, its leaf alone and a marker")
        .flags(&[
            "-m32",
            "-nostdlib",
            "-static",
            "-fno-pie",
            "-fno-builtin",
            "-fno-stack-protector",
        ])
        .expect(Expect::Stops("[unwind: rule unsupported]"))
        .beside(Opinion::None),
];

/// Deep stacks where the programs loop: 1,024 frames.
pub(super) const DEEP: [Case; 2] = [
    Case::of("recursion.c", "recursion", "300 frames deep")
        .flags(&["-DDEPTH=300"])
        .beside(Opinion::Gdb),
    Case::of("recursion.c", "recursion-3000", "3,000 frames deep: cut in the middle, root kept")
        .flags(&["-DDEPTH=3000"])
        .expect(Expect::Truncated("[truncated]"))
        .beside(Opinion::None),
];

/// Deep stacks where they call their tails, on kernels before 5.17: 256 frames.
pub(super) const DEEP_BY_TAIL_CALLS: [Case; 2] = [
    Case::of("recursion.c", "recursion-tail-calls", "200 frames deep, programs for old kernels")
        .flags(&["-DDEPTH=200"])
        .beside(Opinion::Gdb),
    Case::of("recursion.c", "recursion-300-tail-calls", "300 frames deep there: cut in the middle")
        .flags(&["-DDEPTH=300"])
        .expect(Expect::Truncated("[truncated]"))
        .beside(Opinion::None),
];

/// All of them, in the order of the table.
pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    [&LINKS[..], &TABLES, &FRAMES, &DEEP, &DEEP_BY_TAIL_CALLS, &MOMENTS, &PLACES]
        .into_iter()
        .flatten()
}
