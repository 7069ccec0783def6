//! Query parameters of the read routes. Unknown and repeated ones are errors: a misspelt `form=now-1h`
//! would silently ask another question.

use super::error::ApiError;
use super::selector::{self, SELECTOR_HINT};
use super::time::{self, TIME_HINT};
use crate::ingest::receiver::now_ms;
use crate::profile::ProjectName;
use crate::query::{Selection, TimeRange};
use std::str::FromStr;

/// Bytes of a profile type's id or a label's name.
const NAME_BYTES_MAX: usize = 1_024;

/// The parameters of one request, checked against the names that its route knows.
#[derive(Clone, Debug)]
pub(super) struct Params {
    pairs: Vec<(String, String)>,
    pub(super) now_ms: i64,
}

impl Params {
    pub(super) fn new(pairs: Vec<(String, String)>, known: &[&str]) -> Result<Self, ApiError> {
        for (at, (name, _)) in pairs.iter().enumerate() {
            if !known.contains(&&**name) {
                let shown: String = name.chars().take(40).collect();
                return Err(ApiError::parameter(format!("unknown parameter `{shown}`"))
                    .hint(format!("this route knows: {}", known.join(", "))));
            }
            if pairs.iter().take(at).any(|(earlier, _)| earlier == name) {
                return Err(ApiError::parameter(format!("parameter `{name}` is given twice")));
            }
        }
        Ok(Self { pairs, now_ms: now_ms() })
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// A number within `min..=max`, or `default`.
    pub(super) fn number<N>(&self, name: &str, default: N, min: N, max: N) -> Result<N, ApiError>
    where
        N: FromStr + PartialOrd + std::fmt::Display,
    {
        let Some(text) = self.text(name) else { return Ok(default) };
        match text.parse::<N>() {
            Ok(number) if number >= min && number <= max => Ok(number),
            _ => Err(ApiError::parameter(format!("`{name}` must be a number from {min} to {max}"))),
        }
    }

    fn time(&self, name: &str, default: &str) -> Result<i64, ApiError> {
        let text = self.text(name).unwrap_or(default);
        time::parse(text, self.now_ms)
            .map_err(|error| ApiError::parameter(format!("`{name}`: {error}")).hint(TIME_HINT))
    }

    pub(super) fn range(&self) -> Result<TimeRange, ApiError> {
        let range =
            TimeRange { from_ms: self.time("from", "now-1h")?, to_ms: self.time("to", "now")? };
        if range.from_ms >= range.to_ms {
            return Err(ApiError::parameter("`from` must be before `to`")
                .hint("ranges are half open: from belongs to it, to does not"));
        }
        // Far beyond any clock; keeps sums of times within 64 bits.
        let widest = i64::MAX / 4;
        if range.from_ms < -widest || range.to_ms > widest {
            return Err(ApiError::parameter("`from` and `to` are out of range").hint(TIME_HINT));
        }
        Ok(range)
    }

    pub(super) fn name<'a>(&'a self, name: &str, default: &'a str) -> Result<&'a str, ApiError> {
        let text = self.text(name).unwrap_or(default);
        if text.is_empty() || text.len() > NAME_BYTES_MAX {
            return Err(ApiError::parameter(format!(
                "`{name}` must have 1 to {NAME_BYTES_MAX} bytes"
            )));
        }
        Ok(text)
    }

    pub(super) fn selection(&self, project: ProjectName) -> Result<Selection, ApiError> {
        let matchers = selector::parse(self.text("filter").unwrap_or_default())
            .map_err(|error| ApiError::parameter(error.to_string()).hint(SELECTOR_HINT))?;
        let profile_type = self.name("type", "cpu")?.to_owned();
        Ok(Selection { project, profile_type, range: self.range()?, matchers })
    }
}
