//! Our entry in a conflist: one JSON object with a type, printed in the layout of its file.

use std::ops::Range;

use crate::host::json::{self, JsonError, JsonKind, JsonValue, Member};

/// A plugin's entry: its members keep their order, and numbers keep their digits.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    text: Vec<u8>,
    tree: JsonValue,
    plugin: String,
}

/// Why bytes are not a plugin's entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    #[error("the plugin's configuration cannot be parsed")]
    NotJson(#[from] JsonError),
    #[error("the plugin's configuration is not a JSON object")]
    NotAnObject,
    /// A runtime finds the program by its type.
    #[error("the plugin's configuration has no \"type\" that is a program's name")]
    NoType,
}

/// The layout of the file around an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryLayout {
    /// All on one line.
    OneLine,
    /// One member per line.
    Lines {
        /// The end of a line: `\n`, or `\r\n`.
        newline: Vec<u8>,
        /// The indentation of the line on which the entry begins.
        base: Vec<u8>,
        /// The indentation that each level adds.
        unit: Vec<u8>,
    },
}

impl EntryLayout {
    /// Two spaces per level.
    #[must_use]
    pub fn plain() -> Self {
        Self::Lines { newline: b"\n".to_vec(), base: Vec::new(), unit: b"  ".to_vec() }
    }

    pub(super) fn line(&self, level: usize, out: &mut Vec<u8>) {
        if let Self::Lines { newline, base, unit } = self {
            out.extend_from_slice(newline);
            out.extend_from_slice(base);
            out.extend(unit.iter().copied().cycle().take(unit.len() * level));
        }
    }

    fn colon(&self) -> &'static [u8] {
        match self {
            Self::OneLine => b":",
            Self::Lines { .. } => b": ",
        }
    }
}

impl Entry {
    /// Reports whether it is ours with ambient mode.
    #[must_use]
    pub fn serves_ambient(&self) -> bool {
        self.tree.member("ambient").is_some_and(JsonValue::is_object)
    }

    /// Parses the JSON of one plugin.
    pub fn parse(text: &[u8]) -> Result<Self, EntryError> {
        let tree = json::parse(text)?;
        if !tree.is_object() {
            return Err(EntryError::NotAnObject);
        }
        match tree.member("type").and_then(JsonValue::as_text) {
            Some(plugin) if !plugin.is_empty() && !plugin.contains('/') => {
                Ok(Self { text: text.to_vec(), plugin: plugin.to_owned(), tree })
            }
            _ => Err(EntryError::NoType),
        }
    }

    pub fn from_value(value: &serde_json::Value) -> Result<Self, EntryError> {
        Self::parse(value.to_string().as_bytes())
    }

    /// The entry's `type`, the name of the program that a runtime runs for it.
    #[must_use]
    pub fn plugin(&self) -> &str {
        &self.plugin
    }

    /// Its JSON.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Reports whether `text` is an equal JSON value, in any layout.
    #[must_use]
    pub fn has_same_value(&self, text: &[u8]) -> bool {
        let ours = serde_json::from_slice::<serde_json::Value>(&self.text);
        let theirs = serde_json::from_slice::<serde_json::Value>(text);
        matches!((ours, theirs), (Ok(ours), Ok(theirs)) if ours == theirs)
    }

    /// Prints it in this layout.
    #[must_use]
    pub fn print(&self, layout: &EntryLayout) -> Vec<u8> {
        let mut printer = Printer { text: &self.text, layout, out: Vec::new() };
        printer.value(&self.tree, 0);
        printer.out
    }

    /// Prints it as a standalone network, for a `.conf` file.
    #[must_use]
    pub fn print_network(&self, version: &str, name: &str, layout: &EntryLayout) -> Vec<u8> {
        let mut printer = Printer { text: &self.text, layout, out: b"{".to_vec() };
        let own = [("cniVersion", version), ("name", name)];
        for (n, (key, value)) in own.into_iter().enumerate() {
            printer.key(n, 1, key);
            printer.out.extend_from_slice(quoted(value).as_bytes());
        }
        let members: &[Member] = match &self.tree.kind {
            JsonKind::Object(members) => members,
            _ => &[],
        };
        let rest = members.iter().filter(|member| own.iter().all(|(own, _)| *own != member.key));
        for member in rest {
            printer.key(1, 1, &member.key);
            printer.value(&member.value, 1);
        }
        layout.line(0, &mut printer.out);
        printer.out.push(b'}');
        printer.out
    }
}

/// Prints a tree; strings and numbers keep their text.
struct Printer<'a> {
    text: &'a [u8],
    layout: &'a EntryLayout,
    out: Vec<u8>,
}

impl Printer<'_> {
    fn value(&mut self, node: &JsonValue, level: usize) {
        let (open, close) = match &node.kind {
            JsonKind::Object(members) if !members.is_empty() => (b'{', b'}'),
            JsonKind::Array(elements) if !elements.is_empty() => (b'[', b']'),
            JsonKind::Object(_) => return self.out.extend_from_slice(b"{}"),
            JsonKind::Array(_) => return self.out.extend_from_slice(b"[]"),
            _ => return self.out.extend_from_slice(json::text(self.text, &node.span)),
        };
        self.out.push(open);
        match &node.kind {
            JsonKind::Object(members) => members.iter().enumerate().for_each(|(n, member)| {
                self.key(n, level + 1, &member.key);
                self.value(&member.value, level + 1);
            }),
            JsonKind::Array(elements) => elements.iter().enumerate().for_each(|(n, element)| {
                self.next(n, level + 1);
                self.value(element, level + 1);
            }),
            _ => {}
        }
        self.layout.line(level, &mut self.out);
        self.out.push(close);
    }

    fn next(&mut self, n: usize, level: usize) {
        if n > 0 {
            self.out.push(b',');
        }
        self.layout.line(level, &mut self.out);
    }

    fn key(&mut self, n: usize, level: usize, key: &str) {
        self.next(n, level);
        self.out.extend_from_slice(quoted(key).as_bytes());
        self.out.extend_from_slice(self.layout.colon());
    }
}

/// The text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Finds the layout of the text at `span`, for text that is inserted next to it.
pub(super) fn layout_of(bytes: &[u8], span: &Range<usize>) -> EntryLayout {
    let element = json::text(bytes, span);
    let Some(end) = element.iter().position(|byte| *byte == b'\n') else { return EntryLayout::OneLine };
    let newline: &[u8] = if end > 0 && element.get(end - 1) == Some(&b'\r') { b"\r\n" } else { b"\n" };
    let before = bytes.get(..span.start).unwrap_or_default();
    let line = before.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let base = blanks(line);
    let inner = blanks(element.get(end + 1..).unwrap_or_default());
    let unit = match inner.strip_prefix(base) {
        Some(unit) if !unit.is_empty() => unit,
        _ => b"  ",
    };
    EntryLayout::Lines { newline: newline.to_vec(), base: base.to_vec(), unit: unit.to_vec() }
}

fn blanks(line: &[u8]) -> &[u8] {
    let end = line.iter().position(|byte| !matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
    line.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_printed_in_the_layout_of_the_entry_next_to_it() {
        let entry =
            Entry::parse(br#"{"type":"gybe-cni","big":12345678901234567890,"a":[1,{}],"e":[]}"#).unwrap();
        let file = b"{\r\n\t\"plugins\": [\r\n\t\t{\r\n\t\t\t\"type\": \"x\"\r\n\t\t}\r\n\t]\r\n}";
        let start = file.iter().position(|byte| *byte == b'[').unwrap() + 5;
        let layout = layout_of(file, &(start..start + 19));
        let printed = String::from_utf8(entry.print(&layout)).unwrap();
        assert_eq!(
            printed.replace("\r\n", "|"),
            "{|\t\t\t\"type\": \"gybe-cni\",|\t\t\t\"big\": 12345678901234567890,|\t\t\t\"a\": [|\t\t\t\t1,|\t\t\t\t{}|\t\t\t],|\t\t\t\"e\": []|\t\t}"
        );
        assert_eq!(entry.print(&EntryLayout::OneLine), entry.text);
    }

    #[test]
    fn other_values_are_refused_as_an_entry() {
        assert_eq!(Entry::parse(b"[]"), Err(EntryError::NotAnObject));
        for no_type in ["{}", r#"{"type":1}"#, r#"{"type":""}"#, r#"{"type":"../sh"}"#] {
            assert_eq!(Entry::parse(no_type.as_bytes()), Err(EntryError::NoType), "{no_type}");
        }
        assert!(matches!(Entry::parse(b"{"), Err(EntryError::NotJson(_))));
    }
}
