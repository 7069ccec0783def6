//! `service.name` by the rules of OpenTelemetry: `OTEL_SERVICE_NAME`, else `service.name` in
//! `OTEL_RESOURCE_ATTRIBUTES`, else the unit or container, else the executable. The environment of a
//! process is secret: two variables are looked at, nothing of it is kept or logged.

use crate::limits::{ENVIRON_BYTES_MAX, ENVIRON_VALUE_BYTES_MAX, SERVICE_NAME_BYTES_MAX};
use std::io::{self, BufRead, Read as _};

/// Service of every kernel thread.
pub const KERNEL_SERVICE: &str = "kernel";

/// The service name that an environment (variables separated by NUL) asks for.
///
/// # Errors
/// When reading fails; what is longer than the limits is passed over.
pub fn name_in_environment(environment: impl BufRead) -> io::Result<Option<String>> {
    let mut environment = environment.take(ENVIRON_BYTES_MAX);
    let mut from_attributes = None;
    let mut variable = Vec::new();
    loop {
        variable.clear();
        // A variable of any length is read at most up to the limit, the rest of it is passed over.
        let limit = u64::try_from(ENVIRON_VALUE_BYTES_MAX).unwrap_or(u64::MAX);
        let read = environment.by_ref().take(limit).read_until(0, &mut variable)?;
        if read == 0 {
            return Ok(from_attributes);
        }
        if variable.last() == Some(&0) {
            variable.pop();
        } else if read == ENVIRON_VALUE_BYTES_MAX {
            skip_variable(&mut environment)?;
            continue;
        }
        if let Some(value) = variable.strip_prefix(b"OTEL_SERVICE_NAME=") {
            if let Some(name) = clean(value) {
                return Ok(Some(name));
            }
        } else if let Some(value) = variable.strip_prefix(b"OTEL_RESOURCE_ATTRIBUTES=") {
            from_attributes = name_in_attributes(value);
        }
    }
}

fn skip_variable(environment: &mut impl BufRead) -> io::Result<()> {
    loop {
        let available = environment.fill_buf()?;
        let length = available.len();
        if length == 0 {
            return Ok(());
        }
        match available.iter().position(|&byte| byte == 0) {
            Some(at) => {
                environment.consume(at + 1);
                return Ok(());
            }
            None => environment.consume(length),
        }
    }
}

/// `service.name` in `key=value,key=value`; values are percent-encoded as in W3C Baggage
/// (OpenTelemetry specification, resource SDK).
fn name_in_attributes(attributes: &[u8]) -> Option<String> {
    attributes.split(|&byte| byte == b',').find_map(|pair| {
        let at = pair.iter().position(|&byte| byte == b'=')?;
        let (key, value) = (pair.get(..at)?, pair.get(at + 1..)?);
        (key.trim_ascii() == b"service.name").then(|| clean(&percent_decoded(value)))?
    })
}

fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let digit = |place: usize| {
            text.get(place).and_then(|&byte| char::from(byte).to_digit(16)).and_then(|digit| {
                u8::try_from(digit).ok() // below 16
            })
        };
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(high * 16 + low);
                at += 3;
            }
            _ => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    decoded
}

/// Text without control characters and outer blanks, within the limit; nothing if nothing is left.
fn clean(value: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(value);
    let mut name: String =
        text.trim().chars().map(|c| if c.is_control() { '_' } else { c }).collect();
    if name.len() > SERVICE_NAME_BYTES_MAX {
        let end = (0..=SERVICE_NAME_BYTES_MAX).rev().find(|&at| name.is_char_boundary(at));
        name.truncate(end.unwrap_or(0));
    }
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::name_in_environment;

    #[track_caller]
    fn check(environment: &str, expected: Option<&str>) {
        let found = name_in_environment(environment.as_bytes()).unwrap();
        assert_eq!(found.as_deref(), expected, "{environment:?}");
    }

    #[test]
    fn names_by_precedence() {
        check("", None);
        check("PATH=/bin\0HOME=/\0", None);
        check("OTEL_SERVICE_NAME=shop\0", Some("shop"));
        check("OTEL_SERVICE_NAME=shop", Some("shop"));
        check("OTEL_RESOURCE_ATTRIBUTES=service.name=a\0OTEL_SERVICE_NAME=b\0", Some("b"));
        check("OTEL_SERVICE_NAME=b\0OTEL_RESOURCE_ATTRIBUTES=service.name=a\0", Some("b"));
        check("OTEL_RESOURCE_ATTRIBUTES=x=1, service.name = my%20shop ,y=2\0", Some("my shop"));
        check("OTEL_SERVICE_NAME=\0OTEL_RESOURCE_ATTRIBUTES=service.name=a\0", Some("a"));
        check("OTEL_RESOURCE_ATTRIBUTES=service.namespace=a\0", None);
        check("XOTEL_SERVICE_NAME=a\0", None);
        check("OTEL_SERVICE_NAME=a\nb\0", Some("a_b"));
        check("OTEL_RESOURCE_ATTRIBUTES=service.name=50%\0", Some("50%"));
    }

    #[test]
    fn long_variables_are_passed_over() {
        let long = "x".repeat(100_000);
        check(&format!("A={long}\0OTEL_SERVICE_NAME=b\0"), Some("b"));
        check(&format!("OTEL_SERVICE_NAME={long}\0"), None);
        let longer_than_a_name = "ä".repeat(200);
        let name =
            name_in_environment(format!("OTEL_SERVICE_NAME={longer_than_a_name}\0").as_bytes())
                .unwrap()
                .unwrap();
        assert_eq!(name, "ä".repeat(127), "cut at a character, within 255 bytes");
        let huge = format!("A={}\0OTEL_SERVICE_NAME=late\0", "y".repeat(2 << 20));
        check(&huge, None);
    }
}
