//! What a test needs and may not have: root, tools, the corpus. A missing need is printed as
//! `skipped: <reason>`, which `cargo xtask test` shows and counts.

use std::path::PathBuf;

/// Says why the test does not run.
pub fn skip(reason: &str) {
    println!("skipped: {reason}");
}

/// A figure of a test that passed, for the reader of its run.
pub fn figure(text: &str) {
    println!("figure: {text}");
}

/// True if real BPF can be used: root, with the rights of the initial user namespace.
#[must_use]
pub fn bpf() -> bool {
    if !rustix::process::geteuid().is_root() {
        skip("not root: real BPF programs need it");
        return false;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    // CAP_SYS_ADMIN (21), CAP_PERFMON (38) and CAP_BPF (39), include/uapi/linux/capability.h.
    let wanted = 1 << 21 | 1 << 38 | 1 << 39;
    if capabilities.unwrap_or(0) & wanted != wanted {
        skip("root without CAP_BPF, CAP_PERFMON or CAP_SYS_ADMIN");
        return false;
    }
    true
}

/// The tool that `cargo xtask test` found and named in `variable`, else the one in PATH.
#[must_use]
pub fn tool(variable: &str, name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = named.or_else(|| {
        std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
    });
    if found.is_none() {
        skip(&format!(
            "no {name}: {variable} is not set (cargo xtask test sets it) and PATH has none"
        ));
    }
    found
}

/// The folder of foreign profiles.
#[must_use]
pub fn corpus() -> Option<PathBuf> {
    let folder = std::env::var_os("VESTA_CORPUS").map(PathBuf::from);
    if folder.is_none() {
        skip("VESTA_CORPUS does not name the folder of foreign profiles");
    }
    folder
}
