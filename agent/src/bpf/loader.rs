//! Loads the programs: chooses the form that this kernel takes, sets the switches, and attaches what is
//! not a clock. It reads no record.

use super::error::source_errno;
use super::{BpfError, Form, FormChoice, Options, WaitStacks, object, waits};
use agent_ebpf::UserRegisters;
use agent_ebpf::limits::{
    FILTER_PROCESSES_MAX, GOROUTINES_MAX, MARKS_MAX, RING_BYTES_MIN, STACK_INTERVAL_NS_MAX,
    STACK_INTERVAL_NS_MIN, THINNED_PROCESSES_MAX, WAIT_STACK_INTERVAL_NS_FEW,
    WAIT_STACK_INTERVAL_NS_MANY,
};
use agent_ebpf::verifier::limit32;
use aya::maps::{Map, MapData, ProgramArray};
use aya::programs::{PerfEvent, ProgramError, ProgramFd, RawTracePoint};
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use rustix::process::{Resource, Rlimit};

/// A loaded object: maps made, programs accepted by the verifier, nothing attached to a clock yet.
pub(super) struct Loaded {
    pub(super) ebpf: Ebpf,
    pub(super) form: Form,
    pub(super) registers: UserRegisters,
    /// True if the programs sample only who is in the filter.
    pub(super) filtered: bool,
    /// True if the programs can tell a forked process and one that is gone.
    pub(super) knows_tasks: bool,
    /// Why the waits of threads are not to be had, if they were asked for.
    pub(super) waits: Result<bool, BpfError>,
}

/// Loads the first form that the kernel takes.
pub(super) fn load(options: &Options, ring_bytes: u32) -> Result<Loaded, BpfError> {
    let object = object::OBJECT.ok_or(BpfError::NotBuilt)?;
    raise_memlock();
    let tasks = TaskOffsets::of_this_kernel();
    if tasks.is_none() {
        tracing::warn!(
            "the kernel says nothing of its types: forked processes are not known at once, and whom nobody asked for is sampled, then dropped"
        );
    }
    let filtered = tasks.is_some() && options.pid_filter.is_some();
    let mut attempts = Vec::new();
    let mut errno = None;
    for &(form, registers) in &VARIANTS {
        let form_wanted = match options.form {
            FormChoice::Auto => true,
            FormChoice::BpfLoop => form == Form::BpfLoop,
            FormChoice::TailCalls => form == Form::TailCalls,
        };
        if !form_wanted || options.user_registers.is_some_and(|wanted| wanted != registers) {
            continue;
        }
        let switches = Switches { registers, ring_bytes, filtered, tasks };
        let mut ebpf = load_object(object, options, &switches)?;
        match load_form(&mut ebpf, form) {
            Ok(()) => {
                let knows_tasks = tasks.is_some();
                let waits = match (options.off_cpu, tasks) {
                    (false, _) => Ok(false),
                    (true, None) => Err(BpfError::NoTaskTypes),
                    (true, Some(_)) => attach_waits(&mut ebpf, form).map(|()| true),
                };
                return Ok(Loaded { ebpf, form, registers, filtered, knows_tasks, waits });
            }
            Err(error) => {
                errno = source_errno(&error);
                attempts.push((form, in_short(&error)));
                if errno == Some(libc::EPERM) {
                    break; // a right is missing, whatever the form
                }
            }
        }
    }
    Err(BpfError::Refused { errno, attempts })
}

/// What is tried, best first: kernels from 5.17, 5.15 and 5.10 take them. The last but one is for tests.
const VARIANTS: [(Form, UserRegisters); 4] = [
    (Form::BpfLoop, UserRegisters::Helper),
    (Form::TailCalls, UserRegisters::Helper),
    (Form::TailCalls, UserRegisters::KernelStack),
    (Form::BpfLoop, UserRegisters::KernelStack),
];

/// Before 5.11 the kernel counts BPF memory against this limit. Later it changes nothing, and without the
/// right to raise it the load itself says what is missing.
fn raise_memlock() {
    let unlimited = Rlimit { current: None, maximum: None };
    if let Err(errno) = rustix::process::setrlimit(Resource::Memlock, unlimited) {
        tracing::debug!(%errno, "RLIMIT_MEMLOCK stays as it is");
    }
}

/// What the programs are told beside the options.
struct Switches {
    registers: UserRegisters,
    ring_bytes: u32,
    /// Only some processes are sampled.
    filtered: bool,
    /// Where a task keeps what the programs read of it.
    tasks: Option<TaskOffsets>,
}

/// Offsets of fields of a task. Without type information forked processes cannot be told by the programs,
/// nor waits be measured.
#[derive(Clone, Copy, Debug, Default)]
struct TaskOffsets {
    pid: u32,
    tgid: u32,
    flags: u32,
    /// `__state`, which was called `state` before Linux 5.14.
    state: u32,
}

impl TaskOffsets {
    fn of_this_kernel() -> Option<Self> {
        let fields = ["pid", "tgid", "flags", "__state", "state"];
        let [pid, tgid, flags, state, state_before] =
            super::btf::kernel_field_offsets("task_struct", fields);
        Some(Self { pid: pid?, tgid: tgid?, flags: flags?, state: state.or(state_before)? })
    }
}

fn load_object(object: &[u8], options: &Options, switches: &Switches) -> Result<Ebpf, BpfError> {
    let &Switches { registers, ring_bytes, filtered, tasks } = switches;
    let level = if options.verifier_log {
        VerifierLogLevel::VERBOSE | VerifierLogLevel::STATS
    } else {
        // The default level makes aya repeat a refused load with a growing log: minutes, measured.
        VerifierLogLevel::STATS
    };
    let stack_offset = match registers {
        UserRegisters::Helper => 0,
        UserRegisters::KernelStack => task_stack_offset()?,
    };
    let registers = registers as u32;
    let filter_entries = if filtered { limit32(FILTER_PROCESSES_MAX) } else { 1 };
    let filtered = u32::from(filtered);
    let tasks = tasks.unwrap_or_default();
    let wait_interval_ns = match options.wait_stacks {
        WaitStacks::Few => WAIT_STACK_INTERVAL_NS_FEW,
        WaitStacks::Many => WAIT_STACK_INTERVAL_NS_MANY,
    };
    let (threads, wait_ring_bytes) = if options.off_cpu { waits::sizes() } else { (1, 4096) };
    let kernel_threads = u32::from(options.kernel_threads);
    // Off, the verifier drops the messages as code that cannot be reached, and their ring is one page.
    let (log_level, log_bytes): (u8, u32) =
        if options.bpf_log { (5, 128 << 10) } else { (0, 4096) };
    let (goroutines, lock_ring_bytes) =
        if options.go_locks { (limit32(GOROUTINES_MAX), RING_BYTES_MIN) } else { (1, 4096) };
    let libc_probed = u32::from(options.libc_locks && options.off_cpu);
    let marks = if libc_probed == 1 { limit32(MARKS_MAX) } else { 1 };
    let thinned = if options.go_locks { limit32(THINNED_PROCESSES_MAX) } else { 1 };
    let wake_bytes = u64::from(ring_bytes / 4);
    // A stack for each tick of a usual clock.
    let period_ns = 1_000_000_000 / u64::from(options.frequency_hz.max(1));
    let stack_interval_ns = period_ns.clamp(STACK_INTERVAL_NS_MIN, STACK_INTERVAL_NS_MAX);
    EbpfLoader::new()
        .btf(None)
        .verifier_log_level(level)
        .map_max_entries("RECORDS", ring_bytes)
        .map_max_entries("AYA_LOGS", log_bytes)
        .map_max_entries("FILTER", filter_entries)
        .map_max_entries("GOROUTINES", goroutines)
        .map_max_entries("LOCK_WAITS", lock_ring_bytes)
        .map_max_entries("MARKS", marks)
        .map_max_entries("THIN", thinned)
        .override_global(aya_log::LEVEL, &log_level, true)
        .override_global("USER_REGISTERS", &registers, true)
        .override_global("TASK_STACK_OFFSET", &stack_offset, true)
        .override_global("FILTERED", &filtered, true)
        .map_max_entries("THREADS", threads)
        .map_max_entries("WAITS", wait_ring_bytes)
        .override_global("TASK_PID_OFFSET", &tasks.pid, true)
        .override_global("TASK_TGID_OFFSET", &tasks.tgid, true)
        .override_global("TASK_FLAGS_OFFSET", &tasks.flags, true)
        .override_global("TASK_STATE_OFFSET", &tasks.state, true)
        // In a PID namespace of its own this may be another process, which has fewer stacks of waits then.
        .override_global("AGENT_TGID", &std::process::id(), true)
        .override_global("WAIT_STACK_INTERVAL_NS", &wait_interval_ns, true)
        .override_global("LIBC_PROBED", &libc_probed, true)
        .override_global("KERNEL_THREADS", &kernel_threads, true)
        .override_global("WAKE_BYTES", &wake_bytes, true)
        .override_global("STACK_INTERVAL_NS", &stack_interval_ns, true)
        .load(object)
        .map_err(|source| BpfError::Object { source: Box::new(source) })
}

/// Where a task's kernel stack is noted. Without it a stack would silently end in the kernel.
fn task_stack_offset() -> Result<u32, BpfError> {
    super::btf::kernel_field_offset("task_struct", "stack").ok_or(BpfError::NoKernelTypes)
}

fn load_form(ebpf: &mut Ebpf, form: Form) -> Result<(), ProgramError> {
    match form {
        Form::BpfLoop => load_perf_event(ebpf, "sample_loop"),
        Form::TailCalls => {
            load_perf_event(ebpf, "walk_tail")?;
            load_perf_event(ebpf, "sample_tail")?;
            set_tail(ebpf)
        }
    }
}

fn load_perf_event(ebpf: &mut Ebpf, name: &str) -> Result<(), ProgramError> {
    perf_event(ebpf, name)?.load()
}

fn perf_event<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut PerfEvent, ProgramError> {
    ebpf.program_mut(name).ok_or(ProgramError::NotLoaded)?.try_into()
}

fn set_tail(ebpf: &mut Ebpf) -> Result<(), ProgramError> {
    let program: ProgramFd = perf_event(ebpf, "walk_tail")?.fd()?.try_clone()?;
    let map = ebpf.map_mut("TAIL").ok_or(ProgramError::NotLoaded)?;
    ProgramArray::try_from(map)?.set(0, &program, 0)?;
    Ok(())
}

/// The program that the clocks run.
pub(super) fn sampler(ebpf: &mut Ebpf, form: Form) -> Result<&ProgramFd, BpfError> {
    let name = match form {
        Form::BpfLoop => "sample_loop",
        Form::TailCalls => "sample_tail",
    };
    let missing = BpfError::Missing { kind: "program", name };
    perf_event(ebpf, name).and_then(|program| program.fd()).map_err(|_not_loaded| missing)
}

/// Loads and attaches the programs that keep what is known of processes: dropped at exec and at the end,
/// handed on at fork.
pub(super) fn attach_lifecycle(ebpf: &mut Ebpf, knows_tasks: bool) -> Result<(), BpfError> {
    attach(ebpf, "process_exec", "sched_process_exec")?;
    if knows_tasks {
        attach(ebpf, "process_fork", "sched_process_fork")?;
        attach(ebpf, "process_free", "sched_process_free")?;
    }
    Ok(())
}

/// Loads and attaches the programs of switches, in the form of the sampler.
fn attach_waits(ebpf: &mut Ebpf, form: Form) -> Result<(), BpfError> {
    const TRACEPOINT: &str = "sched_switch";
    if form == Form::BpfLoop {
        return attach(ebpf, "switch_loop", TRACEPOINT);
    }
    let mut load_tail = || {
        let program: &mut RawTracePoint =
            ebpf.program_mut("wait_tail").ok_or(ProgramError::NotLoaded)?.try_into()?;
        program.load()?;
        let program = program.fd()?.try_clone()?;
        let map = ebpf.map_mut("WAIT_TAIL").ok_or(ProgramError::NotLoaded)?;
        Ok(ProgramArray::try_from(map)?.set(0, &program, 0)?)
    };
    load_tail().map_err(|error: ProgramError| not_attached(TRACEPOINT, &error))?;
    attach(ebpf, "switch_tail", TRACEPOINT)
}

fn attach(ebpf: &mut Ebpf, name: &'static str, tracepoint: &'static str) -> Result<(), BpfError> {
    let program = ebpf.program_mut(name).ok_or(BpfError::Missing { kind: "program", name })?;
    let mut attach = || {
        let program: &mut RawTracePoint = program.try_into()?;
        program.load()?;
        program.attach(tracepoint)
    };
    let attached: Result<_, ProgramError> = attach();
    attached.map(|_| ()).map_err(|error| not_attached(tracepoint, &error))
}

fn not_attached(what: &'static str, error: &ProgramError) -> BpfError {
    BpfError::Attach { what, detail: in_short(error), errno: source_errno(error) }
}

/// Takes a map out of the object, as the type that its user wants.
pub(super) fn take_map<T>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, BpfError>
where
    T: TryFrom<Map, Error = aya::maps::MapError>,
{
    let map = ebpf.take_map(name).ok_or(BpfError::Missing { kind: "map", name })?;
    T::try_from(map).map_err(BpfError::map(name))
}

/// Kernel memory of all maps of the object, bytes.
pub(super) fn map_bytes(ebpf: &Ebpf) -> Result<u64, BpfError> {
    ebpf.maps().try_fold(0u64, |sum, (_, map)| Ok(sum + super::raw::map_bytes(map_fd(map))?))
}

pub(super) fn map_fd(map: &Map) -> std::os::fd::BorrowedFd<'_> {
    use std::os::fd::AsFd as _;
    let data: &MapData = match map {
        Map::Array(data)
        | Map::ArrayOfMaps(data)
        | Map::BloomFilter(data)
        | Map::CgroupArray(data)
        | Map::CgroupStorage(data)
        | Map::CgrpStorage(data)
        | Map::CpuMap(data)
        | Map::DevMap(data)
        | Map::DevMapHash(data)
        | Map::HashMap(data)
        | Map::HashOfMaps(data)
        | Map::InodeStorage(data)
        | Map::LpmTrie(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::PerCpuCgroupStorage(data)
        | Map::PerCpuHashMap(data)
        | Map::PerCpuLruHashMap(data)
        | Map::PerfEventArray(data)
        | Map::ProgramArray(data)
        | Map::Queue(data)
        | Map::ReusePortSockArray(data)
        | Map::RingBuf(data)
        | Map::SockHash(data)
        | Map::SockMap(data)
        | Map::SkStorage(data)
        | Map::Stack(data)
        | Map::StackTraceMap(data)
        | Map::Unsupported(data)
        | Map::XskMap(data) => data,
    };
    data.fd().as_fd()
}

/// The error in one line. A verifier log has thousands, and its last ones say why.
pub(super) fn in_short(error: &ProgramError) -> String {
    const LINES: usize = 3;
    match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            let mut last: Vec<&str> =
                log.lines().rev().filter(|line| !line.trim().is_empty()).take(LINES).collect();
            last.reverse();
            format!("{io_error}: {}", last.join(" / "))
        }
        other => format!("{:#}", anyhow::Error::msg(other.to_string())),
    }
}
