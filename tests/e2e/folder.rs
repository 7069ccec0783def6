//! `vesta store` on the data folder of a real collector: while it runs, after it ended, and with a damaged file.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tests::profiles::{Client, Sender, request};
use tests::{Collector, binary};

fn store(command: &str, data: &Path) -> Output {
    let mut vesta = Command::new(binary::program("vesta"));
    vesta.args(["store", command, "--data-dir"]).arg(data).output().expect("vesta runs")
}

/// Standard output of a command that ended well.
fn told(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// One line on standard error of a command that failed.
fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    error
}

fn segment(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    entries.flatten().map(|entry| entry.path()).find_map(|path| {
        let is_segment = path.extension().is_some_and(|ending| ending == "seg");
        if is_segment { Some(path) } else { segment(&path) }
    })
}

#[test]
fn a_folder_is_looked_after() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path();
    assert!(complaint(&store("check", data)).contains("no store in"), "an empty folder is none");
    for start in 0..2 {
        let collector = Collector::start_on(data, &[]);
        let mut client = Client::connect(collector.otlp_grpc()).expect("the collector listens");
        let sent = request(Sender { service: "kept", scope: "test" }, [start; 16], 11);
        assert_eq!(client.send(&sent).expect("accepted"), 0);
        drop(client);
        assert!(told(&store("check", data)).contains("no damage"));
        assert!(told(&store("stats", data)).contains("deletions pending"));
        let refused = complaint(&store("compact", data));
        assert!(refused.contains("another process uses this data folder"), "{refused}");
        collector.stop();
    }
    let stats = told(&store("stats", data));
    let figure = |name: &str| {
        let line = stats.lines().find(|line| line.trim().starts_with(name));
        line.and_then(|line| line.split_whitespace().last()).map(str::to_owned)
    };
    assert_eq!(figure("samples").as_deref(), Some("22"), "{stats}");
    let compacted = told(&store("compact", data));
    // Over midnight they are of two days.
    let merged = ["2 segments merged: 1 segments", "0 segments merged: 2 segments"];
    assert!(merged.iter().any(|it| compacted.starts_with(it)), "{compacted}");
    assert!(told(&store("check", data)).contains("no damage"));
    let path = segment(data).expect("a segment");
    let mut bytes = std::fs::read(&path).expect("it can be read");
    bytes[12] ^= 1;
    std::fs::write(&path, bytes).expect("it can be written");
    let output = store("check", data);
    let named = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(named.contains(&path.display().to_string()), "{named}");
    assert!(complaint(&output).contains("1 of "), "how many is said");
}
