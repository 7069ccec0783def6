//! What this host allows: each check tries the thing itself where it can, and says what is missing,
//! what that costs and how to grant it. It changes nothing on the host.

use crate::bpf::{self, Sampler};
use crate::kernel::{KernelFacts, SHADOW_STACKS, allows_libc_probes};
use crate::symbolize::kernel::KernelSymbols;
use perf_event_open_sys as perf;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing is missing.
    Good,
    /// Something is missing that costs a feature.
    Costs,
    /// CPU sampling is impossible.
    Fatal,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at.
    pub what: &'static str,
    /// How it ended.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What is lost; empty if nothing.
    pub costs: String,
    /// How to grant it; empty if nothing is to be done.
    pub grant: String,
}

/// All checks of one host.
#[derive(Clone, Debug)]
pub struct Examination {
    /// In the order in which a person would look.
    pub checks: Vec<Check>,
}

/// The capabilities that the agent uses (capabilities(7)): number, name, what goes without it.
const CAPABILITIES: [(u32, &str, &str, State); 6] = [
    (39, "BPF", "CPU sampling", State::Fatal),
    (CAP_PERFMON, "PERFMON", "CPU sampling", State::Fatal),
    (19, "SYS_PTRACE", "names and complete stacks of other users' programs", State::Costs),
    (2, "DAC_READ_SEARCH", "names of programs in private folders", State::Costs),
    (34, "SYSLOG", "names of kernel functions", State::Costs),
    (40, "CHECKPOINT_RESTORE", "names of programs whose file was deleted", State::Costs),
];
/// Stands for BPF and PERFMON, which it was before Linux 5.8.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;

impl Examination {
    /// Looks at this host.
    #[must_use]
    pub fn of_this_host(allow_kernel: bool) -> Self {
        let mut checks = capabilities(effective_capabilities());
        checks.push(kernel(allow_kernel));
        checks.push(btf(Path::new("/sys/kernel/btf/vmlinux")));
        let level = read("/proc/sys/kernel/perf_event_paranoid");
        checks.push(paranoid(&level, effective_capabilities().unwrap_or(0)));
        checks.push(kallsyms(&read("/proc/sys/kernel/kptr_restrict")));
        checks.push(lockdown(&read("/sys/kernel/security/lockdown")));
        let seccomp = seccomp(&read("/proc/self/status"));
        let filtered = seccomp.state != State::Good;
        checks.push(seccomp);
        checks.push(perf_clock(filtered));
        checks.extend(programs(filtered));
        Self { checks }
    }

    /// True unless a check says that CPU sampling is impossible.
    #[must_use]
    pub fn can_sample(&self) -> bool {
        self.checks.iter().all(|check| check.state != State::Fatal)
    }
}

/// The effective capabilities of this process as a bit set, from `/proc/self/status`.
#[must_use]
pub fn effective_capabilities() -> Option<u64> {
    u64::from_str_radix(status_field(&read("/proc/self/status"), "CapEff")?, 16).ok()
}

fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim())
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn good(what: &'static str, found: String) -> Check {
    Check { what, state: State::Good, found, costs: String::new(), grant: String::new() }
}

fn capabilities(effective: Option<u64>) -> Vec<Check> {
    let Some(effective) = effective else {
        return vec![Check {
            what: "capabilities",
            state: State::Costs,
            found: "/proc/self/status cannot be read".to_owned(),
            costs: "unknown".to_owned(),
            grant: "mount /proc".to_owned(),
        }];
    };
    let has = |number: u32| effective >> number & 1 == 1;
    let admin =
        |name| has(CAP_SYS_ADMIN) && matches!(name, "BPF" | "PERFMON" | "CHECKPOINT_RESTORE");
    let missing: Vec<_> = CAPABILITIES
        .into_iter()
        .filter(|&(number, name, ..)| !has(number) && !admin(name))
        .map(|(_, name, costs, state)| Check {
            what: "capability",
            state,
            found: format!("CAP_{name} is missing"),
            costs: costs.to_owned(),
            grant: "run as root, or add the capability to the container or the systemd unit"
                .to_owned(),
        })
        .collect();
    if missing.is_empty() {
        return vec![good("capabilities", "all six that are used".to_owned())];
    }
    missing
}

fn kernel(allow_kernel: bool) -> Check {
    let what = "kernel";
    let facts = KernelFacts::read(Path::new("/proc"));
    match facts.check(allow_kernel) {
        Ok(version) => good(what, format!("Linux {version} on {}", facts.machine)),
        Err(refusal) => Check {
            what,
            state: State::Fatal,
            found: refusal.to_string(),
            costs: "CPU sampling".to_owned(),
            grant: String::new(), // the refusal says it
        },
    }
}

fn btf(path: &Path) -> Check {
    let what = "BTF";
    match std::fs::metadata(path) {
        Ok(file) => good(what, format!("{} bytes of type information", file.len())),
        Err(error) => Check {
            what,
            state: State::Fatal,
            found: format!("{}: {error}", path.display()),
            costs: "CPU sampling".to_owned(),
            grant: "a kernel built with CONFIG_DEBUG_INFO_BTF=y, and /sys mounted".to_owned(),
        },
    }
}

fn paranoid(value: &str, effective: u64) -> Check {
    let what = "kernel.perf_event_paranoid";
    let has = |number: u32| effective >> number & 1 == 1;
    let Ok(level) = value.parse::<i32>() else {
        return good(what, "cannot be read; whether the clock opens is tried below".to_owned());
    };
    // Debian's patch: at 3 perf_event_open asks for SYS_ADMIN, PERFMON is not enough.
    let (binds, costs) = match level {
        3.. => (
            !has(CAP_SYS_ADMIN),
            "CPU sampling on kernels with Debian's patch, unless root opens it",
        ),
        1..3 => (!has(CAP_SYS_ADMIN) && !has(CAP_PERFMON), "CPU sampling without CAP_PERFMON"),
        _ => (false, ""),
    };
    if !binds {
        return good(what, format!("{level}, which does not bind this process"));
    }
    Check {
        what,
        state: State::Costs,
        found: format!("{level}"),
        costs: costs.to_owned(),
        grant: "run as root; at 3 without CAP_SYS_ADMIN: sysctl kernel.perf_event_paranoid=2"
            .to_owned(),
    }
}

fn kallsyms(restrict: &str) -> Check {
    let what = "kernel symbols";
    let symbols = KernelSymbols::read(Path::new("/proc"), Arc::default());
    if !symbols.is_empty() {
        return good(what, format!("{} in kallsyms (kptr_restrict {restrict})", symbols.len()));
    }
    let grant = match restrict {
        "2" => "sysctl kernel.kptr_restrict=1",
        _ => "CAP_SYSLOG, and a kernel with CONFIG_KALLSYMS=y",
    };
    Check {
        what,
        state: State::Costs,
        found: format!("kallsyms shows no addresses (kptr_restrict {restrict})"),
        costs: "names of kernel functions".to_owned(),
        grant: grant.to_owned(),
    }
}

fn lockdown(text: &str) -> Check {
    let what = "lockdown";
    let mode =
        text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(mode, _)| mode);
    match mode {
        Some("confidentiality") => Check {
            what,
            state: State::Costs,
            found: "confidentiality".to_owned(),
            costs: "programs that read kernel memory (the CPU sampler reads none)".to_owned(),
            grant: "boot with lockdown=integrity".to_owned(),
        },
        Some(mode) => good(what, mode.to_owned()),
        None => good(what, "not compiled in, or securityfs is not mounted".to_owned()),
    }
}

fn seccomp(status: &str) -> Check {
    let what = "seccomp";
    match status_field(status, "Seccomp") {
        Some("0") | None => good(what, "no filter".to_owned()),
        Some(_) => Check {
            what,
            state: State::Costs,
            found: "a filter is on this process".to_owned(),
            costs: "CPU sampling, if the filter refuses bpf or perf_event_open (tried below)"
                .to_owned(),
            grant: "seccompProfile: Unconfined, or a profile that allows both calls".to_owned(),
        },
    }
}

/// Opens the clock that samples, on CPU 0, disabled, and closes it.
fn perf_clock(filtered: bool) -> Check {
    let what = "perf clock";
    let mut attributes = perf::bindings::perf_event_attr {
        type_: perf::bindings::PERF_TYPE_SOFTWARE,
        config: u64::from(perf::bindings::PERF_COUNT_SW_CPU_CLOCK),
        size: u32::try_from(size_of::<perf::bindings::perf_event_attr>()).unwrap_or(0),
        ..Default::default()
    };
    attributes.__bindgen_anon_1.sample_period = 1_000_000_000;
    attributes.set_disabled(1);
    let close_on_exec = u64::from(perf::bindings::PERF_FLAG_FD_CLOEXEC);
    // SAFETY: `attributes` is a valid perf_event_attr of the size that it states and outlives the call,
    // which only reads it.
    let descriptor =
        unsafe { perf::perf_event_open(&raw mut attributes, -1, 0, -1, close_on_exec) };
    if descriptor >= 0 {
        // SAFETY: the kernel just made this descriptor, and nothing else owns it.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        return good(what, "cpu-clock opens on every process of CPU 0".to_owned());
    }
    let error = std::io::Error::last_os_error();
    Check {
        what,
        state: State::Fatal,
        found: format!("perf_event_open: {error}"),
        costs: "CPU sampling".to_owned(),
        grant: refused("CAP_PERFMON (CAP_SYS_ADMIN where perf_event_paranoid is 3)", filtered),
    }
}

/// Loads and attaches everything that sampling needs, and lets it go again without starting it.
fn programs(filtered: bool) -> Vec<Check> {
    let what = "BPF programs";
    let allowed = allows_libc_probes(Path::new("/proc"));
    let options =
        bpf::Options { off_cpu: true, go_locks: true, libc_locks: allowed, ..Default::default() };
    match Sampler::load(&options) {
        Ok((sampler, _tables)) => {
            let mebibytes = sampler.map_bytes() >> 20;
            let form = match sampler.form() {
                bpf::Form::BpfLoop => "bpf-loop",
                bpf::Form::TailCalls => "tail-calls",
            };
            let found = format!("load and attach as {form}, with {mebibytes} MiB of maps");
            let refused = sampler.waits_refused();
            let probes = refused.is_none().then(|| lock_probes(&sampler, allowed, filtered));
            let checks = [good(what, found), waits(refused, filtered)].into_iter();
            checks.chain(probes.into_iter().flatten()).collect()
        }
        Err(error) => vec![Check {
            what,
            state: State::Fatal,
            found: error.to_string(),
            costs: "CPU sampling".to_owned(),
            grant: refused("CAP_BPF and CAP_PERFMON", filtered),
        }],
    }
}

/// The programs of locks, which were loaded with the others.
fn lock_probes(sampler: &Sampler, allowed: bool, filtered: bool) -> [Check; 2] {
    let cost_ns = |cost: Option<_>| cost.and_then(Result::ok).map(|cost: bpf::ProbeCost| cost.ns);
    let go = cost_ns(sampler.lock_probes().map(|probes| probes.cost_ns()));
    let libc = sampler.libc_probes();
    let linked = libc.as_ref().is_some_and(bpf::LibcProbes::are_linked);
    let libc = cost_ns(libc.map(|probes| probes.cost_ns())).map(|ns| (ns, linked));
    [go_probes(go, sampler.form(), filtered), libc_probes(libc, allowed, filtered)]
}

/// What lets the kernel probe code of programs.
const PROBES_GRANT: &str = "a kernel with CONFIG_UPROBE_EVENTS=y, CAP_BPF and CAP_PERFMON";

fn go_probes(cost_ns: Option<u64>, form: bpf::Form, filtered: bool) -> Check {
    let what = "probes of Go's locks";
    if let Some(ns) = cost_ns {
        return good(what, format!("{ns} ns a hit, only where a goroutine waits for a lock"));
    }
    let (found, grant) = match form {
        bpf::Form::BpfLoop => ("the kernel refuses them", refused(PROBES_GRANT, filtered)),
        bpf::Form::TailCalls => (
            "the kernel has no bpf_loop, which their programs walk stacks with",
            "Linux 5.17 or newer".to_owned(),
        ),
    };
    let costs = "waits for locks of Go".to_owned();
    Check { what, state: State::Costs, found: found.to_owned(), costs, grant }
}

/// `probes`: what a hit costs, and whether one link has all places of a file.
fn libc_probes(probes: Option<(u64, bool)>, allowed: bool, filtered: bool) -> Check {
    let what = "probes of C libraries' locks";
    if let Some((ns, linked)) = probes {
        let how = if linked {
            "one link has all places of a file"
        } else {
            "each place is attached by itself, so only --lock-probes waiting asks for them"
        };
        return good(what, format!("{ns} ns a hit, only where a thread waits for a lock; {how}"));
    }
    let (found, grant) = if allowed {
        ("the kernel refuses them", refused(PROBES_GRANT, filtered))
    } else {
        (SHADOW_STACKS, "boot with nousershstk, if no program is to have a shadow stack".to_owned())
    };
    let costs = "waits for locks of C libraries that no name tells".to_owned();
    Check { what, state: State::Costs, found: found.to_owned(), costs, grant }
}

/// The programs at the switches of CPUs, which were loaded with the others.
fn waits(error: Option<&bpf::BpfError>, filtered: bool) -> Check {
    let what = "off-CPU programs";
    match error {
        None => good(what, "load and attach to sched_switch".to_owned()),
        Some(error) => Check {
            what,
            state: State::Costs,
            found: error.to_string(),
            costs: "off-CPU time and waits for locks".to_owned(),
            grant: refused(
                "a kernel with CONFIG_DEBUG_INFO_BTF=y, CAP_BPF and CAP_PERFMON",
                filtered,
            ),
        },
    }
}

fn refused(grant: &str, filtered: bool) -> String {
    let also = if filtered { "; or the seccomp filter above refuses the call" } else { "" };
    format!("{grant}{also}")
}
