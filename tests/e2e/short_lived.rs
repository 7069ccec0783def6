//! Processes that are over in 32 ms. Goal: no sample is dropped because its process is new. Method: 300 of
//! them, each at a depth of its own, print the CPU time they took; at 997 Hz at least 95 % of the samples that the
//! clock took in them must arrive, with their pid and the name of their executable, whatever their depth.

use std::collections::HashSet;
use std::process::Command;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::observation::observations;
use tests::statistics::as_f64;
use tests::{Agent, Running, Sink, need, workload};

const FREQUENCY_HZ: u32 = 997;
const PROCESSES: u32 = 300;
const CPU_MS: u32 = 32;
const ARRIVED_SHARE_MIN: f64 = 0.95;

#[test]
fn samples_of_short_processes_arrive() {
    if !need::bpf() {
        return;
    }
    let Some(program) = workload::c("brief", &[]) else { return };
    let name = program.file_name().expect("a file").to_string_lossy().into_owned();
    let sink = Sink::start();
    let agent = Agent::start(&sink.url(), &AgentOptions::at(FREQUENCY_HZ));
    let (mut pids, mut cpu_ns) = (HashSet::new(), 0_u64);
    for index in 0..PROCESSES {
        let mut command = Command::new(&program);
        command.arg(CPU_MS.to_string()).arg((index % 60).to_string());
        let process = Running::start(command);
        pids.insert(process.pid());
        let printed = process.finish(Duration::from_secs(10));
        cpu_ns += printed.trim().parse::<u64>().expect("nanoseconds");
    }
    agent.stop();
    let all = observations(&sink.requests());
    let of_them = all.iter().filter(|sample| pids.contains(&sample.pid));
    let named = of_them.clone().filter(|sample| sample.executable == name).count();
    let cpu_us = u32::try_from(cpu_ns / 1000).expect("seconds");
    let expected = f64::from(cpu_us) / 1e6 * f64::from(FREQUENCY_HZ);
    let share = as_f64(named) / expected;
    let rooted =
        of_them.clone().filter(|sample| sample.frames.last().is_some_and(|it| it.is("_start")));
    need::figure(&format!(
        "{named} of {expected:.0} samples with pid and executable ({share:.4}), {} with pid, {} to _start",
        of_them.clone().count(),
        rooted.count()
    ));
    assert!(share >= ARRIVED_SHARE_MIN, "only {share:.4} of the clock's samples arrived");
}
