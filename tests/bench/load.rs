//! What the host does while an agent is measured. Each load ends with its value.

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::rows_file::RowsFile;
use tests::swarm::Swarm;
use tests::workload::{self, Language};
use tests::{Running, binary, seed};

/// A kind of load; its name ends the names of its figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// C, Python, Node.js and Java keep all CPUs busy.
    Loaded,
    /// Nothing but what the host does anyway.
    Idle,
    /// As loaded, and five times a second a process comes that lives for a moment.
    Short,
    /// As loaded, and one of the processes is a program with debug information: this one.
    Debug,
    /// As loaded, and compilers run one after the other.
    Storm,
    /// One busy process that maps a file of nine million unwind rows.
    #[value(name = "9m")]
    NineMillion,
    /// Twelve threads that spin, and compilers; only the start is measured.
    Spinners,
    /// A static program is executed 500 times a second.
    Execs,
    /// A busy process maps code and unmaps it, a thousand times a second.
    Mappings,
    /// Programs that map a library of a million unwind rows that nobody has seen.
    #[value(name = "1m")]
    Million,
    /// As loaded, and all the time programs come that nobody has seen, with libraries that nobody has seen.
    New,
}

impl Kind {
    /// What ends the names of its figures; the loaded host is the plain one.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::Loaded => "",
            Self::Idle => "_idle",
            Self::Short => "_short",
            Self::Debug => "_debug",
            Self::Storm => "_storm",
            Self::NineMillion => "_9m",
            Self::Spinners => "_spinners",
            Self::Execs => "_execs",
            Self::Mappings => "_mappings",
            Self::Million => "_1m",
            Self::New => "_new",
        }
    }

    /// The figure that says what the agent spends on one of what the load counts.
    pub(crate) const fn cost(self) -> Option<&'static str> {
        match self {
            Self::Execs => Some("exec_us"),
            Self::Mappings => Some("mapping_us"),
            _ => None,
        }
    }
}

/// The running load.
pub(crate) struct Load {
    running: Vec<Running>,
}

impl Load {
    pub(crate) fn start(kind: Kind, length: Duration) -> Self {
        let seconds = length.as_secs();
        let running = match kind {
            Kind::Idle => Vec::new(),
            Kind::Loaded => mixed(seconds),
            Kind::Short => mixed(seconds).into_iter().chain(brief(seconds)).collect(),
            Kind::Debug => mixed(seconds).into_iter().chain([described(seconds)]).collect(),
            Kind::Storm => mixed(seconds).into_iter().chain(compilers(2, seconds)).collect(),
            Kind::NineMillion => vec![nine_million().mapped(seconds, 0)],
            Kind::Execs => execs(seconds),
            Kind::Mappings => vec![remapper(seconds)],
            Kind::Million => million(seconds).into_iter().collect(),
            Kind::New => mixed(seconds).into_iter().chain(new_programs(seconds)).collect(),
            Kind::Spinners => {
                (0..12).map(|_| spinner(seconds)).chain(compilers(2, seconds)).collect()
            }
        };
        Self { running }
    }

    /// What was done so far, of loads that print a line for each.
    pub(crate) fn count(&self) -> usize {
        self.running.iter().map(|one| one.stdout().lines().count()).sum()
    }
}

/// Two that start a program 250 times a second each: one alone does not reach 500 on a small machine.
fn execs(seconds: u64) -> Vec<Running> {
    let Some([program, _]) = workload::relays() else { return Vec::new() };
    let swarm = Swarm {
        processes: u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(250),
        period_us: 4000,
        parallel: 8,
        arguments: &["0", "0", "0", "0", "{}"],
        programs: &[&program],
    };
    (0..2).filter_map(|_| swarm.start()).collect()
}

fn remapper(seconds: u64) -> Running {
    const REMAP: &str = "
import mmap, sys, time
end, due = time.time() + float(sys.argv[2]), time.time()
with open(sys.argv[1], 'rb') as f:
    while time.time() < end:
        m = mmap.mmap(f.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
        m.close()
        print(flush=True)
        due += 0.001
        while time.time() < due: pass
";
    let mut python = Command::new("python3");
    python.args(["-c", REMAP, "/bin/sh", &seconds.to_string()]);
    Running::start(python)
}

/// The compiler's own library, each time with other bytes at its end.
fn million(seconds: u64) -> Option<Running> {
    const RUN: &str = "
end=$(($(date +%s) + $4)); n=0
trap 'rm -f \"$copy\"; exit' TERM
while [ $(date +%s) -lt $end ]; do
    n=$((n + 1)); copy=\"$3/rows-1m-$n.so\"
    cp \"$1\" \"$copy\"; head -c 16 /dev/urandom >> \"$copy\"
    LD_PRELOAD=\"$copy\" LD_LIBRARY_PATH=\"$(dirname \"$1\")\" \"$2\" 1500 20 > /dev/null
    rm \"$copy\"; echo $n
done";
    let root = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?.stdout;
    let folder = Path::new(String::from_utf8(root).ok()?.trim()).join("lib");
    let mut files = std::fs::read_dir(folder).ok()?.filter_map(|file| Some(file.ok()?.path()));
    let library = files.find(|path| path.to_string_lossy().contains("librustc_driver"))?;
    let brief = workload::c("brief", &[])?;
    let mut shell = Command::new("sh");
    shell.args(["-c", RUN, "sh"]).arg(library).arg(brief).arg(binary::scratch("bench"));
    shell.arg(seconds.to_string());
    Some(Running::start(shell))
}

/// A program and the libraries of most C++ programs, each time with other bytes at their ends.
fn new_programs(seconds: u64) -> Option<Running> {
    const RUN: &str = "
end=$(($(date +%s) + $1)); n=0; folder=$2; program=$3; shift 3
new() { cp \"$1\" \"$2\"; head -c 16 /dev/urandom >> \"$2\"; }
while [ $(date +%s) -lt $end ]; do
    n=$((n + 1)); preload=; new \"$program\" \"$folder/new-$n\"
    for library; do
        copy=\"$folder/new-$n-${library##*/}\"; new \"$library\" \"$copy\"; preload=\"$preload $copy\"
    done
    LD_PRELOAD=\"$preload\" \"$folder/new-$n\" 200 20 > /dev/null
    rm \"$folder/new-$n\"*; echo $n
done";
    let brief = workload::c("brief", &[])?;
    let mut shell = Command::new("sh");
    shell.args(["-c", RUN, "sh", &seconds.to_string()]).arg(binary::scratch("bench")).arg(brief);
    let folders = ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu"].map(Path::new);
    for library in ["libstdc++.so.6", "libcrypto.so.3", "libm.so.6", "libgcc_s.so.1"] {
        let path = folders.map(|folder| folder.join(library));
        shell.args(path.iter().find(|path| path.exists()));
    }
    Some(Running::start(shell))
}

/// One busy process of each language.
fn mixed(seconds: u64) -> Vec<Running> {
    let c = Language::C.split().map(|program| workload::start_split(&program, seconds, seed()));
    let python = script("python3", &["-c", PYTHON], seconds);
    let node = script("node", &["-e", NODE], seconds);
    let java = java(seconds);
    [c, python, node, java].into_iter().flatten().collect()
}

/// Processes of 20 ms, one after the other.
fn brief(seconds: u64) -> Option<Running> {
    let brief = workload::c("brief", &[])?;
    let mut shell = shell("while :; do \"$0\" 20 30; sleep 0.2; done", seconds);
    shell.arg(brief);
    Some(Running::start(shell))
}

/// A script without an end, and what it started, for so long: also when nobody is left to end it.
fn shell(script: &str, seconds: u64) -> Command {
    let mut shell = Command::new("timeout");
    shell.arg(seconds.to_string()).args(["sh", "-c", script]);
    shell
}

/// This program itself, busy.
fn described(seconds: u64) -> Running {
    let mut this = Command::new(std::env::current_exe().expect("it runs"));
    this.arg("busy").arg(seconds.to_string());
    Running::start(this)
}

/// What [`described`] runs: code of many inlined functions.
pub(crate) fn be_busy(seconds: u64) {
    let end = std::time::Instant::now() + Duration::from_secs(seconds);
    let text = serde_json::json!({"figures": (0..1000).collect::<Vec<_>>()}).to_string();
    while std::time::Instant::now() < end {
        let value: serde_json::Value = serde_json::from_str(&text).expect("it was written so");
        std::hint::black_box(value.to_string());
    }
}

const PYTHON: &str = "
import sys, time
def inner(n): return sum(i * i for i in range(n))
def outer(): return inner(1000) + inner(500)
end = time.time() + float(sys.argv[1])
while time.time() < end: outer()
";

const NODE: &str = "
const end = Date.now() + 1000 * Number(process.argv[1]);
function inner(n) { let s = 0; for (let i = 0; i < n; i++) s += Math.sqrt(i); return s; }
function outer() { return inner(10000) + inner(5000); }
while (Date.now() < end) outer();
";

const JAVA: &str = "
public class Busy {
    static double inner(int n) { double s = 0; for (int i = 0; i < n; i++) s += Math.sqrt(i); return s; }
    static double outer() { return inner(10000) + inner(5000); }
    public static void main(String[] a) {
        long end = System.nanoTime() + 1000000000L * Long.parseLong(a[0]);
        double s = 0;
        while (System.nanoTime() < end) s += outer();
        System.out.println(s);
    }
}
";

/// A program in PATH; a load without it is said to be one.
#[expect(clippy::print_stderr, reason = "figures go to standard output")]
fn tool(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    if found.is_none() {
        eprintln!("the load runs without {name}: not in PATH");
    }
    found
}

fn script(program: &str, arguments: &[&str], seconds: u64) -> Option<Running> {
    let program = tool(program)?;
    let mut command = Command::new(program);
    command.args(arguments).arg(seconds.to_string());
    Some(Running::start(command))
}

fn java(seconds: u64) -> Option<Running> {
    let java = tool("java")?;
    let source = binary::scratch("bench").join("Busy.java");
    std::fs::write(&source, JAVA).expect("write into the scratch folder");
    let mut command = Command::new(java);
    command.args(["-XX:+PreserveFramePointer", "-Xmx256m"]).arg(source).arg(seconds.to_string());
    Some(Running::start(command))
}

fn spinner(seconds: u64) -> Running {
    Running::start(shell("while :; do :; done", seconds))
}

/// Compilers that run one after the other, so many at once.
fn compilers(at_once: usize, seconds: u64) -> Vec<Running> {
    let Some(compiler) = tool("g++") else { return Vec::new() };
    let source = binary::repository().join("tests/workloads/split.cpp");
    let compile = |_| {
        let mut shell = shell("while :; do \"$0\" -O2 -c -o /dev/null \"$1\"; done", seconds);
        shell.arg(&compiler).arg(&source);
        Running::start(shell)
    };
    (0..at_once).map(compile).collect()
}

/// Larger than any library that was met (1.24 million rows), as large as the agent promises to take.
fn nine_million() -> RowsFile {
    RowsFile::written(binary::scratch("bench").join("rows-9m.so"), 900_000)
}
