//! The page in a real browser, over a real collector with a running workload. What it does there is in
//! collector/ui/test/browser.mjs: functions are shown, zoom and search work, the content policy is not broken
//! and the console stays silent. Off-CPU time and lock waits come from a request with known sums.

use std::process::Command;
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::profiles::Client;
use tests::workload::{Language, start_split};
use tests::{Agent, Collector, Running, binary, eventually, need, seed, waits};

#[test]
fn page_shows_the_workload() {
    if !need::bpf() {
        return;
    }
    let (Some(node), Some(chromium)) =
        (need::tool("VESTA_NODE", "node"), need::tool("VESTA_CHROMIUM", "chromium"))
    else {
        return;
    };
    let page = binary::repository().join("collector/ui");
    if !page.join("node_modules/playwright-core").is_dir() {
        need::skip("no playwright-core in collector/ui/node_modules: cargo xtask test installs it");
        return;
    }
    let Some(program) = Language::C.split() else { return };
    let collector = Collector::start();
    let _agent = Agent::start(&collector.grpc_url(), &AgentOptions::at(97));
    let _split = start_split(&program, 120, seed());
    eventually("the workload is stored", Duration::from_secs(30), || {
        let graph = collector.api("flamegraph", &[("filter", "{service=\"split-c\"}")]);
        let strings = graph["strings"].to_string();
        if strings.contains("\"leaf_a\"") { Ok(()) } else { Err(strings) }
    });
    let mut client = Client::connect(collector.otlp_grpc()).expect("it listens");
    assert_eq!(client.send(&waits::request()).expect("accepted"), 0);
    let mut browser = Command::new(node);
    browser.arg("test/browser.mjs").current_dir(page);
    browser.env("VESTA_BASE_URL", format!("http://{}", collector.address()));
    browser.env("VESTA_CHROMIUM", chromium).env("VESTA_EXPECT_SERVICE", "split-c");
    browser.env("VESTA_EXPECT_FUNCTIONS", "leaf_a,middle_b,chain_c");
    browser.env("VESTA_EXPECT_LOCK", waits::LOCK);
    let mut browser = Running::start(browser);
    let status = browser.wait(Duration::from_secs(120));
    let said = browser.stdout() + &browser.stderr();
    assert!(status.success(), "the browser test ended with {status}:\n{said}");
    for figure in said.lines().filter_map(|line| line.strip_prefix("figure: ")) {
        need::figure(figure);
    }
}
