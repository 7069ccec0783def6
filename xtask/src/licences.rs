//! Which licences the dependencies may have: the list of deny.toml, held against every package that Cargo
//! resolves. `cargo deny check licenses bans` reads the same file where it is installed.

use crate::build::cargo;
use crate::command::output;
use crate::workspace::root;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// Fails with one line for each package whose licence is not allowed.
pub(crate) fn check() -> Result<()> {
    let rules = std::fs::read_to_string(root().join("deny.toml")).context("read deny.toml")?;
    let allowed = allowed(&rules);
    let mut metadata = cargo();
    let metadata = output(metadata.args(["metadata", "--format-version=1", "--locked"]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let refused: Vec<String> =
        packages.iter().filter_map(|package| refusal(package, &allowed)).collect();
    if !refused.is_empty() {
        bail!("licences that deny.toml does not allow:\n  {}", refused.join("\n  "));
    }
    Ok(())
}

/// The strings of `allow = [...]`.
fn allowed(rules: &str) -> Vec<&str> {
    let list = rules.split_once("\nallow = [").map_or("", |(_, rest)| rest);
    let list = list.split_once(']').map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).collect()
}

fn refusal(package: &Value, allowed: &[&str]) -> Option<String> {
    let name = package["name"].as_str().unwrap_or("?");
    match package["license"].as_str() {
        Some(expression) if satisfied(expression, allowed) => None,
        Some(expression) => Some(format!("{name}: {expression}")),
        None => Some(format!("{name}: no licence expression")),
    }
}

/// True if the SPDX expression can be met with allowed licences. `AND` binds tighter than `OR`; the old
/// `/` of Cargo means `OR`.
fn satisfied(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    any_of(&words, &mut at, allowed) && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut met = all_of(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all_of(words, at, allowed);
    }
    met
}

fn all_of(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut met = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let Some(&word) = words.get(*at) else { return false };
    *at += 1;
    if word == "(" {
        let met = any_of(words, at, allowed);
        *at += 1; // the closing bracket; a missing one leaves words over or runs past the end
        return met;
    }
    if words.get(*at) == Some(&"WITH") {
        let exception = words.get(*at + 1).copied().unwrap_or_default();
        *at += 2;
        return allowed.contains(&format!("{word} WITH {exception}").as_str());
    }
    allowed.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::{allowed, satisfied};

    #[test]
    fn expressions() {
        let check = |expression: &str, met: bool| {
            let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"];
            assert_eq!(satisfied(expression, &allowed), met, "{expression}");
        };
        check("MIT", true);
        check("GPL-2.0-only", false);
        check("MIT OR GPL-2.0-only", true);
        check("MIT AND GPL-2.0-only", false);
        check("GPL-2.0-only OR MIT AND Apache-2.0", true);
        check("(GPL-2.0-only OR MIT) AND Zlib", false);
        check("Zlib/MIT", true);
        check("Apache-2.0 WITH LLVM-exception", true);
        check("MIT WITH LLVM-exception", false);
        check("(MIT", false);
        check("", false);
    }

    #[test]
    fn list_of_deny_toml() {
        assert_eq!(
            allowed("[licenses]\nallow = [\n  \"MIT\", # why\n  \"Zlib\",\n]\n"),
            ["MIT", "Zlib"]
        );
        assert!(allowed("[licenses]\n").is_empty());
    }
}
