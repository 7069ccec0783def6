//! From linkage names to names as people wrote them. Only what bears the prefix of a mangling is
//! touched: to a demangler the C functions `f`, `g` and `d` are `float`, `__float128` and `double`.

use crate::limits::{DEMANGLE_INPUT_BYTES_MAX, DEMANGLE_OUTPUT_BYTES_MAX, DEMANGLE_RECURSION_MAX};
use std::fmt::{self, Write};

/// Suffixes that compilers add to clones and fragments of a function (GCC's `create_*` in cgraphclones.cc,
/// LLVM's `.llvm.` of `ThinLTO`). A number may follow.
const CLONE_SUFFIXES: [&str; 8] =
    [".cold", ".constprop.", ".isra.", ".part.", ".llvm.", ".lto_priv.", ".warm", ".hot"];

/// The name to show for a linkage name. Names that are too long or too deep are shown as they are.
#[must_use]
pub fn demangle(linkage_name: &str) -> String {
    let name = without_clone_suffix(linkage_name);
    if name.len() > DEMANGLE_INPUT_BYTES_MAX {
        return name.to_owned();
    }
    let demangled = if name.starts_with("_R") || is_legacy_rust(name) {
        rust(name)
    } else if name.starts_with("_Z") || name.starts_with("__Z") {
        cpp(name)
    } else {
        None
    };
    demangled.unwrap_or_else(|| name.to_owned())
}

/// The name before the first suffix of a clone, for what has one.
fn without_clone_suffix(name: &str) -> &str {
    let cut = CLONE_SUFFIXES.iter().filter_map(|suffix| name.find(suffix)).min();
    match cut {
        Some(at) if at > 0 => name.get(..at).unwrap_or(name),
        _ => name,
    }
}

/// Rust's first mangling: a C++ name that ends in `17h`, 16 hex digits and `E`.
fn is_legacy_rust(name: &str) -> bool {
    let hash = name.strip_suffix('E').and_then(|name| name.get(name.len().checked_sub(19)?..));
    hash.is_some_and(|hash| {
        hash.starts_with("17h") && hash.bytes().skip(3).all(|byte| byte.is_ascii_hexdigit())
    })
}

fn rust(name: &str) -> Option<String> {
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    let mut shown = Bounded(String::new());
    // The alternate form leaves the hash out.
    write!(shown, "{demangled:#}").ok()?;
    Some(shown.0)
}

fn cpp(name: &str) -> Option<String> {
    let options = cpp_demangle::ParseOptions::default().recursion_limit(DEMANGLE_RECURSION_MAX);
    let symbol = cpp_demangle::BorrowedSymbol::with_tail_and_options(name.as_bytes(), &options);
    let (symbol, tail) = symbol.ok()?;
    if !tail.is_empty() {
        return None;
    }
    // Neither parameters nor the type of what is returned: a graph shows functions, not prototypes, and in
    // C++ these are longer than the name (Node.js: a quarter of all names on the wire). Overloads share a
    // name; their addresses do not.
    let options = cpp_demangle::DemangleOptions::new()
        .no_params()
        .no_return_type()
        .recursion_limit(DEMANGLE_RECURSION_MAX);
    let mut shown = Bounded(String::new());
    symbol.structured_demangle(&mut shown, &options).ok()?;
    Some(shown.0)
}

/// Text that refuses to grow beyond the limit: short mangled names can stand for huge ones, since
/// parts may refer back to parts.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len().saturating_add(text.len()) > DEMANGLE_OUTPUT_BYTES_MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::demangle;
    use crate::limits::DEMANGLE_OUTPUT_BYTES_MAX;

    #[track_caller]
    fn check(linkage_name: &str, shown: &str) {
        assert_eq!(demangle(linkage_name), shown);
    }

    #[test]
    fn names_are_shown_as_written() {
        check("f", "f");
        check("g", "g");
        check("d", "d");
        check("main", "main");
        check("_start", "_start");
        check("Znwm", "Znwm");
        check("_Znwm", "operator new");
        check("_ZN3foo3barEi", "foo::bar");
        check(
            "_ZNSt6vectorIiSaIiEE9push_backERKi",
            "std::vector<int, std::allocator<int> >::push_back",
        );
        check(
            "_ZN4core3fmt9Formatter9write_str17h0123456789abcdefE",
            "core::fmt::Formatter::write_str",
        );
        check("_RNvC6_123foo3bar", "123foo::bar");
        check("_Z", "_Z");
        check("_Z!", "_Z!");
        check("_R", "_R");
        check("", "");
    }

    #[test]
    fn clones_show_the_function_they_come_from() {
        check("_ZN3foo3barEi.cold", "foo::bar");
        check("parse.constprop.0", "parse");
        check("parse.isra.0.cold", "parse");
        check("_ZN3foo3barEv.llvm.1234567890", "foo::bar");
        check(".cold", ".cold");
        check("a.b", "a.b");
    }

    #[test]
    fn names_that_explode_stay_mangled() {
        let mut name = String::from("_Z1fSt4pairI");
        name.push_str(&"St4pairIS0_S0_E".repeat(200));
        assert!(demangle(&name).len() <= DEMANGLE_OUTPUT_BYTES_MAX);
        let deep = format!("_Z1f{}i", "P".repeat(3000));
        assert!(demangle(&deep).len() <= DEMANGLE_OUTPUT_BYTES_MAX);
        let long = format!("_Z{}", "1".repeat(100_000));
        check(&long, &long);
    }
}
