//! Prints where a file would be probed: the waiting paths of a C library, the locks of a Go program. For checks against
//! libraries that a test machine does not have: compare with `nm` of their separate symbols.
//!
//! usage: `cargo run -p agent --example probe_places -- FILE...`

#![expect(clippy::print_stdout, reason = "a program for people")]

use agent::probes::go::lock_functions;
use agent::probes::libc::waiting_calls;
use std::os::fd::AsFd as _;

fn main() -> anyhow::Result<()> {
    for name in std::env::args().skip(1) {
        let file = std::fs::File::open(&name)?;
        println!("{name}:");
        for call in waiting_calls(file.as_fd())? {
            println!("  {call:x?}");
        }
        for function in lock_functions(file.as_fd())? {
            println!("  {function:x?}");
        }
    }
    Ok(())
}
