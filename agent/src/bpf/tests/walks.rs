//! Walks of stacks that are known, on the kernel of this machine, as root.

use super::programs::{DEEP, SIGNAL, SYSTEM_CALLS};
use super::run::{BOTH_FORMS, GENERATION, PLAIN, cannot_run, options, outcomes, samples_of};
use super::target::Target;
use crate::bpf::{Form, FormChoice, Options, RawSample};
use agent_ebpf::{Outcome, UserRegisters};

#[test]
fn c_without_frame_pointers_unwinds_to_its_start_in_both_forms() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(DEEP, &PLAIN);
    for form in BOTH_FORMS {
        let options = options(form, target.pid());
        let (samples, statistics, sampler) = samples_of(&target, &options);
        let expected = if form == FormChoice::BpfLoop { Form::BpfLoop } else { Form::TailCalls };
        assert_eq!(sampler.form(), expected);
        assert_eq!(outcomes(&samples).into_keys().collect::<Vec<_>>(), [Outcome::Complete]);
        assert!(samples.iter().all(|sample| sample.generation == GENERATION));
        assert!(samples.iter().all(|sample| sample.user[0].exact && !sample.user[1].exact));
        // main, its two callers in the C library and _start, below 0 to 20 times `deep`.
        let deepest = samples.iter().map(|sample| sample.user.len()).max();
        assert!(deepest >= Some(28), "{deepest:?}");
        let total = statistics.total().counters;
        let frames: usize = samples.iter().map(|sample| sample.user.len()).sum();
        eprintln!(
            "{form:?}: {} samples, {} frames each, {} ns BPF time a sample",
            samples.len(),
            frames / samples.len(),
            total.run_ns / total.shipped
        );
        let verified = verified_instructions();
        eprintln!("verified instructions: {verified:?}");
        // A fifth of what the kernel allows: kernels differ, and each takes time in proportion.
        assert!(verified.values().all(|count| *count < 200_000), "{verified:?}");
    }
}

#[test]
fn user_stacks_below_system_calls_are_whole_by_helper_and_by_kernel_stack() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(SYSTEM_CALLS, &PLAIN);
    for registers in [UserRegisters::Helper, UserRegisters::KernelStack] {
        for form in BOTH_FORMS {
            let options =
                Options { user_registers: Some(registers), ..options(form, target.pid()) };
            let (samples, _, _) = samples_of(&target, &options);
            let in_kernel = samples.iter().filter(|sample| !sample.kernel.is_empty()).count();
            assert!(in_kernel * 2 > samples.len(), "{in_kernel} of {}", samples.len());
            assert_eq!(outcomes(&samples).into_keys().collect::<Vec<_>>(), [Outcome::Complete]);
            let kernel = samples.iter().flat_map(|sample| &sample.kernel);
            assert!(kernel.into_iter().all(|frame| frame.0 >> 63 == 1), "kernel addresses");
        }
    }
}

#[test]
fn a_signal_handler_on_its_own_stack_unwinds_to_what_it_interrupted() {
    if cannot_run() {
        return;
    }
    let target = Target::compile_and_run(SIGNAL, &PLAIN);
    for form in BOTH_FORMS {
        let (samples, _, _) = samples_of(&target, &options(form, target.pid()));
        let whole = outcomes(&samples).remove(&Outcome::Complete).unwrap_or(0);
        // A sample between the kernel's setup of the handler and its first instruction may be cut.
        assert!(whole * 1000 >= samples.len() * 995, "{:?}", outcomes(&samples));
        // The handler's leaf, and the instruction in `victim` that the signal interrupted.
        let exact =
            |sample: &&RawSample| sample.user.iter().filter(|frame| frame.exact).count() == 2;
        let in_handler = samples.iter().filter(exact).count();
        assert!(in_handler > 5, "{in_handler} of {}", samples.len());
    }
}

#[test]
fn code_without_unwind_information_is_walked_by_frame_pointers() {
    if cannot_run() {
        return;
    }
    let flags =
        ["-O1", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let target = Target::compile_and_run(DEEP, &flags);
    for form in BOTH_FORMS {
        let (samples, _, _) = samples_of(&target, &options(form, target.pid()));
        let whole = outcomes(&samples).remove(&Outcome::Complete).unwrap_or(0);
        assert!(whole * 1000 >= samples.len() * 995, "{:?}", outcomes(&samples));
        assert!(samples.iter().map(|sample| sample.user.len()).max() >= Some(24));
    }
}

/// What the verifier looked at, by program; empty where the kernel does not say (before 5.16).
fn verified_instructions() -> std::collections::BTreeMap<String, u32> {
    let all = aya::programs::loaded_programs().filter_map(Result::ok);
    all.filter_map(|one| Some((one.name_as_str()?.to_owned(), one.verified_instruction_count()?)))
        .filter(|(name, _)| name.starts_with("sample_") || name.starts_with("walk_"))
        .collect()
}
