//! One set of pprof files pushed into a collector over HTTP, and what people then ask: the measurement that was made of
//! other back ends, with the very same bytes. The files are made by a Go program outside of this repository.

use crate::BackendsArgs;
use crate::figures::{Figure, print};
use crate::observer::Reading;
use flate2::read::GzDecoder;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tests::Collector;

/// Threads that inflate and walk, and the CPUs that all figures are meant for.
const CPUS: usize = 2;

/// Times that each question is asked; the median counts.
const QUESTIONS: usize = 9;

/// One file of the set.
struct File {
    service: String,
    pod: String,
    time_ms: i64,
    rows: u64,
    total: i64,
    bytes: Vec<u8>,
}

/// The set, in the order of the manifest.
struct Set {
    files: Vec<File>,
}

impl Set {
    fn read(folder: &Path) -> Self {
        let manifest = std::fs::read_to_string(folder.join("manifest.tsv"))
            .unwrap_or_else(|error| panic!("{}: no set of profiles: {error}", folder.display()));
        let file = |line: &str| {
            let columns: Vec<&str> = line.split('\t').collect();
            let [path, service, pod, time_ns, rows, total, ..] = columns[..] else {
                panic!("a line of the manifest has too few columns: {line}")
            };
            let number = |text: &str| text.parse::<i64>().expect("a number");
            File {
                service: service.to_owned(),
                pod: pod.to_owned(),
                time_ms: number(time_ns) / 1_000_000,
                rows: u64::try_from(number(rows)).expect("not negative"),
                total: number(total),
                bytes: std::fs::read(folder.join(path)).expect("a file of the manifest"),
            }
        };
        Self { files: manifest.lines().map(file).collect() }
    }

    fn rows(&self) -> u64 {
        self.files.iter().map(|file| file.rows).sum()
    }

    fn total(&self, chosen: impl Fn(&File) -> bool) -> i64 {
        self.files.iter().filter(|file| chosen(file)).map(|file| file.total).sum()
    }

    fn range(&self) -> (i64, i64) {
        let times = self.files.iter().map(|file| file.time_ms);
        (times.clone().min().unwrap_or(0), times.max().unwrap_or(0) + 1)
    }
}

pub(crate) fn measure(args: &BackendsArgs) {
    let set = Arc::new(Set::read(&args.set));
    let walking = walk_all(&set);
    let data = tempfile::tempdir().expect("a temporary folder");
    let mut collector = Collector::start_on(data.path(), &[]);
    let before = Reading::of(collector.process().pid());
    let pushed = push_all(&set, collector.address(), args.senders);
    let after = Reading::of(collector.process().pid());
    let rows = float(set.rows());
    let seconds = pushed.took.as_secs_f64();
    let mut figures = vec![
        Figure::new("rows_per_s", rows / seconds, "rows/s"),
        Figure::new("walk_rows_per_s", rows / walking.as_secs_f64(), "rows/s"),
        Figure::new("ratio", walking.as_secs_f64() / seconds, ""),
        Figure::new("ack_p50_ms", pushed.quantile(50), "ms"),
        Figure::new("ack_p99_ms", pushed.quantile(99), "ms"),
        Figure::new("busy_answers", float(pushed.busy as u64), "answers"),
        Figure::new("cpu_s_per_m_rows", float(after.cpu_ns - before.cpu_ns) / 1e3 / rows, "s"),
    ];
    ask_all(&set, &collector, &mut figures);
    let peak = Reading::of(collector.process().pid()).rss_peak_bytes;
    figures.push(Figure::new("peak_rss_mib", float(peak) / 1_048_576.0, "MiB"));
    collector.kill();
    drop(collector);
    let start = Instant::now();
    let collector = Collector::start_on(data.path(), &[]);
    figures.push(Figure::new("ready_after_restart_s", start.elapsed().as_secs_f64(), "s"));
    let lost = set.total(|_| true) - flame_graph(&collector, &set, "", 1).0;
    figures.push(Figure::new("lost_after_kill_ns", float(lost.unsigned_abs()), "ns"));
    collector.stop(); // writes everything out
    let disk = bytes_below(data.path());
    figures.push(Figure::new("bytes_per_row", float(disk) / rows, "bytes"));
    print(&figures, &[], args.json);
}

/// How long all CPUs take to inflate the files and to walk through their fields: what no receiver can do without.
fn walk_all(set: &Arc<Set>) -> Duration {
    let start = Instant::now();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CPUS {
            scope.spawn(|| {
                let mut plain = Vec::new();
                while let Some(file) = set.files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    plain.clear();
                    GzDecoder::new(&*file.bytes).read_to_end(&mut plain).expect("gzip");
                    std::hint::black_box(walk(&plain, 0));
                }
            });
        }
    });
    start.elapsed()
}

/// Walks through the fields of a profile and of its messages; answers how many there are.
fn walk(bytes: &[u8], depth: u8) -> u64 {
    let (mut at, mut fields) = (0, 0);
    while at < bytes.len() {
        let tag = varint(bytes, &mut at);
        fields += 1;
        if tag & 7 == 0 {
            varint(bytes, &mut at);
            continue;
        }
        let length = usize::try_from(varint(bytes, &mut at)).expect("a length");
        let payload = &bytes[at..at + length];
        at += length;
        // Texts (6) are no messages; of a sample both fields are packed numbers, of a location 4 is a message.
        match (depth, tag >> 3) {
            (0, 2) => fields += walk_packed(payload),
            (0, 6) => {}
            (0, _) | (1, 4) => fields += walk(payload, depth + 1),
            _ => {}
        }
    }
    fields
}

fn walk_packed(sample: &[u8]) -> u64 {
    let (mut at, mut numbers) = (0, 0);
    while at < sample.len() {
        varint(sample, &mut at); // tag
        let length = usize::try_from(varint(sample, &mut at)).expect("a length");
        let end = at + length;
        while at < end {
            numbers += varint(sample, &mut at) & 1;
        }
    }
    numbers
}

fn varint(bytes: &[u8], at: &mut usize) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
        shift += 7;
    }
}

/// How pushing went.
struct Pushed {
    took: Duration,
    /// Sorted.
    acknowledged: Vec<Duration>,
    /// Answers that asked to try again.
    busy: usize,
}

impl Pushed {
    /// Milliseconds.
    fn quantile(&self, percent: usize) -> f64 {
        let at = (self.acknowledged.len() * percent / 100).min(self.acknowledged.len() - 1);
        self.acknowledged[at].as_secs_f64() * 1_000.0
    }
}

fn push_all(set: &Arc<Set>, address: SocketAddr, senders: usize) -> Pushed {
    let start = Instant::now();
    let (next, busy) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let all = Mutex::new(Vec::with_capacity(set.files.len()));
    std::thread::scope(|scope| {
        for _ in 0..senders {
            scope.spawn(|| {
                let mut connection = Connection::new(address);
                let mut own = Vec::new();
                while let Some(file) = set.files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let sent = Instant::now();
                    while !connection.push(file) {
                        busy.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    own.push(sent.elapsed());
                }
                all.lock().expect("no sender panics").extend(own);
            });
        }
    });
    let took = start.elapsed();
    let mut acknowledged = all.into_inner().expect("no sender panics");
    acknowledged.sort_unstable();
    Pushed { took, acknowledged, busy: busy.into_inner() }
}

/// A connection that stays open.
struct Connection {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
}

impl Connection {
    fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        Self { stream: BufReader::new(stream), address }
    }

    /// False if the collector has no room now.
    fn push(&mut self, file: &File) -> bool {
        let mut request = format!(
            "POST /profiles/pprof?service={}&pod={} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n",
            file.service, file.pod, self.address, file.bytes.len(),
        )
        .into_bytes();
        request.extend_from_slice(&file.bytes);
        self.stream.get_mut().write_all(&request).expect("it reads");
        let (mut line, mut status, mut length) = (String::new(), 0, 0);
        loop {
            line.clear();
            self.stream.read_line(&mut line).expect("an answer");
            let (name, value) = line.trim_end().split_once(' ').unwrap_or_default();
            match &*name.to_ascii_lowercase() {
                "http/1.1" => status = value[..3].parse().expect("a status"),
                "content-length:" => length = value.parse().expect("a length"),
                _ if line.trim_end().is_empty() => break,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).expect("a body");
        match status {
            202 => true,
            503 => false,
            other => panic!("{other}: {}", String::from_utf8_lossy(&body)),
        }
    }
}

fn ask_all(set: &Set, collector: &Collector, figures: &mut Vec<Figure>) {
    let (service, pod) = ("svc-00", "pod-00");
    let of_service = format!("{{service=\"{service}\"}}");
    let of_pod = format!("{{service=\"{service}\",pod=\"{pod}\"}}");
    let (from, to) = set.range();
    let expected = [
        ("flame_service_ms", &*of_service, 1_000_000, set.total(|it| it.service == service)),
        ("flame_fleet_ms", "", 1_000_000, set.total(|_| true)),
        ("flame_service_20k_ms", &*of_service, 20_000, set.total(|it| it.service == service)),
        (
            "flame_pod_ms",
            &*of_pod,
            1_000_000,
            set.total(|it| it.service == service && it.pod == pod),
        ),
    ];
    for (name, filter, nodes, total) in expected {
        let ms =
            median(|| assert_eq!(flame_graph(collector, set, filter, nodes).0, total, "{name}"));
        figures.push(Figure::new(name, ms, "ms"));
    }
    let (from, to) = (from.to_string(), to.to_string());
    for (name, path, filter) in
        [("series_ms", "series", &*of_service), ("label_values_ms", "labels/pod/values", "")]
    {
        let query = [("from", &*from), ("to", &*to), ("filter", filter)];
        let ms = median(|| assert_eq!(collector.ask(path, &query).status, 200, "{name}"));
        figures.push(Figure::new(name, ms, "ms"));
    }
}

/// The total of an answer, read to its last byte, and how many bytes it has.
fn flame_graph(collector: &Collector, set: &Set, filter: &str, nodes: u32) -> (i64, usize) {
    let (from, to) = set.range();
    let (from, to, nodes) = (from.to_string(), to.to_string(), nodes.to_string());
    let query = [("from", &*from), ("to", &*to), ("filter", filter), ("max_nodes", &*nodes)];
    let answer = collector.ask("flamegraph", &query);
    assert_eq!(answer.status, 200, "{}", answer.text());
    // The total stands in front; to parse a hundred thousand nodes would measure the parser.
    let head = String::from_utf8_lossy(&answer.body[..answer.body.len().min(4_096)]);
    let total = head.split_once("\"total\":").map(|(_, rest)| rest);
    let digits = total.map(|rest| rest.split([',', '}']).next().unwrap_or_default());
    (digits.and_then(|digits| digits.parse().ok()).expect("a total"), answer.body.len())
}

/// Milliseconds of the median of several times; the first one warms up.
fn median(ask: impl Fn()) -> f64 {
    let mut times: Vec<f64> = (0..=QUESTIONS)
        .map(|_| {
            let start = Instant::now();
            ask();
            start.elapsed().as_secs_f64() * 1_000.0
        })
        .skip(1)
        .collect();
    times.sort_by(f64::total_cmp);
    times[QUESTIONS / 2]
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let size = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.expect("an entry");
        let data = entry.metadata().expect("an entry");
        if data.is_dir() { bytes_below(&entry.path()) } else { data.len() }
    };
    entries.map(size).sum()
}

#[expect(clippy::cast_precision_loss, reason = "figures have a few digits")]
fn float(count: u64) -> f64 {
    count as f64
}
