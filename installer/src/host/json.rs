//! A JSON parser that keeps each value's position in the file, and is as strict as Go's decoder. It is not for
//! computing with the values.
//!
//! Go's decoder decides whether a runtime loads a file, so its grammar counts: RFC 8259, no comments, no
//! trailing commas, strings of any bytes. serde_json's `RawValue` refuses strings that are not UTF-8, which Go
//! accepts; jsonc-parser accepts comments, which Go refuses; and neither reports where a member is.

mod parser;

use std::ops::Range;

/// The deepest nesting that is accepted: no conf file needs more, and the parser must not run out of stack.
const DEEPEST: usize = 128;

/// A value and its position in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonValue {
    /// The bytes of the value, without white space around it.
    pub span: Range<usize>,
    pub kind: JsonKind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum JsonKind {
    /// The members in the order of the file, duplicates included.
    Object(Vec<Member>),
    Array(Vec<JsonValue>),
    /// The decoded string; bytes that are not UTF-8 become U+FFFD, as in Go.
    Text(String),
    /// A number, whose text stays in the file.
    Number,
    Bool(bool),
    Null,
}

/// A member of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    pub key: String,
    pub value: JsonValue,
}

/// The bytes are not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not JSON: {what} at line {line}, column {column}")]
pub struct JsonError {
    pub line: usize,
    /// In bytes; the first one is 1.
    pub column: usize,
    /// What was expected, or is wrong there.
    pub what: &'static str,
}

/// Parses exactly one value, with nothing but white space around it.
pub fn parse(bytes: &[u8]) -> Result<JsonValue, JsonError> {
    let mut parser = parser::Parser::new(bytes);
    let node = parser.value(0)?;
    parser.end()?;
    Ok(node)
}

/// The bytes of a span; empty if it exceeds `bytes`.
#[must_use]
pub fn text<'a>(bytes: &'a [u8], span: &Range<usize>) -> &'a [u8] {
    bytes.get(span.clone()).unwrap_or_default()
}

impl JsonValue {
    /// The member of this name; of duplicates the last, as in every decoder.
    #[must_use]
    pub fn member(&self, key: &str) -> Option<&JsonValue> {
        self.members(|name| name == key).last()
    }

    /// The member of this name as Go fills a struct's string: the case of ASCII letters is ignored, and null changes
    /// nothing.
    #[must_use]
    pub fn field(&self, key: &str) -> Option<&JsonValue> {
        self.fields(key).filter(|value| !value.is_null()).last()
    }

    /// The members with which Go fills the field of a struct, in the order of the file.
    pub fn fields(&self, key: &str) -> impl Iterator<Item = &JsonValue> {
        self.members(move |name| name.eq_ignore_ascii_case(key))
    }

    fn members(&self, is_it: impl Fn(&str) -> bool) -> impl Iterator<Item = &JsonValue> {
        let members = match &self.kind {
            JsonKind::Object(members) => members.as_slice(),
            _ => &[],
        };
        members.iter().filter(move |member| is_it(&member.key)).map(|member| &member.value)
    }

    /// The string, if it is one.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match &self.kind {
            JsonKind::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The elements, if it is an array.
    #[must_use]
    pub fn as_array(&self) -> Option<&[JsonValue]> {
        match &self.kind {
            JsonKind::Array(elements) => Some(elements),
            _ => None,
        }
    }

    #[must_use]
    pub fn is_object(&self) -> bool {
        matches!(self.kind, JsonKind::Object(_))
    }

    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self.kind, JsonKind::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(bytes: &[u8]) -> bool {
        parse(bytes).is_ok()
    }

    #[test]
    fn the_parser_is_as_strict_as_go() {
        for bad in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "// c\n{}",
            "{}x",
            "'a'",
            "01",
            "1.",
            ".5",
            "1e",
            "-",
            "nul",
            "\"\t\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\u{feff}{}",
            "{1:2}",
            "[1 2]",
            "1e999",
            "+1",
            "NaN",
            "{}\0",
        ] {
            assert!(!whole(bad.as_bytes()), "{bad:?}");
        }
        for good in ["null", " {} ", "[1,-0.5e+3,0]", "\"\\ud800\"", "{\"a\":{\"b\":[]}}\r\n\t", "1E9"] {
            assert!(whole(good.as_bytes()), "{good:?}");
        }
        assert!(whole(b"{\"name\":\"caf\xe9\"}"), "Go accepts bytes that are not UTF-8");
    }

    #[test]
    fn an_error_names_line_and_column() {
        let refused = |text: &str| parse(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(refused(""), "not JSON: unexpected end of file at line 1, column 1");
        assert_eq!(refused("{\n  \"a\": x\n}"), "not JSON: expected a value at line 2, column 8");
    }

    #[test]
    fn escapes_are_decoded() {
        let node = parse(br#""\u0074y\/\n\ud83d\ude00\ud800z""#).unwrap();
        assert_eq!(node.as_text(), Some("ty/\n\u{1f600}\u{fffd}z"));
    }

    #[test]
    fn too_deep_nesting_is_an_error_and_not_a_crash() {
        assert!(!whole("[".repeat(100_000).as_bytes()));
        assert!(whole(format!("{}{}", "[".repeat(100), "]".repeat(100)).as_bytes()));
    }

    #[test]
    fn of_duplicate_members_the_last_counts() {
        let node = parse(br#"{"type":"a","TYPE":"c","type":"b"}"#).unwrap();
        assert_eq!(node.member("type").and_then(JsonValue::as_text), Some("b"));
        assert_eq!(node.field("Type").and_then(JsonValue::as_text), Some("b"));
    }

    proptest! {
        #[test]
        fn serde_json_accepts_the_same_texts(text in "[\\[\\]{},:\"a0-9.eE+\\- \\\\tn]{0,12}") {
            let theirs = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            prop_assert_eq!(whole(text.as_bytes()), theirs);
        }
    }
}
