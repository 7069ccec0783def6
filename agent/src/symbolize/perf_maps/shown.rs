//! How runtimes write names into a perf map, and how they are shown: the function alone, its file and line
//! beside it where the runtime put them into the name.

use crate::elf::SourceLine;
use crate::symbolize::demangle::demangle;

/// What begins the names of `CPython`'s trampolines (`Python/perf_trampoline.c`): one for each function.
const PYTHON: &[u8] = b"py::";
/// What begins the names of JavaScript functions (V8, src/logging/log.cc, `code-events.h`).
const SCRIPT: [&str; 6] =
    ["JS:", "LazyCompile:", "Function:", "InterpretedFunction:", "Eval:", "Script:"];
/// Marks of the compiler behind the tag: interpreted, baseline, Maglev, optimised, and on the way there.
const TIERS: [char; 6] = ['~', '^', '+', '*', '\'', '#'];

/// A name as a perf map has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MapName<'a>(pub(super) &'a [u8]);

impl MapName<'_> {
    /// True for a trampoline of `CPython`.
    pub(super) fn is_python(&self) -> bool {
        self.0.starts_with(PYTHON)
    }

    /// The name for people.
    pub(super) fn line(&self) -> SourceLine {
        let text = String::from_utf8_lossy(self.0);
        if let Some(rest) = text.strip_prefix("py::") {
            let (function, file) = rest.split_once(':').unwrap_or((rest, ""));
            return line(function, file, 0);
        }
        if let Some(rest) = SCRIPT.iter().find_map(|tag| text.strip_prefix(tag)) {
            return script(rest.strip_prefix(TIERS).unwrap_or(rest));
        }
        if let Some(function) = java(&text) {
            return line(&function, "", 0);
        }
        let function = demangle(&text);
        let system_name = if function == text { String::new() } else { text.into_owned() };
        SourceLine { function, system_name, file: String::new(), line: 0 }
    }
}

/// `function file:line:column`; the function of an anonymous one is empty, and so may be the file.
fn script(text: &str) -> SourceLine {
    let (function, place) = text.split_once(' ').unwrap_or((text, ""));
    // Names hold no spaces, except `get x`, `set x` and what a program defines; places often do.
    let (function, place) = match function {
        "get" | "set" | "async" => text
            .get(function.len() + 1..)
            .and_then(|rest| rest.split_once(' '))
            .map_or((function, place), |(name, place)| {
                (text.get(..function.len() + 1 + name.len()).unwrap_or(function), place)
            }),
        _ => (function, place),
    };
    let function = if function.is_empty() { "(anonymous)" } else { function };
    let number = |text: &str| text.parse::<u32>().ok();
    let numbered = place.rsplit_once(':').and_then(|(front, column)| {
        number(column)?;
        let (file, at) = front.rsplit_once(':')?;
        Some((file, number(at)?))
    });
    let (file, at) = numbered.unwrap_or((place, 0));
    line(function, file, at)
}

/// `Lorg/example/Foo;::bar` is `org.example.Foo::bar`.
fn java(text: &str) -> Option<String> {
    let (class, method) = text.strip_prefix('L')?.split_once(";::")?;
    Some(format!("{}::{method}", class.replace('/', ".")))
}

fn line(function: &str, file: &str, line: u32) -> SourceLine {
    SourceLine {
        function: function.to_owned(),
        system_name: String::new(),
        file: file.to_owned(),
        line,
    }
}

#[cfg(test)]
mod tests {
    use super::MapName;

    #[track_caller]
    fn check(written: &str, function: &str, file: &str, line: u32) {
        let shown = MapName(written.as_bytes()).line();
        assert_eq!(
            (&*shown.function, &*shown.file, shown.line),
            (function, file, line),
            "{written}"
        );
    }

    #[test]
    fn names_of_runtimes() {
        check("py::fib:/srv/app/fib.py", "fib", "/srv/app/fib.py", 0);
        check(
            "py::<module>:<frozen importlib._bootstrap>",
            "<module>",
            "<frozen importlib._bootstrap>",
            0,
        );
        check("py::odd", "odd", "", 0);
        check("JS:*fib /srv/my app/fib.js:3:13", "fib", "/srv/my app/fib.js", 3);
        check("JS:~ node:internal/main:1:1", "(anonymous)", "node:internal/main", 1);
        check("LazyCompile:~get size /srv/a.js:7:3", "get size", "/srv/a.js", 7);
        check("LazyCompile:*sort native array.js:5", "sort", "native array.js:5", 0);
        check("Function:^run", "run", "", 0);
        check("Builtin:ArrayPush", "Builtin:ArrayPush", "", 0);
        check("Lorg/example/Foo;::bar", "org.example.Foo::bar", "", 0);
        check("LinearScan", "LinearScan", "", 0);
        check("void Foo.bar(int)", "void Foo.bar(int)", "", 0);
        check("_ZN3foo3barEi", "foo::bar", "", 0);
        check(
            "instance void [app] N.T::M(int32)[OptimizedTier1]",
            "instance void [app] N.T::M(int32)[OptimizedTier1]",
            "",
            0,
        );
        check("d", "d", "", 0);
    }

    #[test]
    fn bytes_that_are_no_text() {
        assert_eq!(MapName(b"py::\xff:\xfe").line().function, "\u{fffd}");
    }
}
