//! Requests and texts of the commands, against a known answer of the API.

use super::*;
use crate::meta::{FILE_NAME, Meta};
use crate::options::{Cli, Command};
use crate::profile::ProfileId;
use crate::store::ProfileStore as _;
use crate::store::Retention;
use crate::store::embedded::{Clock, EmbeddedOptions, EmbeddedStore};
use crate::store::test_answers::one_profile;
use clap::Parser as _;
use std::path::PathBuf;

const GRAPH: &str = r#"{"type":"cpu","unit":"nanoseconds","total":60,"samples":6,"period_ns":10,
 "coverage":{"hosts":1,"host_ms":1,"window_ms":1,"cores":1.0},"hidden":{"nodes":2,"total":10},
 "strings":["","total","main","a;b","do_syscall\u001b[31m"],
 "functions":{"name":[1,2,3,4],"file":[0,0,0,0],"line":[0,0,0,0],
   "kind":["unknown","native","native","kernel"],"module":[0,0,0,0],"named":[1,1,1,1]},
 "nodes":{"func":[0,1,2,3,2],"total":[60,50,20,20,10],"self":[0,20,0,20,10],
   "depth":[0,1,2,3,1],"hidden":[0,10,0,0,0],"flags":[0,1,0,0,0]},"warnings":[]}"#;

#[test]
fn folded_stacks_run_from_root_to_leaf_and_count_samples() {
    let folded = flame_graph::Graph::read(GRAPH.as_bytes()).unwrap().folded().unwrap();
    let expected = "main 2\nmain;[hidden] 1\nmain;a:b;do_syscall\\u{1b}[31m_[k] 2\na:b 1\n";
    assert_eq!(folded, expected);
}

#[test]
fn folded_stacks_add_up_to_all_samples() {
    let rows = [
        ("\"self\":[0,20,0,20,10]", "\"self\":[30,20,0,20,10]", "[no stack] 3\n"),
        ("\"hidden\":[0,10,0,0,0]", "\"hidden\":[40,10,0,0,0]", "[hidden] 4\n"),
    ];
    let known = flame_graph::Graph::read(GRAPH.as_bytes()).unwrap().folded().unwrap();
    for (from, to, line) in rows {
        let graph = flame_graph::Graph::read(GRAPH.replace(from, to).as_bytes()).unwrap();
        assert_eq!(graph.folded().unwrap(), format!("{line}{known}"));
    }
}

#[test]
fn text_leaves_out_what_is_small() {
    let graph = flame_graph::Graph::read(GRAPH.as_bytes()).unwrap();
    let expected = "60.00 ns in 6 samples\n 83.33%  33.33%  main\n 33.33%   0.00%   a;b\n 33.33%  33.33%    do_syscall\\u{1b}[31m [kernel]\n";
    assert_eq!(graph.text(20.0).unwrap(), expected);
}

#[test]
fn answers_that_break_the_rules_are_refused() {
    let rows = [
        ("\"depth\":[0,1,2,3,1]", "\"depth\":[0,1,3,3,1]"),
        ("\"depth\":[0,1,2,3,1]", "\"depth\":[0,0,2,3,1]"),
        ("\"func\":[0,1,2,3,2]", "\"func\":[0,1,2,9,2]"),
        ("\"self\":[0,20,0,20,10]", "\"self\":[0,20,0,20]"),
        ("\"name\":[1,2,3,4]", "\"name\":[1,2,3,99]"),
    ];
    for (from, to) in rows {
        let graph = flame_graph::Graph::read(GRAPH.replace(from, to).as_bytes()).unwrap();
        assert!(matches!(graph.folded(), Err(ClientError::Columns(_))), "{to}");
    }
    assert!(matches!(flame_graph::Graph::read(b"{}"), Err(ClientError::Answer(_))));
}

#[test]
fn what_is_missing_is_a_line() {
    let rows = [
        (r#"{"total":9}"#, None),
        (r#"{"total":9,"losses":{"cut":[],"lost":[],"sent":9}}"#, None),
        (
            r#"{"total":1000,"losses":{"cut":[{"reason":"no unwind info","total":30},
              {"reason":"truncated","total":2}],"lost":[{"reason":"ring\u001b full","samples":1}],
              "sent":99}}"#,
            Some(
                "3.20 % of samples cut (no unwind info 3.00 %, truncated 0.20 %); \
                 1.00 % of samples lost on these hosts (ring\\u{1b} full 1.00 %)",
            ),
        ),
    ];
    for (answer, line) in rows {
        assert_eq!(losses::line(answer.as_bytes()).unwrap().as_deref(), line, "{answer}");
    }
}

#[test]
fn a_table_shows_functions() {
    let answer = r#"{"unit":"nanoseconds","total":4000000000,"samples":40,
      "coverage":{"hosts":2,"host_ms":1,"window_ms":1,"cores":1.5},
      "rows":[{"name":"f","file":"","line":0,"kind":"native","module":"app","named":true,
               "self":3000000000,"total":4000000000},
              {"name":"g","file":"","line":0,"kind":"kernel","module":"","named":true,
               "self":1500000,"total":1500000}]}"#;
    let expected = "\
cpu: 4.00 s in 40 samples, 1.500 cores on 2 hosts
        self  self %        total total %  function
      3.00 s  75.00%       4.00 s 100.00%  f [app]
     1.50 ms   0.04%      1.50 ms   0.04%  g [kernel]
";
    assert_eq!(top::table(answer.as_bytes(), "cpu").unwrap(), expected);
}

#[test]
fn time_that_is_not_of_the_cpu_is_a_number_of_threads() {
    let answer = r#"{"unit":"nanoseconds","total":5000000000,"samples":2,
      "coverage":{"hosts":1,"host_ms":1,"window_ms":1,"cores":1.25},"rows":[]}"#;
    let text = top::table(answer.as_bytes(), "off_cpu").unwrap();
    let expected = "off_cpu: 5.00 s in 2 samples, 1.250 threads on average on 1 hosts\n";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn a_table_shows_locks() {
    let answer = r#"{"from":0,"to":1,"coverage":{"hosts":1,"host_ms":1,"window_ms":1,"cores":0.13},
      "locks":4,"total":{"wait_ns":750000000,"contentions":10,"holder_samples":9},
      "rows":[
       {"lock":"queue+0x10","place":"static","kind":"mutex","service":"shop","services":3,
        "executable":"shopd","host":"","pid":"","wait_ns":650000000,"contentions":6,
        "holder_samples":9,"mean_ns":108333333,"threads":0.13,
        "waiters":[{"name":"push","file":"","line":0,"kind":"native","module":"","named":true,
          "wait_ns":500000000,"contentions":5,"stack":["push","a","b","c","d","main"]}],
        "holders":[{"name":"com\u001bpress","file":"","line":0,"kind":"native","module":"",
          "named":true,"samples":7,"stack":["compress"]}],
        "other_callers":{"wait_ns":150000000,"contentions":1,"holder_samples":2},"filter":""},
       {"lock":"","place":"address","kind":"unknown","service":"x","services":1,"executable":"x",
        "host":"h1","pid":"12","wait_ns":60000000,"contentions":0,"holder_samples":0,
        "mean_ns":null,"threads":0.01,"waiters":[],"holders":[],
        "other_callers":{"wait_ns":0,"contentions":0,"holder_samples":0},"filter":""}],
      "others":{"locks":2,"wait_ns":40000000,"contentions":4,"holder_samples":0},
      "warnings":["half is missing"]}"#;
    let expected = "\
750.00 ms of waiting in 10 contentions of 4 locks, 0.130 threads on average on 1 hosts
        wait  wait % contentions       mean kind     lock
   650.00 ms  86.67%           6  108.33 ms mutex    queue+0x10 [shop and 2 more, shopd]
                                                     waits  76.92%  push < a < b < c < d < …
                                                     holds  77.78%  com\\u{1b}press
    60.00 ms   8.00%           0          - unknown  (address unknown) [x, pid 12 on h1]
    40.00 ms   5.33%           4          -          2 other locks
";
    assert_eq!(locks::table(answer.as_bytes()).unwrap(), expected);
    assert_eq!(losses::warnings(answer.as_bytes()).unwrap(), ["half is missing"]);
    assert_eq!(losses::warnings(b"{}").unwrap(), [""; 0]);
    let nothing = r#"{"coverage":{"hosts":0,"cores":0},"locks":0,"rows":[],"warnings":[],
      "total":{"wait_ns":0,"contentions":0,"holder_samples":0},
      "others":{"locks":0,"wait_ns":0,"contentions":0}}"#;
    assert!(locks::table(nothing.as_bytes()).unwrap().contains("no lock was waited for"));
}

#[test]
fn options_become_one_selector() {
    let rows: &[(&[&str], &str)] = &[
        (&[], ""),
        (&["--service", "a\"b\\"], r#"{service="a\"b\\"}"#),
        (&["--service", "a", "--host", "h"], r#"{service="a",host="h"}"#),
        (&["--filter", " {pod=\"p\"} "], r#"{pod="p"}"#),
        (&["--filter", "pod=\"p\"", "--host", "h"], r#"{host="h",pod="p"}"#),
        (&["--filter", "{}"], ""),
    ];
    for (arguments, expected) in rows {
        let line = ["vesta", "top"].iter().chain(*arguments);
        let crate::options::Command::Top(args) = Cli::parse_from(line).command else {
            panic!("not top")
        };
        let selector = selector(&args.query);
        assert_eq!(selector, *expected);
        assert!(crate::api::selector::parse(&selector).is_ok(), "{selector}");
    }
}

#[test]
fn urls_are_encoded() {
    let query = [("filter", "{service=\"ü&x\"}")];
    let url = url("http://localhost:4040/", "a/b", "functions", &query).unwrap();
    let expected = "http://localhost:4040/api/v1/projects/a%2Fb/functions?filter=%7Bservice%3D%22%C3%BC%26x%22%7D";
    assert_eq!(url.to_string(), expected);
    for wrong in ["localhost:4040", "https://x", "ftp://x", "http://a b"] {
        assert!(matches!(super::url(wrong, "p", "x", &[]), Err(ClientError::Url(_))), "{wrong}");
    }
}

#[tokio::test]
async fn a_collector_that_is_not_there_is_named() {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let url = url(&format!("http://{free}"), "default", "functions", &[]).unwrap();
    let error = fetch(url).await.unwrap_err();
    assert!(!error.is_usage());
    let text = error.to_string();
    assert!(text.contains("Connection refused") && text.contains("vesta serve"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_database_is_one_of_the_damages() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions {
        data_dir: dir.path().to_owned(),
        data_bytes_max: Some(1 << 30),
        retention: Retention::default(),
        clock: Clock::system(),
    };
    let store = EmbeddedStore::open(options).unwrap();
    store.append(one_profile("api", ProfileId::None, &[(&["main"], 1)])).await.unwrap();
    drop(store);
    drop(Meta::open(dir.path()).unwrap());
    let line = ["vesta", "store", "check", "--data-dir", dir.path().to_str().unwrap()];
    let Command::Store(check) = Cli::parse_from(line).command else { panic!("another command") };
    folder::look_after(&check, dir.path()).await.unwrap();
    let mut paths = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let is_seen = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("seen-");
    let seen = paths.find(is_seen).unwrap();
    for path in [seen, dir.path().join(FILE_NAME)] {
        std::fs::write(path, [b'x'; 4_096]).unwrap();
    }
    // Segment, symbols, seen ids, database.
    let checked = folder::look_after(&check, dir.path()).await;
    let both = matches!(checked, Err(ClientError::Damaged { damaged: 2, files: 4 }));
    assert!(both, "{checked:?}");
}
