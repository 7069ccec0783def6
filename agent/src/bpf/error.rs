//! What can go wrong at the border, each with its cause and its cure.

use super::Form;
use aya::maps::MapError;
use std::io;

/// A failure to load, attach, or write a table.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The binary carries no programs.
    #[error(
        "this binary was built without its BPF programs (VESTA_BPF_OBJECT=none): build it again \
         without that variable"
    )]
    NotBuilt,
    /// The frequency is out of range.
    #[error("{hz} Hz is not a sampling frequency: choose 1 to {max}")]
    Frequency {
        /// What was asked for.
        hz: u32,
        /// The highest.
        max: u32,
    },
    /// The ring buffer's size is not what the kernel takes.
    #[error("{bytes} bytes is no size for the ring buffer: choose a power of two, 4096 or more")]
    RingBytes {
        /// What was asked for.
        bytes: u32,
    },
    /// The kernel refused the maps.
    #[error("the kernel refused the BPF maps: {}{}", chain(.source), advice(source_errno(.source)))]
    Object {
        /// What aya says.
        #[source]
        source: Box<aya::EbpfError>,
    },
    /// The kernel refused every form of the sampler.
    #[error("the kernel refused the sampler{}: {}", advice(*.errno), list(.attempts))]
    Refused {
        /// The last refusal's error number.
        errno: Option<i32>,
        /// Each form with the kernel's words.
        attempts: Vec<(Form, String)>,
    },
    /// The kernel has neither the helper for user registers nor type information to find them.
    #[error(
        "this kernel has no bpf_task_pt_regs (5.15) and no /sys/kernel/btf/vmlinux \
         (CONFIG_DEBUG_INFO_BTF), so that user stacks below system calls cannot be found"
    )]
    NoKernelTypes,
    /// The kernel does not say where a task keeps its number, its flags and its state.
    #[error(
        "the waits of threads cannot be measured: this kernel has no /sys/kernel/btf/vmlinux \
         (CONFIG_DEBUG_INFO_BTF)"
    )]
    NoTaskTypes,
    /// The object does not hold what this code expects: both are of one build, so this is a defect.
    #[error("the BPF object has no {kind} {name}")]
    Missing {
        /// Map or program.
        kind: &'static str,
        /// Its name.
        name: &'static str,
    },
    /// A program could not be attached.
    #[error("{what} could not be attached: {detail}{}", advice(*.errno))]
    Attach {
        /// Which.
        what: &'static str,
        /// Why.
        detail: String,
        /// The error number, if there is one.
        errno: Option<i32>,
    },
    /// A perf event could not be opened.
    #[error("perf_event_open for {what} on CPU {cpu}: {source}{}", perf_advice(.source))]
    Perf {
        /// For what.
        what: &'static str,
        /// On which CPU.
        cpu: u32,
        /// Why.
        source: io::Error,
    },
    /// A system call of this module failed.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A map could not be read or written.
    #[error("BPF map {map}: {}", chain(.source))]
    Map {
        /// Which.
        map: &'static str,
        /// Why.
        #[source]
        source: MapError,
    },
    /// A table, a process or a rule did not fit. Nothing was changed.
    #[error("{what}: all {limit} are in use")]
    Full {
        /// Of what there is no more.
        what: &'static str,
        /// How many there are.
        limit: usize,
    },
    /// The table is not well formed. Nothing was changed.
    #[error("malformed unwind table: {reason}")]
    Table {
        /// Why.
        reason: &'static str,
    },
    /// The table is not known.
    #[error("table {0:?} does not exist")]
    NoTable(super::TableId),
}

impl BpfError {
    pub(super) fn map(map: &'static str) -> impl Fn(MapError) -> Self {
        move |source| Self::Map { map, source }
    }

    pub(super) fn last(call: &'static str) -> Self {
        Self::System { call, source: io::Error::last_os_error() }
    }
}

/// The error number that lies at the bottom of an error, if there is one.
pub(super) fn source_errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut current = Some(error);
    while let Some(error) = current {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.raw_os_error();
        }
        current = error.source();
    }
    None
}

/// An error and its causes in one line: aya's own texts leave the system's out.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

fn advice(errno: Option<i32>) -> &'static str {
    match errno {
        // EACCES is not here: it is also the verifier's answer to a program that it refuses.
        Some(libc::EPERM) => {
            " (it needs root, or CAP_BPF and CAP_PERFMON; in a container also a seccomp profile \
             that allows bpf(2); a kernel locked down to `confidentiality` allows none of it)"
        }
        Some(libc::ENOSYS) => " (this kernel is built without CONFIG_BPF_SYSCALL)",
        Some(libc::ENOMEM) => " (not enough memory, or RLIMIT_MEMLOCK on a kernel before 5.11)",
        _ => "",
    }
}

fn perf_advice(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            " (it needs root or CAP_PERFMON; where kernel.perf_event_paranoid is 3 or more, as on \
             Debian and Ubuntu, CAP_SYS_ADMIN)"
        }
        Some(libc::EMFILE) => " (too many open files: raise RLIMIT_NOFILE)",
        Some(libc::ENOSYS | libc::ENOENT) => " (this kernel is built without CONFIG_PERF_EVENTS)",
        _ => "",
    }
}

fn list(attempts: &[(Form, String)]) -> String {
    attempts.iter().map(|(form, text)| format!("{form:?}: {text}")).collect::<Vec<_>>().join("; ")
}
