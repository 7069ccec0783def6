//! The harness of the end-to-end tests: real programs, started and ended by the tests, on real sockets.
//!
//! A test says what it needs ([`need`]), builds a workload with a known truth ([`workload`]), starts a
//! [`Collector`] or a [`Sink`] and an [`Agent`], and asks what arrived ([`observation`], [`http`]),
//! [`eventually`]. Everything that was started ends with its value.

#![expect(
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a harness fails by panicking, and its words are part of a test's output"
)]

pub mod account;
pub mod agent;
pub mod binary;
pub mod chain;
pub mod collector;
pub mod copies;
pub mod host_window;
pub mod http;
pub mod kernel;
pub mod metrics;
pub mod mount;
pub mod native;
pub mod need;
pub mod observation;
pub mod process;
pub mod profiles;
mod raw;
pub mod readme;
pub mod rows_file;
pub mod sink;
pub mod statistics;
pub mod swarm;
pub mod usage;
pub mod wait_observation;
pub mod waits;
pub mod ways;
pub mod workload;

pub use agent::Agent;
pub use collector::Collector;
pub use process::Running;
pub use sink::Sink;

use std::time::{Duration, Instant};

/// Asks again every 100 ms until the answer is `Ok`, at most for `limit`; panics with the last reason.
pub fn eventually<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(reason) if start.elapsed() > limit => {
                panic!("{what}: not within {limit:?}: {reason}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// A loopback port that is free now. Another process may take it before it is used; the programs under
/// test then say so and the test fails loudly.
#[must_use]
pub fn free_port() -> u16 {
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("loopback has free ports");
    socket.local_addr().expect("a bound socket has an address").port()
}

/// A seed for a workload, new for each run and printed by it: `VESTA_SEED` repeats a run.
#[must_use]
pub fn seed() -> u64 {
    let wanted = std::env::var("VESTA_SEED").ok().and_then(|seed| seed.parse().ok());
    wanted.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::from(now.expect("the clock is after 1970").subsec_nanos())
    })
}
