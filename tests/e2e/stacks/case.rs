//! A case: what is built, how it is started, what must be seen. Nothing here runs anything.

use std::path::Path;
use std::process::Command;

/// One row of the table.
#[derive(Clone, Copy)]
pub(super) struct Case {
    /// Short; the executable is `stacks-NAME`.
    pub(super) name: &'static str,
    /// What is special, in words of the table.
    pub(super) what: &'static str,
    /// File of tests/workloads/stacks.
    pub(super) source: &'static str,
    pub(super) compiler: Compiler,
    /// After the source, so that libraries can stand there.
    pub(super) flags: &'static [&'static str],
    /// A library that is built beside it.
    pub(super) library: Option<Library>,
    /// Changes the built file.
    pub(super) then: Option<Change>,
    /// How it is started, with the arguments of the chain.
    pub(super) start: Start,
    pub(super) expect: Expect,
    pub(super) opinion: Opinion,
    /// Share of the stacks that must be as expected.
    pub(super) right_min: f64,
    /// Frames of others that the chain's leaf calls, at most.
    pub(super) foreign_max: usize,
    /// True if children of it run the same executable: only samples of the process itself count then.
    pub(super) has_children: bool,
    /// A tool beside the compiler: the variable that names it, and its name.
    pub(super) tool: Option<(&'static str, &'static str)>,
}

/// A library `libstacks-NAME.so` of a case.
#[derive(Clone, Copy)]
pub(super) struct Library {
    pub(super) source: &'static str,
    pub(super) flags: &'static [&'static str],
    /// False if the program loads it by itself.
    pub(super) linked: bool,
}

/// Changes the file; an error is the reason for which the case is skipped.
pub(super) type Change = fn(&Path) -> Result<(), String>;

/// The command that starts a built program, or why it cannot be.
pub(super) type Start = fn(&Path) -> Result<Command, String>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Compiler {
    /// The machine's C compiler.
    C,
    Cpp,
    /// The same against musl.
    Musl,
}

/// What must be seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expect {
    /// Every caller up to the root.
    Complete,
    /// The truth with its middle cut out, and this marker there.
    Truncated(&'static str),
    /// The leaf, then a marker with this text: nothing that the truth does not have.
    Stops(&'static str),
}

/// Who else looks at the depth.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Opinion {
    Perf,
    Gdb,
    /// Nobody that could unwind it.
    None,
}

/// What every C program is compiled with, unless its own flags say otherwise.
pub(super) const FLAGS: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-pthread"];

/// Milliseconds of CPU time that a chain spins: 997 samples.
pub(super) const SPIN_MS: &str = "1000";

impl Case {
    /// The chain of plain.c, complete, beside perf.
    pub(super) const fn plain(name: &'static str, what: &'static str) -> Self {
        Self {
            name,
            what,
            source: "plain.c",
            compiler: Compiler::C,
            flags: &[],
            library: None,
            then: None,
            start: |program| {
                let mut command = Command::new(program);
                command.arg(SPIN_MS);
                Ok(command)
            },
            expect: Expect::Complete,
            opinion: Opinion::Perf,
            right_min: 0.995,
            foreign_max: 0,
            has_children: false,
            tool: None,
        }
    }

    /// Another program.
    pub(super) const fn of(source: &'static str, name: &'static str, what: &'static str) -> Self {
        Self { source, ..Self::plain(name, what) }
    }

    pub(super) const fn flags(self, flags: &'static [&'static str]) -> Self {
        Self { flags, ..self }
    }

    pub(super) const fn by(self, compiler: Compiler) -> Self {
        Self { compiler, ..self }
    }

    pub(super) const fn beside(self, opinion: Opinion) -> Self {
        Self { opinion, ..self }
    }

    pub(super) const fn expect(self, expect: Expect) -> Self {
        Self { expect, ..self }
    }

    pub(super) const fn with(self, library: Library) -> Self {
        Self { library: Some(library), ..self }
    }

    pub(super) const fn then(self, change: Change) -> Self {
        Self { then: Some(change), ..self }
    }

    pub(super) const fn needs(self, variable: &'static str, name: &'static str) -> Self {
        Self { tool: Some((variable, name)), ..self }
    }

    pub(super) const fn calling(self, foreign_max: usize) -> Self {
        Self { foreign_max, ..self }
    }

    pub(super) const fn started(self, start: Start) -> Self {
        Self { start, ..self }
    }

    /// The name of the built file.
    pub(super) fn executable(&self) -> String {
        format!("stacks-{}", self.name)
    }
}
