//! Times in parameters: Unix milliseconds, RFC 3339, or relative to now.

use jiff::Timestamp;

/// A time that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a time: {detail}")]
pub struct TimeError {
    text: String,
    detail: &'static str,
}

/// Says what is understood.
pub const TIME_HINT: &str = "use Unix milliseconds (1795980000000), RFC 3339 (2026-11-29T20:00:00Z) or now-1h (units s m h d w)";

/// Longest text of a time: RFC 3339 with nanoseconds and an offset has 35 bytes.
const TIME_BYTES_MAX: usize = 64;

/// Reads a time; `now_ms` is what `now` means.
///
/// # Errors
/// The text is none of the three forms, or outside of 64 bits.
pub fn parse(text: &str, now_ms: i64) -> Result<i64, TimeError> {
    let fail = |detail| TimeError { text: text.chars().take(TIME_BYTES_MAX).collect(), detail };
    if text.len() > TIME_BYTES_MAX {
        return Err(fail("too long"));
    }
    if let Some(offset) = text.strip_prefix("now") {
        let offset_ms = relative(offset).map_err(fail)?;
        return now_ms.checked_add(offset_ms).ok_or_else(|| fail("out of range"));
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        return text.parse().map_err(|_overflow| fail("out of range"));
    }
    match text.parse::<Timestamp>() {
        Ok(time) => Ok(time.as_millisecond()),
        Err(_) if text.is_empty() => Err(fail("it is empty")),
        Err(_) => Err(fail("neither a number, nor RFC 3339, nor relative to now")),
    }
}

/// A length of time such as `90s`, `1h30m` or `1w`, in milliseconds.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_duration(text: &str) -> Result<i64, &'static str> {
    let mut rest = text;
    let mut total_ms = 0i64;
    if rest.is_empty() {
        return Err("a number and a unit (s m h d w) are missing");
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let number: i64 = match number.parse() {
            Ok(number) => number,
            Err(_) if digits == 0 => return Err("a number is missing before the unit"),
            Err(_) => return Err("out of range"),
        };
        let unit = tail.chars().next().ok_or("a unit (s m h d w) is missing")?;
        let unit_ms = match unit {
            's' => 1_000,
            'm' => 60_000,
            'h' => 3_600_000,
            'd' => 86_400_000,
            'w' => 604_800_000,
            _ => return Err("the unit must be one of s m h d w"),
        };
        let part_ms = number.checked_mul(unit_ms).ok_or("out of range")?;
        total_ms = total_ms.checked_add(part_ms).ok_or("out of range")?;
        rest = tail.get(unit.len_utf8()..).unwrap_or_default();
    }
    Ok(total_ms)
}

fn relative(offset: &str) -> Result<i64, &'static str> {
    match (offset.strip_prefix('-'), offset.strip_prefix('+')) {
        (Some(length), _) => parse_duration(length).map(|ms| -ms),
        (_, Some(length)) => parse_duration(length),
        _ if offset.is_empty() => Ok(0),
        _ => Err("after `now` comes - or +"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_795_980_000_000;

    #[test]
    fn times() {
        let rows: &[(&str, Result<i64, &str>)] = &[
            ("now", Ok(NOW_MS)),
            ("now-1h", Ok(NOW_MS - 3_600_000)),
            ("now-1h30m", Ok(NOW_MS - 5_400_000)),
            ("now+5m", Ok(NOW_MS + 300_000)),
            ("now-2w", Ok(NOW_MS - 2 * 604_800_000)),
            ("0", Ok(0)),
            ("1795980000000", Ok(1_795_980_000_000)),
            ("2026-11-29T20:00:00Z", Ok(1_795_982_400_000)),
            ("2026-11-29T21:00:00.250+01:00", Ok(1_795_982_400_250)),
            ("", Err("it is empty")),
            ("yesterday", Err("neither a number, nor RFC 3339, nor relative to now")),
            ("2026-11-29", Err("neither a number, nor RFC 3339, nor relative to now")),
            ("-5", Err("neither a number, nor RFC 3339, nor relative to now")),
            ("now 1h", Err("after `now` comes - or +")),
            ("now-", Err("a number and a unit (s m h d w) are missing")),
            ("now-h", Err("a number is missing before the unit")),
            ("now-1", Err("a unit (s m h d w) is missing")),
            ("now-1y", Err("the unit must be one of s m h d w")),
            ("now-1\u{fc}", Err("the unit must be one of s m h d w")),
            ("99999999999999999999", Err("out of range")),
            ("now-9223372036854775807w", Err("out of range")),
        ];
        for (text, expected) in rows {
            assert_eq!(parse(text, NOW_MS).map_err(|error| error.detail), *expected, "{text}");
        }
    }
}
