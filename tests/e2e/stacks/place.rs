//! Where a program may lie and run: how each is started. The mounts are made in a mount namespace of their own and
//! end with it.

use super::case::SPIN_MS;
use std::path::Path;
use std::process::Command;
use tests::need;

/// With the library of the same name behind the milliseconds.
pub(super) fn with_library(program: &Path) -> Result<Command, String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut command = Command::new(program);
    command.arg(SPIN_MS).arg(program.with_file_name(format!("lib{name}.so")));
    Ok(command)
}

/// A copy, because the program takes its own file away.
pub(super) fn copied(program: &Path) -> Result<Command, String> {
    let folder = program.with_extension("copy");
    let copy = folder.join(program.file_name().unwrap_or_default());
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    std::fs::copy(program, &copy).map_err(|error| error.to_string())?;
    let mut command = Command::new(copy);
    command.arg(SPIN_MS);
    Ok(command)
}

/// In user, mount and PID namespaces of its own.
pub(super) fn in_namespaces(program: &Path) -> Result<Command, String> {
    let mut command = unshare()?;
    command.args(["--user", "--map-root-user", "--mount-proc"]).arg(program).arg(SPIN_MS);
    Ok(command)
}

/// In a container's root: an overlay file system with the program and its libraries, and nothing else.
pub(super) fn in_overlay(program: &Path) -> Result<Command, String> {
    const SCRIPT: &str = r#"
        mount -t tmpfs none "$2" && cd "$2" && mkdir lower upper work root lower/proc
        cp "$1" lower/
        for library in $(ldd "$1" | grep -o '/[^ ]*'); do cp --parents -L "$library" lower/; done
        mount -t overlay overlay -o "lowerdir=$2/lower,upperdir=$2/upper,workdir=$2/work" root
        mount -t proc proc root/proc
        exec chroot root "/${1##*/}" "$3""#;
    script(program, SCRIPT)
}

/// From a compressed image, as `AppImage` and snap have them.
pub(super) fn in_squashfs(program: &Path) -> Result<Command, String> {
    const SCRIPT: &str = r#"
        mount -o loop,ro "$1.squashfs" "$2"
        exec "$2/${1##*/}" "$3""#;
    let Some(tool) = need::tool("VESTA_MKSQUASHFS", "mksquashfs") else {
        return Err("without mksquashfs there is no image".to_owned());
    };
    let mut image = program.as_os_str().to_owned();
    image.push(".squashfs");
    let mut command = Command::new(tool);
    command.arg(program).arg(image).args(["-quiet", "-noappend", "-no-progress"]);
    tests::workload::run(&mut command);
    script(program, SCRIPT)
}

/// A shell in namespaces of its own: `$1` is the program, `$2` an empty folder, `$3` the milliseconds.
fn script(program: &Path, text: &str) -> Result<Command, String> {
    let folder = program.with_extension("mounted");
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let mut command = unshare()?;
    command.args(["--mount-proc", "sh", "-ec", text, "sh"]).arg(program).arg(folder).arg(SPIN_MS);
    Ok(command)
}

fn unshare() -> Result<Command, String> {
    let tool = need::tool("VESTA_UNSHARE", "unshare");
    let mut command = Command::new(tool.ok_or("without unshare there are no namespaces")?);
    command.args(["--mount", "--pid", "--fork", "--kill-child"]);
    Ok(command)
}
