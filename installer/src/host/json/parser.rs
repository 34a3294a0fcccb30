//! The grammar of RFC 8259, byte by byte.

use super::{DEEPEST, JsonError, JsonKind, JsonValue, Member};

pub(super) struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
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

    pub(super) fn end(&mut self) -> Result<(), JsonError> {
        self.space();
        if self.at == self.bytes.len() { Ok(()) } else { self.broken("unexpected text after the value") }
    }

    pub(super) fn value(&mut self, depth: usize) -> Result<JsonValue, JsonError> {
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
