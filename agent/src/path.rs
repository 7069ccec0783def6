//! Paths as the kernel states them, and the names that are shown for them: the one rule of the agent.
//! Opening files is the affair of [`crate::process`].

use std::borrow::Cow;

/// What the kernel appends to the path of a file whose name is gone (`fs/d_path.c`, Linux 6.18). A file
/// may be called so too: only who can look at the file knows which it is.
const REMARK: &[u8] = b" (deleted)";
/// How the path of memory from `memfd_create` begins; what follows is no path, slashes included.
const MEMORY: &str = "/memfd:";

/// True if the path ends as the kernel ends the path of a file without a name.
#[must_use]
pub fn has_remark(path: &[u8]) -> bool {
    path.ends_with(REMARK)
}

/// The path without the kernel's remark, once.
#[must_use]
pub fn without_remark(path: &[u8]) -> &[u8] {
    path.strip_suffix(REMARK).unwrap_or(path)
}

/// The path as text, without the kernel's remark.
#[must_use]
pub fn shown(path: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(without_remark(path))
}

/// The name of the file at a path (without remark): its last component, for memory all of its name.
#[must_use]
pub fn file_name(path: &str) -> &str {
    if path.starts_with(MEMORY) {
        return path.trim_start_matches('/');
    }
    path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::{file_name, has_remark, shown, without_remark};

    #[test]
    fn names_of_files() {
        for (path, name) in [
            ("/usr/bin/nginx", "nginx"),
            ("/opt/a b/c", "c"),
            ("/opt/report (deleted)", "report (deleted)"),
            ("/usr/bin/", "bin"),
            ("/memfd:jit", "memfd:jit"),
            ("/memfd:runc_cloned:/proc/self/exe", "memfd:runc_cloned:/proc/self/exe"),
            ("[vdso]", "[vdso]"),
            ("relative", "relative"),
            ("/", "/"),
            ("", ""),
        ] {
            assert_eq!(file_name(path), name, "{path}");
        }
    }

    #[test]
    fn the_remark_goes_once() {
        assert_eq!(without_remark(b"/a (deleted) (deleted)"), b"/a (deleted)");
        assert_eq!(without_remark(b"/a(deleted)"), b"/a(deleted)");
        assert!(has_remark(b"/a (deleted)") && !has_remark(b"/a (deleted)/b"));
        assert_eq!(shown(b"/memfd:x (deleted)"), "/memfd:x");
    }
}
