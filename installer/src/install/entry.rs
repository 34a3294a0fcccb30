//! The entry we put into a conflist: one JSON object with a type, printed the way the file is written.

use std::ops::Range;

use super::json::{self, Kind, Node, NotJson};

/// Our plugin's entry: its members keep their order and every number its digits.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    text: Vec<u8>,
    tree: Node,
    plugin: String,
}

/// The bytes are no plugin's entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Not JSON at all.
    #[error("the plugin's configuration is broken")]
    NotJson(#[from] NotJson),
    /// An array, a number, ….
    #[error("the plugin's configuration is not a JSON object")]
    NotAnObject,
    /// A runtime finds the program by its type.
    #[error("the plugin's configuration has no \"type\" that can be a program's name")]
    NoType,
}

/// How the file around an entry is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// Everything in one line.
    OneLine,
    /// A member a line.
    Lines {
        /// What ends a line: `\n`, or `\r\n`.
        newline: Vec<u8>,
        /// What the line on which the entry begins is indented by.
        base: Vec<u8>,
        /// What each level adds.
        unit: Vec<u8>,
    },
}

impl Layout {
    /// Two spaces a level: what everybody writes.
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
    /// From the JSON of one plugin.
    pub fn parse(text: &[u8]) -> Result<Self, EntryError> {
        let tree = json::parse(text)?;
        if !tree.is_object() {
            return Err(EntryError::NotAnObject);
        }
        match tree.member("type").and_then(Node::as_text) {
            Some(plugin) if !plugin.is_empty() && !plugin.contains('/') => {
                Ok(Self { text: text.to_vec(), plugin: plugin.to_owned(), tree })
            }
            _ => Err(EntryError::NoType),
        }
    }

    /// From a value that has already been put together.
    pub fn from_value(value: &serde_json::Value) -> Result<Self, EntryError> {
        Self::parse(value.to_string().as_bytes())
    }

    /// The program a runtime runs for it.
    #[must_use]
    pub fn plugin(&self) -> &str {
        &self.plugin
    }

    /// Whether `text` says the same, however it is written.
    #[must_use]
    pub fn says_the_same(&self, text: &[u8]) -> bool {
        let ours = serde_json::from_slice::<serde_json::Value>(&self.text);
        let theirs = serde_json::from_slice::<serde_json::Value>(text);
        matches!((ours, theirs), (Ok(ours), Ok(theirs)) if ours == theirs)
    }

    /// Its text, laid out.
    #[must_use]
    pub fn print(&self, layout: &Layout) -> Vec<u8> {
        let mut out = Vec::new();
        self.value(&self.tree, layout, 0, &mut out);
        out
    }

    /// Its text as a network of its own: what a runtime finds in a `.conf`.
    #[must_use]
    pub fn print_network(&self, version: &str, layout: &Layout) -> Vec<u8> {
        let mut out = b"{".to_vec();
        let own = [("cniVersion", version), ("name", self.plugin.as_str())];
        for (key, value) in own {
            layout.line(1, &mut out);
            out.extend_from_slice(quoted(key).as_bytes());
            out.extend_from_slice(layout.colon());
            out.extend_from_slice(quoted(value).as_bytes());
            out.push(b',');
        }
        let rest = self.members().filter(|(key, _)| own.iter().all(|(own, _)| own != key));
        self.print_members(rest, layout, 0, &mut out);
        out
    }

    fn members(&self) -> impl Iterator<Item = (&str, &Node)> {
        let members: &[json::Member] = match &self.tree.kind {
            Kind::Object(members) => members,
            _ => &[],
        };
        members.iter().map(|member| (member.key.as_str(), &member.value))
    }

    fn value(&self, node: &Node, layout: &Layout, level: usize, out: &mut Vec<u8>) {
        match &node.kind {
            Kind::Object(members) if !members.is_empty() => {
                out.push(b'{');
                let members = members.iter().map(|member| (member.key.as_str(), &member.value));
                self.print_members(members, layout, level, out);
            }
            Kind::Array(elements) if !elements.is_empty() => {
                out.push(b'[');
                for (n, element) in elements.iter().enumerate() {
                    if n > 0 {
                        out.push(b',');
                    }
                    layout.line(level + 1, out);
                    self.value(element, layout, level + 1, out);
                }
                layout.line(level, out);
                out.push(b']');
            }
            Kind::Object(_) => out.extend_from_slice(b"{}"),
            Kind::Array(_) => out.extend_from_slice(b"[]"),
            _ => out.extend_from_slice(json::text(&self.text, &node.span)),
        }
    }

    fn print_members<'n>(
        &self,
        members: impl Iterator<Item = (&'n str, &'n Node)>,
        layout: &Layout,
        level: usize,
        out: &mut Vec<u8>,
    ) {
        for (n, (key, value)) in members.enumerate() {
            if n > 0 {
                out.push(b',');
            }
            layout.line(level + 1, out);
            out.extend_from_slice(quoted(key).as_bytes());
            out.extend_from_slice(layout.colon());
            self.value(value, layout, level + 1, out);
        }
        layout.line(level, out);
        out.push(b'}');
    }
}

/// A string as JSON has it.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// How the text at `span` is written, so that a neighbour can be written alike.
pub(super) fn layout_of(bytes: &[u8], span: &Range<usize>) -> Layout {
    let element = json::text(bytes, span);
    let Some(end) = element.iter().position(|byte| *byte == b'\n') else { return Layout::OneLine };
    let newline: &[u8] = if end > 0 && element.get(end - 1) == Some(&b'\r') { b"\r\n" } else { b"\n" };
    let before = bytes.get(..span.start).unwrap_or_default();
    let line = before.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let base = blanks(line);
    let inner = blanks(element.get(end + 1..).unwrap_or_default());
    let unit = match inner.strip_prefix(base) {
        Some(unit) if !unit.is_empty() => unit,
        _ => b"  ",
    };
    Layout::Lines { newline: newline.to_vec(), base: base.to_vec(), unit: unit.to_vec() }
}

fn blanks(line: &[u8]) -> &[u8] {
    let end = line.iter().position(|byte| !matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
    line.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_printed_as_its_neighbour_is() {
        let entry = Entry::parse(br#"{"type":"gybe-cni","big":12345678901234567890,"a":[1,{}],"e":[]}"#).unwrap();
        let file = b"{\r\n\t\"plugins\": [\r\n\t\t{\r\n\t\t\t\"type\": \"x\"\r\n\t\t}\r\n\t]\r\n}";
        let start = file.iter().position(|byte| *byte == b'[').unwrap() + 5;
        let layout = layout_of(file, &(start..start + 19));
        let printed = String::from_utf8(entry.print(&layout)).unwrap();
        assert_eq!(
            printed.replace("\r\n", "|"),
            "{|\t\t\t\"type\": \"gybe-cni\",|\t\t\t\"big\": 12345678901234567890,|\t\t\t\"a\": [|\t\t\t\t1,|\t\t\t\t{}|\t\t\t],|\t\t\t\"e\": []|\t\t}"
        );
        assert_eq!(entry.print(&Layout::OneLine), entry.text);
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        assert_eq!(Entry::parse(b"[]"), Err(EntryError::NotAnObject));
        for no_type in ["{}", r#"{"type":1}"#, r#"{"type":""}"#, r#"{"type":"../sh"}"#] {
            assert_eq!(Entry::parse(no_type.as_bytes()), Err(EntryError::NoType), "{no_type}");
        }
        assert!(matches!(Entry::parse(b"{"), Err(EntryError::NotJson(_))));
    }
}
