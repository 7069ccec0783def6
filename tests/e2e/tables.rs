//! Unwind tables in less memory than the host wants. Goal: a program whose table made room for others has it back as
//! soon as a sample meets it, and no stack is cut for it; what was removed and came back is counted. Method: the
//! smallest budget; a program works and sleeps for longer than tables are kept, while processes map libraries of more
//! rows than fit; then it works again. The log says which files lost and got back their tables, the program when it
//! worked and for how much CPU time.

use std::path::{Path, PathBuf};
use std::time::Duration;
use tests::agent::AgentOptions;
use tests::metrics::Metrics;
use tests::observation::{Observation, observations};
use tests::rows_file::RowsFile;
use tests::statistics::as_f64;
use tests::{Agent, Running, Sink, eventually, need, workload};

const FREQUENCY_HZ: u32 = 197;
/// The smallest budget: 327 chunks of 4,096 rows.
const TABLE_BYTES: u64 = 8 << 20;
/// Libraries that want it at once, and the functions of the first; each has one more than the one before, so that none
/// shares a table. 300,000 rows are 74 chunks.
const LIBRARIES: u64 = 5;
const FUNCTIONS: u64 = 30_000;
/// What a sample met is kept for five seconds.
const KEPT: Duration = Duration::from_millis(5500);
/// CPU time of each piece of work, and its depth.
const WORK_MS: &str = "1000";
const DEPTH: u32 = 40;
/// Times that the program's table is removed.
const ROUNDS: usize = 2;
/// A window and its naming: metrics are as of the last one.
const WINDOW: Duration = Duration::from_secs(6);
/// Share of the program's stacks that must be whole in each piece of work: one that a tick met before may still be cut.
const SHARE_MIN: f64 = 0.99;

#[test]
fn a_table_that_made_room_comes_back() {
    if !need::bpf() {
        return;
    }
    if need::tool("VESTA_PYTHON3", "python3").is_none() {
        return;
    }
    let Some(program) = workload::c("pulse", &[]) else { return };
    // A copy that nobody else runs.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = copied(&program, folder.path());
    let sink = Sink::start();
    let metrics = Metrics::somewhere();
    let mut arguments = metrics.arguments();
    arguments.extend(["--unwind-table-bytes".to_owned(), TABLE_BYTES.to_string()]);
    let variables = vec![("RUST_LOG".to_owned(), "agent=debug,info".to_owned())];
    let options = AgentOptions { frequency_hz: FREQUENCY_HZ, arguments, variables };
    let mut agent = Agent::start(&sink.url(), &options);
    let mut pulse = Pulse::start(&program);
    let mut works = vec![pulse.work()];
    for round in 0..ROUNDS {
        std::thread::sleep(KEPT);
        let crowd = crowd(folder.path(), round);
        told(&mut agent, ("makes room", &program), round + 1);
        works.push(pulse.work());
        told(&mut agent, ("made again", &program), round + 1);
        drop(crowd);
    }
    std::thread::sleep(WINDOW);
    let reading = metrics.read();
    let [evicted, returned, overdue, bytes] = [
        "tables_evicted_total",
        "tables_returned_total",
        "table_waits_overdue_total",
        "table_bytes",
    ]
    .map(|name| reading.get(name));
    let p99 = reading.quantile("table_wait_seconds", 0.99);
    agent.stop();
    let all = observations(&sink.requests());
    need::figure(&format!(
        "{evicted} tables removed, {returned} made again, {bytes} bytes; waits: 99 of 100 within {p99} s, {overdue} overdue"
    ));
    for work in &works {
        work.is_whole(&all, pulse.process.pid()).expect("stacks of the program");
    }
    assert!(evicted >= as_f64(ROUNDS) && returned >= as_f64(ROUNDS), "{evicted} {returned}");
}

/// Waits until the log has said this of the program so often.
fn told(agent: &mut Agent, (what, program): (&str, &Path), times: usize) {
    let path = program.display().to_string();
    eventually(&format!("{path} {what}"), Duration::from_secs(30), || {
        let said = agent.process().stderr();
        let count = said.lines().filter(|line| line.contains(&path) && line.contains(what)).count();
        if count >= times { Ok(()) } else { Err(format!("{count} of {times} times")) }
    });
}

fn copied(program: &Path, folder: &Path) -> PathBuf {
    let copy = folder.join("pulse-of-this-test");
    std::fs::copy(program, &copy).expect("copy the program");
    copy
}

/// Processes that map more rows than there is memory for; the table of each is asked for when a sample meets it.
fn crowd(folder: &Path, round: usize) -> Vec<Running> {
    let number = |at: u64| u64::try_from(round).expect("small") * LIBRARIES + at;
    let library = |at: u64| {
        let path = folder.join(format!("rows-{}.so", number(at)));
        RowsFile::written(path, FUNCTIONS + number(at)).mapped(1, 120)
    };
    (0..LIBRARIES).map(library).collect()
}

/// The program that works when it is told to.
struct Pulse {
    process: Running,
    works: usize,
}

impl Pulse {
    fn start(program: &Path) -> Self {
        let mut command = std::process::Command::new(program);
        command.args([WORK_MS, &DEPTH.to_string()]);
        let mut process = Running::start(command);
        process.wait_for("ready", Duration::from_secs(10));
        Self { process, works: 0 }
    }

    /// Lets it work, and waits until it has.
    fn work(&mut self) -> Work {
        self.process.signal(rustix::process::Signal::USR1);
        self.works += 1;
        eventually("the program works", Duration::from_secs(60), || {
            let said = self.process.stdout();
            let line = said.lines().nth(self.works).filter(|_| said.ends_with('\n'));
            line.map(Work::read).ok_or(said)
        })
    }
}

/// One piece of work.
#[derive(Debug)]
struct Work {
    from_ns: u64,
    to_ns: u64,
    cpu_ns: u64,
}

impl Work {
    fn read(line: &str) -> Self {
        let numbers: Vec<u64> =
            line.split(' ').map(|number| number.parse().expect("a number")).collect();
        let [from_ns, to_ns, cpu_ns] = numbers[..] else { panic!("{line}") };
        Self { from_ns, to_ns, cpu_ns }
    }

    /// All samples of it are there, and their stacks reach from the work to the root.
    fn is_whole(&self, all: &[Observation], pid: u32) -> Result<(), String> {
        let during = |sample: &&Observation| {
            sample.pid == pid && (self.from_ns..self.to_ns).contains(&sample.time_ns)
        };
        let samples: Vec<&Observation> = all.iter().filter(during).collect();
        let is_whole = |sample: &&&Observation| {
            let deep = sample.user().filter(|frame| frame.is("dive")).count();
            deep >= usize::try_from(DEPTH).expect("small")
                && sample.has("main")
                && sample.has("_start")
        };
        let whole = samples.iter().filter(is_whole).count();
        let expected = workload::seconds(self.cpu_ns) * f64::from(FREQUENCY_HZ);
        need::figure(&format!("{whole} of {} stacks whole, {expected:.0} ticks", samples.len()));
        let share = workload::seconds(self.cpu_ns) / workload::seconds(self.to_ns - self.from_ns);
        tests::statistics::count_is(samples.len(), expected, share)?;
        if as_f64(whole) < SHARE_MIN * as_f64(samples.len()) {
            let cut = samples.iter().find(|sample| !is_whole(sample));
            return Err(cut.map(|sample| sample.shown()).unwrap_or_default());
        }
        Ok(())
    }
}
