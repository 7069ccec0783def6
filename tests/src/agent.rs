//! `vesta-agent` under test.

use crate::binary::program;
use crate::process::Running;
use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    process: Running,
}

/// How to start it.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Samples a second and CPU.
    pub frequency_hz: u32,
    /// More arguments of `vesta-agent run`.
    pub arguments: Vec<String>,
    /// Environment variables.
    pub variables: Vec<(String, String)>,
}

impl Default for AgentOptions {
    fn default() -> Self {
        Self { frequency_hz: 19, arguments: Vec::new(), variables: Vec::new() }
    }
}

impl AgentOptions {
    /// At this frequency.
    #[must_use]
    pub fn at(frequency_hz: u32) -> Self {
        Self { frequency_hz, ..Self::default() }
    }
}

impl Agent {
    /// Starts `vesta-agent run` towards a collector and waits until it samples.
    ///
    /// # Panics
    /// If it does not within half a minute.
    #[must_use]
    pub fn start(collector_url: &str, options: &AgentOptions) -> Self {
        let mut agent = Self { process: Running::start(command(collector_url, options)) };
        agent.process.wait_for("sampling", Duration::from_secs(30));
        agent
    }

    /// The process.
    #[must_use]
    pub fn process(&mut self) -> &mut Running {
        &mut self.process
    }

    /// Ends it as Ctrl-C does; it must send its last window and leave in peace.
    ///
    /// # Panics
    /// If it does not within 20 seconds.
    pub fn stop(mut self) -> String {
        self.process.signal(Signal::INT);
        let status = self.process.wait(Duration::from_secs(20));
        let said = self.process.stderr();
        assert!(status.success(), "the agent ended with {status}:\n{said}");
        said
    }
}

/// `vesta-agent run` as a command.
#[must_use]
pub fn command(collector_url: &str, options: &AgentOptions) -> Command {
    let AgentOptions { frequency_hz, arguments, variables } = options;
    let mut command = Command::new(program("vesta-agent"));
    command.args(["run", "--collector", collector_url]);
    command.args(["--frequency", &frequency_hz.to_string()]).args(arguments);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command
}
