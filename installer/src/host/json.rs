//! A JSON parser that keeps each value's position in the file, and is as strict as Go's decoder. It is not for
//! computing with the values.
//!
//! Go's decoder decides whether a runtime loads a file, so its grammar counts: RFC 8259, no comments, no
//! trailing commas, strings of any bytes. serde_json's `RawValue` refuses strings that are not UTF-8, which Go
//! accepts; jsonc-parser accepts comments, which Go refuses; and neither reports where a member is.

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
    let mut parser = Parser::new(bytes);
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

/// The grammar of RFC 8259, byte by byte.
struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn broken<T>(&self, what: &'static str) -> Result<T, JsonError> {
        let what = if self.at >= self.bytes.len() { "unexpected end of file" } else { what };
        Err(self.error(self.at, what))
    }

    fn error(&self, at: usize, what: &'static str) -> JsonError {
        let before = self.bytes.get(..at).unwrap_or(self.bytes);
        let line = before.split(|byte| *byte == b'\n');
        let column = line.clone().next_back().map_or(0, <[u8]>::len) + 1;
        JsonError { line: line.count(), column, what }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn end(&mut self) -> Result<(), JsonError> {
        self.space();
        if self.at == self.bytes.len() { Ok(()) } else { self.broken("unexpected text after the value") }
    }

    fn value(&mut self, depth: usize) -> Result<JsonValue, JsonError> {
        self.space();
        if depth > DEEPEST {
            return self.broken("nesting is too deep");
        }
        let start = self.at;
        let kind = match self.peek() {
            Some(b'{') => self.object(depth)?,
            Some(b'[') => self.array(depth)?,
            Some(b'"') => JsonKind::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.word("true", JsonKind::Bool(true))?,
            Some(b'f') => self.word("false", JsonKind::Bool(false))?,
            Some(b'n') => self.word("null", JsonKind::Null)?,
            _ => return self.broken("expected a value"),
        };
        Ok(JsonValue { span: start..self.at, kind })
    }

    fn word(&mut self, word: &str, kind: JsonKind) -> Result<JsonKind, JsonError> {
        let end = self.at + word.len();
        if self.bytes.get(self.at..end) == Some(word.as_bytes()) {
            self.at = end;
            return Ok(kind);
        }
        self.broken("expected a value")
    }

    fn object(&mut self, depth: usize) -> Result<JsonKind, JsonError> {
        let mut members = Vec::new();
        self.at += 1;
        self.space();
        if self.eat(b'}') {
            return Ok(JsonKind::Object(members));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return self.broken("expected a member name in double quotes");
            }
            let key = self.string()?;
            self.space();
            if !self.eat(b':') {
                return self.broken("expected a colon");
            }
            members.push(Member { key, value: self.value(depth + 1)? });
            self.space();
            if self.eat(b'}') {
                return Ok(JsonKind::Object(members));
            }
            if !self.eat(b',') {
                return self.broken("expected a comma or the closing bracket");
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<JsonKind, JsonError> {
        let mut elements = Vec::new();
        self.at += 1;
        self.space();
        if self.eat(b']') {
            return Ok(JsonKind::Array(elements));
        }
        loop {
            elements.push(self.value(depth + 1)?);
            self.space();
            if self.eat(b']') {
                return Ok(JsonKind::Array(elements));
            }
            if !self.eat(b',') {
                return self.broken("expected a comma or the closing bracket");
            }
        }
    }

    fn number(&mut self) -> Result<JsonKind, JsonError> {
        let start = self.at;
        self.eat(b'-');
        if !self.eat(b'0') {
            self.digits()?;
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            let _ = self.eat(b'+') || self.eat(b'-');
            self.digits()?;
        }
        let text = self.bytes.get(start..self.at).and_then(|text| std::str::from_utf8(text).ok());
        match text.and_then(|text| text.parse::<f64>().ok()) {
            Some(number) if number.is_finite() => Ok(JsonKind::Number),
            _ => Err(self.error(start, "the number is out of range")),
        }
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { self.broken("expected a digit") } else { Ok(()) }
    }

    fn string(&mut self) -> Result<String, JsonError> {
        let mut decoded = Vec::new();
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(String::from_utf8_lossy(&decoded).into_owned());
                }
                Some(b'\\') => self.escape(&mut decoded)?,
                Some(byte) if byte >= 0x20 => {
                    decoded.push(byte);
                    self.at += 1;
                }
                _ => return self.broken("control character in a string"),
            }
        }
    }

    fn escape(&mut self, decoded: &mut Vec<u8>) -> Result<(), JsonError> {
        self.at += 1;
        let byte = match self.peek() {
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(byte @ (b'"' | b'\\' | b'/')) => byte,
            Some(b'u') => return self.unicode(decoded),
            _ => return self.broken("unknown escape sequence"),
        };
        self.at += 1;
        decoded.push(byte);
        Ok(())
    }

    /// Decodes `\uXXXX`, alone or as a surrogate pair; half a pair is U+FFFD.
    fn unicode(&mut self, decoded: &mut Vec<u8>) -> Result<(), JsonError> {
        let first = self.hex()?;
        let mut code = first;
        if (0xd800..0xdc00).contains(&first) && self.bytes.get(self.at..self.at + 2) == Some(b"\\u") {
            let here = self.at;
            self.at += 1;
            let second = self.hex()?;
            if (0xdc00..0xe000).contains(&second) {
                code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
            } else {
                self.at = here;
            }
        }
        let letter = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        decoded.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }

    /// Reads the four digits after the `u` at the current position.
    fn hex(&mut self) -> Result<u32, JsonError> {
        self.at += 1;
        let mut code = 0;
        for _ in 0..4 {
            let Some(digit) = self.peek().and_then(|byte| char::from(byte).to_digit(16)) else {
                return self.broken("expected a hexadecimal digit");
            };
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
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
