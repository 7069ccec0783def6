//! Two hosts, one collector. Two agents with different host names stand in for two hosts; both names are
//! labels, each has its own samples, and the coverage counts both.

use std::time::Duration;
use tests::agent::AgentOptions;
use tests::workload::{Language, start_split, truth};
use tests::{Agent, Collector, eventually, need, seed};

const FREQUENCY_HZ: u32 = 97;

#[test]
fn both_are_there() {
    if !need::bpf() {
        return;
    }
    let Some(program) = Language::C.split() else { return };
    let collector = Collector::start();
    let start = |name: &str| {
        let arguments = vec!["--host-name".to_owned(), name.to_owned()];
        Agent::start(
            &collector.grpc_url(),
            &AgentOptions { arguments, ..AgentOptions::at(FREQUENCY_HZ) },
        )
    };
    let (first, second) = (start("first"), start("second"));
    let truth = truth(start_split(&program, 3, seed()));
    first.stop();
    second.stop();
    let range = [("from", "now-10m"), ("to", "now+1m")];
    eventually("both hosts are labels", Duration::from_secs(10), || {
        let hosts = collector.api("labels/host/values", &range).to_string();
        let both = hosts.contains("\"first\"") && hosts.contains("\"second\"");
        if both { Ok(()) } else { Err(hosts) }
    });
    let samples = |filter: &str| {
        let graph = collector.api("flamegraph", &[range[0], range[1], ("filter", filter)]);
        graph["samples"].as_u64().expect("a count")
    };
    let service = "service=\"split-c\"";
    let of_first = samples(&format!("{{{service},host=\"first\"}}"));
    let of_second = samples(&format!("{{{service},host=\"second\"}}"));
    let of_both = samples(&format!("{{{service}}}"));
    need::figure(&format!("{of_first} and {of_second} samples of one workload"));
    for samples in [of_first, of_second] {
        let samples = usize::try_from(samples).expect("64 bits");
        truth.count_is(samples, FREQUENCY_HZ, 3).expect("complete");
    }
    assert_eq!(of_first + of_second, of_both);
    let graph = collector.api("flamegraph", &range);
    assert_eq!(graph["coverage"]["hosts"], 2, "{}", graph["coverage"]);
    // Cores are a mean over the time that hosts reported: twice the hosts, twice the time.
    let services = collector.api("services", &range);
    assert_eq!(services["coverage"]["hosts"], 2);
}
