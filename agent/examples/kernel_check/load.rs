//! Does the verifier take the programs, and what does that cost; what `doctor` says of the kernel.

use crate::FREQUENCY_HZ;
use crate::left::Loaded;
use crate::report::{Report, Verdict};
use agent::bpf::{FormChoice, Options, Sampler};
use agent::doctor::{Examination, State};
use agent::kernel::KernelVersion;
use std::time::Instant;

/// The first kernel with the helper `bpf_loop`.
const BPF_LOOP: KernelVersion = KernelVersion { major: 5, minor: 17, patch: 0 };

/// `doctor` must say that sampling works; what else is missing is told.
pub(crate) fn doctor() {
    let examination = Examination::of_this_host(false);
    let missing = examination.checks.iter().filter(|check| check.state != State::Good);
    let missing: Vec<String> =
        missing.map(|check| format!("{}: {}", check.what, check.found)).collect();
    let fields: [(&str, &dyn std::fmt::Display); 1] = [("missing", &missing.join("; "))];
    Report::OF_KERNEL.line("doctor", Verdict::of(examination.can_sample()), &fields);
}

/// Loads one form; `None` if the kernel refuses it, which is right where it has no `bpf_loop`.
pub(crate) fn check(
    report: Report,
    form: FormChoice,
    kernel: KernelVersion,
    before: &Loaded,
) -> Option<Sampler> {
    let start = Instant::now();
    let options = Options {
        frequency_hz: FREQUENCY_HZ,
        form,
        off_cpu: true,
        go_locks: true,
        libc_locks: true,
        ..Options::default()
    };
    let loaded = Sampler::load(&options);
    let ms = start.elapsed().as_millis();
    match loaded {
        Ok((sampler, tables)) => {
            let programs = before.programs_since();
            let counts = programs.iter().map(|program| program.verified_instruction_count());
            // The kernel counts them since 5.16.
            let instructions: Option<u32> = counts.sum();
            let instructions = instructions.map_or("-".to_owned(), |count| count.to_string());
            let registers = format!("{:?}", sampler.user_registers());
            let kib = (sampler.map_bytes() + tables.sizes().slab_bytes) / 1024;
            let build_ids = sampler.kernel_build_ids();
            // A hit of each probe costs what it costs; that it can be measured shows that it can be attached.
            let go_ns = sampler.lock_probes().and_then(|probes| Some(probes.cost_ns().ok()?.ns));
            let libc_ns = sampler.libc_probes().and_then(|probes| Some(probes.cost_ns().ok()?.ns));
            // The programs of Go walk with `bpf_loop` alone.
            let probed = (go_ns.is_some() || kernel < BPF_LOOP) && libc_ns.is_some();
            let linked = sampler.lock_probes().is_none_or(|probes| probes.are_linked())
                && sampler.libc_probes().is_some_and(|probes| probes.are_linked());
            let probed = probed && linked == kernel.links_probes();
            let knows_form = form != FormChoice::BpfLoop || kernel >= BPF_LOOP;
            let passed = !programs.is_empty() && probed && knows_form;
            report.line(
                "load",
                Verdict::of(passed),
                &[
                    ("ms", &ms),
                    ("programs", &programs.len()),
                    ("instructions", &instructions),
                    ("registers", &registers),
                    ("maps_kib", &kib),
                    ("build_ids", &build_ids),
                    ("go_probe_ns", &format!("{go_ns:?}")),
                    ("libc_probe_ns", &format!("{libc_ns:?}")),
                    ("probes_linked", &linked),
                ],
            );
            Some(sampler)
        }
        Err(error) => {
            let expected = form == FormChoice::BpfLoop && kernel < BPF_LOOP;
            let verdict = if expected { Verdict::Absent } else { Verdict::Failed };
            report.line("load", verdict, &[("ms", &ms), ("error", &error)]);
            None
        }
    }
}
