//! Selectors: `{service="x",pod=~"a.*","process.pid"!="12"}` to matchers. The grammar is PromQL's, with
//! the braces optional and dots allowed in bare names.

use crate::limits::{MATCHERS_MAX, REGEX_BYTES_MAX, SELECTOR_BYTES_MAX};
use crate::query::{MatchOp, Matcher};
use regex::{Regex, RegexBuilder};

/// A selector that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filter, at byte {at}: {detail}")]
pub struct SelectorError {
    /// Position in the text, in bytes.
    pub at: usize,
    /// What was expected or is wrong.
    pub detail: String,
}

/// Says what is understood.
pub const SELECTOR_HINT: &str = r#"write it like {service="checkout",pod=~"web-.*","process.pid"="12"}; operators are = != =~ !~"#;

/// The label that an OpenTelemetry attribute is known by, else the name itself.
#[must_use]
pub fn label_name(name: &str) -> &str {
    match name {
        "service.name" => "service",
        "host.name" => "host",
        "container.id" => "container",
        "k8s.pod.name" => "pod",
        "process.executable.name" => "executable",
        other => other,
    }
}

/// Reads a selector; an empty one matches everything.
///
/// # Errors
/// Where the text departs from the grammar, or exceeds a limit.
pub fn parse(text: &str) -> Result<Vec<Matcher>, SelectorError> {
    let mut parser = Parser { text, at: 0 };
    if text.len() > SELECTOR_BYTES_MAX {
        return Err(parser.error(format!("longer than {SELECTOR_BYTES_MAX} bytes")));
    }
    let braced = parser.eat("{");
    let mut matchers = Vec::new();
    loop {
        if parser.is_at_end() || (braced && parser.looking_at("}")) {
            break;
        }
        if matchers.len() >= MATCHERS_MAX {
            return Err(parser.error(format!("more than {MATCHERS_MAX} matchers")));
        }
        matchers.push(parser.matcher()?);
        if !parser.eat(",") {
            break;
        }
    }
    if braced && !parser.eat("}") {
        return Err(parser.error("expected `,` or `}`"));
    }
    if !parser.is_at_end() {
        return Err(parser.error(if braced { "nothing may follow `}`" } else { "expected `,`" }));
    }
    Ok(matchers)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn error(&self, detail: impl Into<String>) -> SelectorError {
        SelectorError { at: self.at, detail: detail.into() }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_space();
        self.rest().is_empty()
    }

    fn looking_at(&mut self, token: &str) -> bool {
        self.skip_space();
        self.rest().starts_with(token)
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.looking_at(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn matcher(&mut self) -> Result<Matcher, SelectorError> {
        let name = self.name()?;
        self.skip_space();
        let Some(op) = ["=~", "!~", "!=", "="].into_iter().find(|op| self.eat(op)) else {
            return Err(self.error(format!("expected = != =~ or !~ after `{name}`")));
        };
        self.skip_space();
        let value_at = self.at;
        let Some(value) = self.quoted()? else {
            return Err(self.error("expected a value in quotes"));
        };
        let regex =
            |value: &str| anchored(value).map_err(|detail| SelectorError { at: value_at, detail });
        let op = match op {
            "=" => MatchOp::Equal(value),
            "!=" => MatchOp::NotEqual(value),
            "=~" => MatchOp::Regex(regex(&value)?),
            _ => MatchOp::NotRegex(regex(&value)?),
        };
        Ok(Matcher { name: label_name(&name).to_owned(), op })
    }

    fn name(&mut self) -> Result<String, SelectorError> {
        self.skip_space();
        let start = self.at;
        if let Some(name) = self.quoted()? {
            if name.is_empty() {
                return Err(SelectorError {
                    at: start,
                    detail: "a label name is empty".to_owned(),
                });
            }
            return Ok(name);
        }
        let is_name = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '.');
        let rest = self.rest();
        let name =
            rest.get(..rest.find(|char| !is_name(char)).unwrap_or(rest.len())).unwrap_or_default();
        if name.is_empty() || name.starts_with(|char: char| char.is_ascii_digit() || char == '.') {
            return Err(self.error("expected a label name"));
        }
        self.at += name.len();
        Ok(name.to_owned())
    }

    /// A quoted string with its escapes read, or nothing if there is no quote here.
    fn quoted(&mut self) -> Result<Option<String>, SelectorError> {
        let start = self.at;
        let Some(quote) =
            self.rest().chars().next().filter(|char| matches!(char, '"' | '\'' | '`'))
        else {
            return Ok(None);
        };
        let unfinished =
            || SelectorError { at: start, detail: "this quote is not closed".to_owned() };
        self.at += 1;
        let mut value = String::new();
        loop {
            let char = self.rest().chars().next().ok_or_else(unfinished)?;
            let char_at = self.at;
            self.at += char.len_utf8();
            if char == quote {
                return Ok(Some(value));
            }
            if char != '\\' || quote == '`' {
                value.push(char);
                continue;
            }
            let escaped = self.rest().chars().next().ok_or_else(unfinished)?;
            self.at += escaped.len_utf8();
            value.push(match escaped {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                '\\' | '"' | '\'' => escaped,
                other => {
                    return Err(SelectorError {
                        at: char_at,
                        detail: format!(
                            "unknown escape `\\{other}`; write `\\\\{other}` for a backslash, or quote with backticks"
                        ),
                    });
                }
            });
        }
    }
}

/// Anchored at both ends, `.` matching every character, as PromQL does.
fn anchored(pattern: &str) -> Result<Regex, String> {
    let build = |pattern: &str| RegexBuilder::new(pattern).size_limit(REGEX_BYTES_MAX).build();
    let whole = format!("^(?s:{pattern})$");
    // The pattern alone first: `a)(b` is wrong, though its parentheses close inside the group.
    match build(pattern).and_then(|_| build(&whole)) {
        Ok(regex) => Ok(regex),
        Err(regex::Error::CompiledTooBig(_)) => {
            Err("the regular expression is too large".to_owned())
        }
        Err(error) => {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            Err(format!("the regular expression is wrong: {}", last.trim_start_matches("error: ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match parse(text) {
            Err(error) => format!("{} {}", error.at, error.detail),
            Ok(matchers) => matchers
                .iter()
                .map(|matcher| {
                    let (op, value) = match &matcher.op {
                        MatchOp::Equal(value) => ("=", value.as_str()),
                        MatchOp::NotEqual(value) => ("!=", value.as_str()),
                        MatchOp::Regex(regex) => ("=~", regex.as_str()),
                        MatchOp::NotRegex(regex) => ("!~", regex.as_str()),
                    };
                    format!("{}{op}{value:?}", matcher.name)
                })
                .collect::<Vec<_>>()
                .join(","),
        }
    }

    #[test]
    fn selectors() {
        let rows = [
            ("", ""),
            ("{}", ""),
            (r#"{service="x"}"#, r#"service="x""#),
            (r#"service="x""#, r#"service="x""#),
            (r#" { service = "x" , pod=~"a.*", } "#, r#"service="x",pod=~"^(?s:a.*)$""#),
            (r#"{"process.pid"="12",host!='h'}"#, r#"process.pid="12",host!="h""#),
            (r#"{service.name="x",pod!~`\d+`}"#, r#"service="x",pod!~"^(?s:\\d+)$""#),
            (r#"{thread.name="a\"b\\c\n"}"#, r#"thread.name="a\"b\\c\n""#),
            (r#"{service=""}"#, r#"service="""#),
            (r#"{service="x""#, "12 expected `,` or `}`"),
            (r#"{service="x"} y"#, "14 nothing may follow `}`"),
            (r#"{service}"#, "8 expected = != =~ or !~ after `service`"),
            (r#"{service=x}"#, "9 expected a value in quotes"),
            (r#"{service="x}"#, "9 this quote is not closed"),
            (r#"{="x"}"#, "1 expected a label name"),
            (r#"{1a="x"}"#, "1 expected a label name"),
            (r#"{""="x"}"#, "1 a label name is empty"),
            (r#"{a="x" b="y"}"#, "7 expected `,` or `}`"),
            (
                r#"{a="\d"}"#,
                "4 unknown escape `\\d`; write `\\\\d` for a backslash, or quote with backticks",
            ),
            (r#"{a=~"("}"#, "4 the regular expression is wrong: unclosed group"),
            (r#"{a=~"x)(y"}"#, "4 the regular expression is wrong: unopened group"),
            (r#"{a=~"\\w{1000}{1000}"}"#, "4 the regular expression is too large"),
            ("{\u{e9}=\"x\"}", "1 expected a label name"),
        ];
        for (text, expected) in rows {
            assert_eq!(shown(text), expected, "{text}");
        }
        let many = r#"a="b","#.repeat(MATCHERS_MAX + 1);
        assert!(shown(&many).ends_with("more than 32 matchers"));
        assert!(shown(&"x".repeat(SELECTOR_BYTES_MAX + 1)).ends_with("longer than 4096 bytes"));
    }

    #[test]
    fn regexes_match_whole_values() {
        let matchers = parse(r#"{a=~"x|y"}"#).unwrap();
        let MatchOp::Regex(regex) = &matchers[0].op else { panic!("not a regex") };
        for (value, expected) in
            [("x", true), ("y", true), ("xy", false), ("ax", false), ("x\n", false)]
        {
            assert_eq!(regex.is_match(value), expected, "{value:?}");
        }
    }
}
