use super::*;

#[test]
fn missing_capabilities_are_named_with_their_cost() {
    let none = capabilities(Some(0));
    assert_eq!(none.len(), 6);
    assert!(none.iter().filter(|check| check.state == State::Fatal).count() == 2);
    let six = CAPABILITIES.iter().fold(0, |set, (number, ..)| set | 1 << number);
    assert_eq!(capabilities(Some(six)), [good("capabilities", "all six that are used".into())]);
    // SYS_ADMIN replaces BPF, PERFMON and CHECKPOINT_RESTORE, and nothing else.
    let admin = capabilities(Some(1 << CAP_SYS_ADMIN));
    let found: Vec<_> = admin.iter().map(|check| check.found.as_str()).collect();
    let missing = ["SYS_PTRACE", "DAC_READ_SEARCH", "SYSLOG"];
    assert_eq!(found, missing.map(|name| format!("CAP_{name} is missing")));
}

#[test]
fn texts_of_the_kernel_are_read() {
    assert_eq!(lockdown("none [integrity] confidentiality").found, "integrity");
    assert_eq!(lockdown("none integrity [confidentiality]").state, State::Costs);
    assert_eq!(lockdown("").state, State::Good);
    assert_eq!(seccomp("Name:\ta\nSeccomp:\t2\nSeccomp_filters:\t1\n").state, State::Costs);
    let (perfmon, admin) = (1 << CAP_PERFMON, 1 << CAP_SYS_ADMIN);
    for (level, capabilities, state) in [
        ("-1", 0, State::Good),
        ("2", 0, State::Costs),
        ("2", perfmon, State::Good),
        ("3", perfmon, State::Costs),
        ("3", admin, State::Good),
        ("", 0, State::Good),
    ] {
        assert_eq!(paranoid(level, capabilities).state, state, "{level} {capabilities:x}");
    }
    assert_eq!(seccomp("Seccomp:\t0\n").state, State::Good);
    assert_eq!(status_field("CapEff:\t00000000a80425fb", "CapEff"), Some("00000000a80425fb"));
}

/// Each says what it lacks, and nothing of the other.
#[test]
fn probes_of_go_and_of_c_libraries_are_told_apart() {
    use bpf::Form::{BpfLoop, TailCalls};
    let found = go_probes(Some(700), TailCalls, false);
    assert_eq!(found.state, State::Good);
    assert!(found.found.contains("700 ns"), "{found:?}");
    let old = go_probes(None, TailCalls, true);
    assert!(old.found.contains("bpf_loop") && old.grant.contains("5.17"), "{old:?}");
    let refused = go_probes(None, BpfLoop, true);
    assert!(refused.grant.contains("CONFIG_UPROBE_EVENTS"), "{refused:?}");
    assert!(!refused.grant.contains("5.17"), "{refused:?}");
    for (linked, how) in [(true, "one link"), (false, "--lock-probes waiting")] {
        let found = libc_probes(Some((300, linked)), true, false);
        assert_eq!(found.state, State::Good);
        assert!(found.found.contains("300 ns") && found.found.contains(how), "{found:?}");
    }
    let guarded = libc_probes(None, false, true);
    assert!(guarded.found.contains("shadow stacks"), "{guarded:?}");
    assert!(guarded.grant.contains("nousershstk"), "{guarded:?}");
    let refused = libc_probes(None, true, false);
    assert!(refused.grant.contains("CONFIG_UPROBE_EVENTS"), "{refused:?}");
    for check in [old, guarded, refused] {
        assert_eq!(check.state, State::Costs);
        assert!(check.costs.contains("Go") != check.costs.contains("C libraries"), "{check:?}");
    }
}

#[test]
fn this_host_is_examined_without_a_panic() {
    let examination = Examination::of_this_host(false);
    assert!(examination.checks.iter().all(|check| !check.found.is_empty()));
    for check in examination.checks.iter().filter(|check| check.state != State::Good) {
        assert!(!check.costs.is_empty(), "{check:?}");
    }
}
