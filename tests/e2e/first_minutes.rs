//! What a person meets in the first minutes: ports that are taken, Ctrl-C, a second start on the same data, a
//! forgotten sudo, a page of somebody else that would like to read.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::http;
use tests::workload::{Language, start_split, truth};
use tests::{Collector, Running, binary, eventually, kernel, need, seed};

/// The user `nobody` of Debian and most others.
const NOBODY: u32 = 65_534;

#[test]
fn local_with_ports_taken_then_again_on_the_same_data() {
    if !need::bpf() {
        return;
    }
    let Some(program) = Language::C.split() else { return };
    // Whoever has them, they are taken.
    let _taken: Vec<TcpListener> = [4040, 4317, 4318]
        .iter()
        .filter_map(|&port| TcpListener::bind(("127.0.0.1", port)).ok())
        .collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut local, address) = start_local(folder.path());
    let said = local.stdout() + &local.stderr();
    assert_ne!(address.port(), 4040);
    assert!(said.contains("4040"), "it says that the port was taken: {said}");
    assert!(said.contains(&folder.path().display().to_string()), "it says where data lies: {said}");
    let agent = eventually("the agent has programs", Duration::from_secs(20), || {
        let agents = kernel::children(local.pid());
        let agent = agents.iter().copied().find(|&pid| !kernel::bpf_programs_of(pid).is_empty());
        agent.ok_or_else(|| format!("children {agents:?}"))
    });
    let programs = kernel::bpf_programs_of(agent);
    local.wait_for(" sampling", Duration::from_secs(60));
    // Shorter than a window: what is stored of it comes with the flush at the end.
    let truth = truth(start_split(&program, 3, seed()));
    local.signal(rustix::process::Signal::INT);
    let status = local.wait(Duration::from_secs(20));
    assert!(status.success(), "Ctrl-C is no failure: {status}: {}", local.stderr());
    eventually("the programs are unloaded", Duration::from_secs(5), || {
        let left: Vec<u32> = kernel::bpf_programs().intersection(&programs).copied().collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?} are left")) }
    });
    assert!(!Path::new(&format!("/proc/{agent}")).exists(), "the agent is gone");
    let (local, address) = start_local(folder.path());
    let samples = samples_of(address, "{service=\"split-c\"}");
    need::figure(&format!(
        "{samples} samples of {:.2} s after the second start",
        truth.cpu_seconds()
    ));
    let samples = usize::try_from(samples).expect("64 bits");
    truth.count_is(samples, 97, 3).expect("the last window was kept");
    drop(local);
}

/// Starts `vesta local` and gives its address.
fn start_local(data: &Path) -> (Running, SocketAddr) {
    let mut command = Command::new(binary::program("vesta"));
    command.args(["local", "--frequency", "97", "--data-dir"]).arg(data);
    let mut local = Running::start(command);
    local.wait_for("http://127.0.0.1:", Duration::from_secs(30));
    let said = local.stdout() + &local.stderr();
    let url = said.split("http://").nth(1).expect("waited for");
    let end =
        url.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':')).unwrap_or(url.len());
    let address = url[..end].parse().unwrap_or_else(|error| panic!("{url}: {error}"));
    eventually("the page is served", Duration::from_secs(20), || {
        let answer = http::get(address, "/").map_err(|error| error.to_string())?;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    });
    (local, address)
}

fn samples_of(address: SocketAddr, filter: &str) -> u64 {
    let path = format!(
        "/api/v1/projects/default/flamegraph?from=now-1h&to=now%2B1m&filter={}",
        http::encode(filter)
    );
    let answer = http::get(address, &path).expect("an answer");
    let graph: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    graph["samples"].as_u64().expect("a count")
}

#[test]
fn a_forgotten_sudo_is_named() {
    if !rustix::process::geteuid().is_root() {
        need::skip("not root: cannot become somebody else");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    // A copy where everybody may go: the repository may lie in a folder of root alone.
    for name in ["vesta", "vesta-agent"] {
        std::fs::copy(binary::program(name), folder.path().join(name)).expect("a copy");
    }
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), open).expect("our own folder");
    for (name, arguments) in [
        ("vesta", &["local", "--data-dir", "data"][..]),
        ("vesta-agent", &["record", "--duration", "1s", "-o", "x.folded"]),
        ("vesta-agent", &["run", "--collector", "http://127.0.0.1:1"]),
    ] {
        let mut command = Command::new(folder.path().join(name));
        command.args(arguments).current_dir(folder.path()).uid(NOBODY).gid(NOBODY);
        let mut process = Running::start(command);
        let status = process.wait(Duration::from_secs(20));
        let said = process.stderr();
        assert_eq!(status.code(), Some(1), "{name} {arguments:?}: {said}");
        assert!(said.contains("sudo") || said.contains("root"), "{name} {arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn other_addresses_need_insecure() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(binary::program("vesta"));
    command.args(["serve", "--listen", "0.0.0.0:0", "--data-dir"]).arg(folder.path());
    let mut process = Running::start(command);
    let status = process.wait(Duration::from_secs(10));
    assert!(!status.success());
    assert!(process.stderr().contains("--insecure"), "{}", process.stderr());
}

/// DNS rebinding: a page of somebody else reaches loopback under its own name.
#[test]
fn foreign_pages_cannot_read() {
    let collector = Collector::start();
    let path = "/api/v1/projects/default/services";
    let ask = |headers: &[(&str, &str)]| {
        http::request(collector.address(), "GET", path, headers, &[]).expect("an answer").status
    };
    let own = collector.address().to_string();
    assert_eq!(ask(&[("Host", &own)]), 200);
    assert_eq!(ask(&[("Host", &format!("localhost:{}", collector.address().port()))]), 200);
    let refused = [400, 403, 421];
    for headers in [
        vec![("Host", "attacker.example:4040")],
        vec![("Host", "127.0.0.1.attacker.example")],
        vec![("Host", own.as_str()), ("Origin", "http://attacker.example")],
        vec![("Host", own.as_str()), ("Origin", "null")],
    ] {
        let status = ask(&headers);
        assert!(refused.contains(&status), "{headers:?}: {status}");
    }
}
