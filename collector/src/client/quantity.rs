//! Values for people: time, bytes, counts, shares.

/// A value with a readable unit.
pub(super) fn quantity(value: i64, unit: &str) -> String {
    match unit {
        "nanoseconds" => scaled(value, &[(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")]),
        "bytes" => scaled(
            value,
            &[(1_073_741_824.0, "GiB"), (1_048_576.0, "MiB"), (1_024.0, "KiB"), (1.0, "B")],
        ),
        _ => value.to_string(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn scaled(value: i64, units: &[(f64, &str)]) -> String {
    let number = value as f64;
    let fits = units.iter().find(|(size, _)| number.abs() >= *size);
    match fits.or(units.last()) {
        Some((size, unit)) => format!("{:.2} {unit}", number / size),
        None => value.to_string(),
    }
}

/// A share of a total, in percent.
#[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
pub(super) fn percent(value: i64, total: i64) -> f64 {
    if total == 0 { 0.0 } else { 100.0 * value as f64 / total as f64 }
}

/// Control characters, and those that turn the direction of text, made visible: names come from programs
/// that may be hostile, and terminals obey them.
pub(super) fn harmless(text: &str) -> String {
    let hostile = |char: char| {
        char.is_control()
            || matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.chars().any(hostile) {
        return text.to_owned();
    }
    text.chars()
        .map(
            |char| if hostile(char) { char.escape_unicode().to_string() } else { char.to_string() },
        )
        .collect()
}
