//! Builds a case with the machine's own tools. A tool that is missing skips the case, loudly.

use super::case::{Case, Compiler, FLAGS};
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::need;
use tests::workload::{out, run, source};

/// The built program; `None` if a tool is missing, which was said.
pub(super) fn build(case: &Case) -> Option<PathBuf> {
    let compiler = compiler(case.compiler)?;
    if let Some((variable, name)) = case.tool {
        need::tool(variable, name)?;
    }
    let program = out(&case.executable());
    let folder = program.parent().expect("a file lies in a folder").to_owned();
    let name = case.executable();
    if let Some(library) = case.library {
        let mut command = Command::new(&compiler);
        command.args(FLAGS).args(["-shared", "-fPIC"]).arg(workload(library.source));
        run(command.args(library.flags).arg("-o").arg(folder.join(format!("lib{name}.so"))));
    }
    let mut command = Command::new(&compiler);
    command.args(FLAGS).arg(workload(case.source)).args(case.flags);
    if case.library.is_some_and(|library| library.linked) {
        command.arg("-L").arg(&folder).arg(format!("-Wl,-rpath,{}", folder.display()));
        command.arg(format!("-l{name}"));
    }
    run(command.arg("-o").arg(&program));
    if let Some(change) = case.then
        && let Err(reason) = change(&program)
    {
        need::skip(&format!("{}: {reason}", case.name));
        return None;
    }
    Some(program)
}

fn compiler(which: Compiler) -> Option<PathBuf> {
    match which {
        Compiler::C => need::tool("VESTA_CC", "gcc"),
        Compiler::Cpp => need::tool("VESTA_CXX", "g++"),
        Compiler::Musl => need::tool("VESTA_MUSL_CC", "musl-gcc"),
    }
}

fn workload(file: &str) -> PathBuf {
    source(&Path::new("stacks").join(file).to_string_lossy())
}

/// Leaves `.debug_frame` as the only debug information.
pub(super) fn keep_debug_frame(program: &Path) -> Result<(), String> {
    let mut command = Command::new(need::tool("VESTA_STRIP", "strip").ok_or("without strip")?);
    run(command.args(["--strip-debug", "--keep-section=.debug_frame"]).arg(program));
    Ok(())
}

/// Takes the symbols of the C library away, as distributions do; those of the chain stay.
pub(super) fn keep_own_symbols(program: &Path) -> Result<(), String> {
    let mut command = Command::new(need::tool("VESTA_STRIP", "strip").ok_or("without strip")?);
    let own = ["spin", "inner", "middle", "outer", "main"];
    command.arg("--strip-all").args(own.map(|name| format!("--keep-symbol={name}")));
    run(command.arg(program));
    Ok(())
}

/// Moves the hot code into a second executable segment with a second `.eh_frame`, as large programs ship.
pub(super) fn bolt(program: &Path) -> Result<(), String> {
    let tool = need::tool("VESTA_BOLT", "llvm-bolt-15")
        .ok_or("without llvm-bolt there is no such file")?;
    let moved = program.with_extension("bolt");
    let mut command = Command::new(tool);
    command
        .arg(program)
        .arg("-o")
        .arg(&moved)
        .args(["--reorder-blocks=reverse", "--update-debug-sections"]);
    run(&mut command);
    std::fs::rename(&moved, program).map_err(|error| error.to_string())
}
