//! `vesta-agent`: reads the command line, does one thing, says in one line why it could not.

mod command;

use agent::options::{Command, CommandLine};
use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let CommandLine { command } = CommandLine::parse();
    start_log(match command {
        Command::Run(_) => "info",
        Command::Record(_) => "warn", // it has a progress line of its own
        Command::Doctor(_) | Command::Hold(_) => "error",
    });
    let done = match command {
        Command::Run(options) => {
            command::privilege::ensure(true).and_then(|()| command::run::run(&options))
        }
        Command::Record(options) => {
            let alone = options.command.is_empty();
            command::privilege::ensure(alone).and_then(|()| command::record::record(&options))
        }
        Command::Doctor(options) => command::doctor::doctor(&options),
        Command::Hold(options) => command::hold::hold(&options),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            say(&format!("vesta-agent: {}", one_line(&error)));
            ExitCode::FAILURE
        }
    }
}

/// The log goes to stderr; `RUST_LOG` picks what is in it, else `level`.
fn start_log(level: &str) {
    use std::io::IsTerminal as _;
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}

/// An error with its causes. Libraries repeat their causes in their own words: what was said already is
/// not said again.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if !line.contains(&text) {
            let separator = if line.is_empty() { "" } else { ": " };
            line.push_str(separator);
            line.push_str(&text.replace('\n', " "));
        }
    }
    line
}

/// Writes one line to stderr. If nobody reads it there is nobody to tell.
fn say(line: &str) {
    use std::io::Write as _;
    drop(writeln!(std::io::stderr().lock(), "{line}"));
}
