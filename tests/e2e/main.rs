//! End-to-end tests: real programs, the real kernel, real sockets, one binary. Modules in reading order:
//! what the agent sees, how it reaches the collector, what the collector keeps, what a person sees.
//!
//! A test that needs root or a tool and has none prints `skipped: <reason>`.

#![expect(clippy::panic, reason = "a test fails by panicking")]

mod jit;
mod ledger;
mod locks;
mod off_cpu;
mod on_cpu;
mod perf;
mod record;
mod short_lived;
mod stacks;

mod host;
mod host_load;
mod life_exec;
mod life_files;
mod life_many;
mod life_moved;
mod life_short;
mod life_silent;
mod tables;

mod forms;
mod otel_collector;
mod otlp_bytes;

mod corpus;
mod deletion;
mod durability;
mod folder;
mod malformed;

mod browser;
mod client;
mod first_minutes;
mod two_hosts;
