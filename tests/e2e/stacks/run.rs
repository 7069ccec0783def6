//! Runs a batch of cases at the same time under one agent.

use super::build::build;
use super::case::{Case, Opinion};
use super::judge::{FREQUENCY_HZ, judge};
use super::opinion::ask;
use super::table;
use std::path::PathBuf;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::chain::Chain;
use tests::observation::observations;
use tests::{Agent, Running, Sink, need};

/// Longest run of a batch: each of its programs wants a second of two CPUs that are not ours alone.
const RUN_LIMIT: Duration = Duration::from_secs(120);

/// Builds, runs and judges the cases. One repeat is allowed to those that fail: the machine is not ours alone.
pub(super) fn check(cases: &[Case]) {
    check_with(cases, &[]);
}

/// The same with more arguments for the agent.
pub(super) fn check_with(cases: &[Case], arguments: &[&str]) {
    if !need::bpf() {
        return;
    }
    let built: Vec<(Case, PathBuf)> =
        cases.iter().filter_map(|case| Some((*case, build(case)?))).collect();
    let failed = run(&built, arguments);
    if failed.is_empty() {
        return;
    }
    let reasons: Vec<&str> = failed.iter().map(|(_, reason)| reason.as_str()).collect();
    need::figure(&format!("first try: {}", reasons.join("\n")));
    let again = |case: &Case| failed.iter().any(|(name, _)| *name == case.name);
    let again: Vec<(Case, PathBuf)> =
        built.iter().filter(|(case, _)| again(case)).cloned().collect();
    let failed = run(&again, arguments);
    let reasons: Vec<&str> = failed.iter().map(|(_, reason)| reason.as_str()).collect();
    assert!(failed.is_empty(), "both tries failed:\n{}", reasons.join("\n"));
}

/// Runs them once; answers who failed and why.
fn run(cases: &[(Case, PathBuf)], arguments: &[&str]) -> Vec<(&'static str, String)> {
    let sink = Sink::start();
    let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
    let options = AgentOptions { arguments, ..AgentOptions::at(FREQUENCY_HZ) };
    let agent = Agent::start(&sink.url(), &options);
    let mut running: Vec<(Case, Running)> = Vec::new();
    for (case, program) in cases {
        match (case.start)(program) {
            Ok(command) => running.push((*case, Running::start(command))),
            Err(reason) => need::skip(&format!("{}: {reason}", case.name)),
        }
    }
    // Each spins for a second that does not count.
    std::thread::sleep(Duration::from_millis(1200));
    let pids: Vec<(u32, Opinion)> = running
        .iter()
        .map(|(case, process)| {
            let own = if case.has_children { None } else { pid_of(case) };
            (own.unwrap_or(process.pid()), case.opinion)
        })
        .collect();
    let depths = ask(&pids);
    let chains: Vec<(Case, Chain)> = running
        .into_iter()
        .map(|(case, process)| (case, Chain::parse(&process.finish(RUN_LIMIT))))
        .collect();
    agent.stop();
    let samples = observations(&sink.requests());
    let mut failed = Vec::new();
    for ((case, chain), (pid, _)) in chains.iter().zip(pids) {
        let (row, wrong) = judge(case, chain, &samples, (pid, depths.get(&pid)));
        need::figure(&row.text());
        table::write(&row);
        failed.extend(wrong.into_iter().map(|reason| (case.name, reason)));
    }
    table::assemble();
    failed
}

/// The process that runs the case's executable: the one that was started may only have led to it.
fn pid_of(case: &Case) -> Option<u32> {
    let wanted = case.executable();
    let entries = std::fs::read_dir("/proc").ok()?;
    let mut pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.find(|pid: &u32| {
        let executable = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let name = executable.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.trim_end_matches(" (deleted)").trim_start_matches("memfd:") == wanted
    })
}
