//! Tables of README.md that a test run makes.

use crate::binary::repository;

/// Writes `table` between two lines of README.md, if `VESTA_BLESS` is set.
///
/// # Panics
/// If README.md has no place for it.
pub fn bless(begin: &str, end: &str, table: &str) {
    if std::env::var_os("VESTA_BLESS").is_none() {
        return;
    }
    let file = repository().join("README.md");
    let text = std::fs::read_to_string(&file).expect("README.md");
    let (before, rest) = text.split_once(begin).expect("README.md has a place for the table");
    let (_, after) = rest.split_once(end).expect("README.md says where the table ends");
    std::fs::write(&file, format!("{before}{begin}\n{table}{end}{after}"))
        .expect("README.md can be written");
}
