//! `doctor`: prints what this host allows.

use agent::doctor::{Examination, State};
use agent::options::DoctorOptions;
use std::process::ExitCode;

/// Prints every check to stdout; fails if CPU sampling itself is impossible.
pub(crate) fn doctor(options: &DoctorOptions) -> anyhow::Result<ExitCode> {
    use std::io::Write as _;
    let examination = Examination::of_this_host(options.sampling.allow_kernel);
    let mut stdout = std::io::stdout().lock();
    for check in &examination.checks {
        let mark = match check.state {
            State::Good => "ok     ",
            State::Costs => "missing",
            State::Fatal => "FATAL  ",
        };
        writeln!(stdout, "{mark}  {}: {}", check.what, check.found)?;
        if !check.costs.is_empty() {
            writeln!(stdout, "         costs: {}", check.costs)?;
        }
        if !check.grant.is_empty() {
            writeln!(stdout, "         cure:  {}", check.grant)?;
        }
    }
    let possible = examination.can_sample();
    let verdict =
        if possible { "CPU sampling works here" } else { "CPU sampling cannot work here" };
    writeln!(stdout, "{verdict}")?;
    Ok(if possible { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
