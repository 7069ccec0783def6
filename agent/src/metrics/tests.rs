use super::*;
use crate::aggregate::fixtures;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn text(metrics: &Metrics) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &metrics.registry()).unwrap();
    text
}

#[test]
fn a_window_is_counted_once_in_every_figure() {
    let metrics = Metrics::default();
    let mut window = fixtures::named(&fixtures::samples(100, 3));
    window.ledger.lost_in_ring = 7;
    metrics.count_window(&window);
    metrics.count_window(&window);
    let text = text(&metrics);
    for line in [
        "vesta_agent_windows_total 2",
        "vesta_agent_samples_total 200",
        "vesta_agent_samples_lost_total{reason=\"ring buffer full\"} 14",
        "vesta_agent_outcomes_total{status=\"complete\"} 180",
        "vesta_agent_outcomes_total{status=\"depth limit\"} 10",
        "vesta_agent_ledger_gaps_total 2",
        "vesta_agent_program_nanoseconds_total 4000000",
        "# UNIT vesta_agent_export_queue_bytes bytes",
        "# EOF",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn the_process_is_looked_at() {
    let metrics = Metrics::default();
    metrics.read_process();
    let text = text(&metrics);
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert!(value("vesta_agent_resident_bytes ") > 1 << 20);
    assert!(value("vesta_agent_process_cpu_nanoseconds ") > 0);
}

#[test]
fn the_engine_is_shown_once_there_is_one() {
    let metrics = Metrics::default();
    assert!(!text(&metrics).contains("vesta_agent_table_rows"));
    metrics.watch(crate::engine::Control::default(), std::sync::Arc::default());
    let text = text(&metrics);
    for line in [
        "vesta_agent_table_rows 0",
        "vesta_agent_maps_read_total 0",
        "vesta_agent_table_wait_seconds_bucket{le=\"0.1\"} 0",
        "vesta_agent_table_wait_large_seconds_count 0",
        "# EOF",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

/// The first line of the answer and its body.
async fn ask(address: std::net::SocketAddr, request: &str) -> (String, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[tokio::test]
async fn only_this_host_may_ask_and_only_by_its_own_name() {
    let metrics = Metrics::default();
    let server = MetricsServer::bind("127.0.0.1:0".parse().unwrap(), metrics).await.unwrap();
    let address = server.address().unwrap();
    let task = tokio::spawn(server.serve());
    let get = |path: &str, host: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
    };
    let ok = "HTTP/1.1 200 OK";
    for (path, host, status) in [
        ("/metrics", "127.0.0.1:9464", ok),
        ("/metrics", "localhost", ok),
        ("/metrics", "[::1]:9464", ok),
        ("/metrics", "rebound.example:9464", "HTTP/1.1 403 Forbidden"),
        ("/", "127.0.0.1", "HTTP/1.1 404 Not Found"),
    ] {
        let (line, body) = ask(address, &get(path, host)).await;
        assert_eq!(line, status, "{path} {host}");
        assert_eq!(body.ends_with("# EOF\n"), status == ok, "{path} {host}");
    }
    let post = "POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(ask(address, post).await.0, "HTTP/1.1 405 Method Not Allowed");
    task.abort();
}

#[tokio::test]
async fn other_addresses_are_refused() {
    let bound = MetricsServer::bind("0.0.0.0:0".parse().unwrap(), Metrics::default()).await;
    assert!(matches!(bound, Err(ServeError::NotLoopback { .. })));
}
