//! The BPF programs come in two forms, because older kernels have no `bpf_loop`. Goal: both load here and
//! see the same. Method: each form records the same kind of run; leaves, callers and roots must be right in
//! both.

use std::time::Duration;
use tests::agent::AgentOptions;
use tests::observation::{Observation, observations};
use tests::statistics::as_f64;
use tests::workload::{Language, start_split, truth};
use tests::{Agent, Sink, need, seed};

const FREQUENCY_HZ: u32 = 397;

#[test]
fn bpf_loop() {
    check("bpf-loop");
}

#[test]
fn tail_calls() {
    check("tail-calls");
}

fn check(form: &str) {
    if !need::bpf() {
        return;
    }
    let Some(program) = Language::C.split() else { return };
    let sink = Sink::start();
    let arguments = vec!["--form".to_owned(), form.to_owned()];
    let agent =
        Agent::start(&sink.url(), &AgentOptions { arguments, ..AgentOptions::at(FREQUENCY_HZ) });
    let split = start_split(&program, 4, seed());
    let pid = split.pid();
    let truth = truth(split);
    agent.stop();
    let samples: Vec<Observation> =
        observations(&sink.requests()).into_iter().filter(|sample| sample.pid == pid).collect();
    let whole =
        samples.iter().filter(|sample| sample.frames.last().is_some_and(|it| it.is("_start")));
    let in_chain = samples.iter().filter(|sample| {
        [["chain_a", "leaf_a"], ["chain_b", "leaf_b"], ["chain_c", "leaf_c"]]
            .iter()
            .any(|names| names.iter().all(|name| sample.has(name)))
    });
    let (whole, in_chain) = (whole.count(), in_chain.count());
    need::figure(&format!(
        "{form}: {} samples, {whole} whole, {in_chain} in a chain",
        samples.len()
    ));
    truth.count_is(samples.len(), FREQUENCY_HZ, 4).expect("complete");
    assert!(as_f64(whole) >= 0.99 * as_f64(samples.len()), "{whole} of {} whole", samples.len());
    assert!(as_f64(in_chain) >= 0.97 * as_f64(samples.len()), "{in_chain} of {}", samples.len());
    // Long enough that the next form does not meet this one's programs.
    std::thread::sleep(Duration::from_millis(200));
}
