//! Splits `iptables-save` output into lines and words, where a quoted word may contain line breaks; quotes words.

use std::borrow::Cow;

/// Tracks whether a position of the text is inside a quoted word. A quote opens only at the start of a word
/// (`xtables_save_string` quotes whole words): inside a word, such as a chain name, it is a letter.
#[derive(Default)]
struct Quotes {
    inside: bool,
    escaped: bool,
    mid_word: bool,
}

/// The meaning of a character.
#[derive(PartialEq, Eq)]
enum CharacterMeaning {
    /// Itself.
    Letter,
    /// Part of the quoting.
    Quoting,
    /// Between words.
    Blank,
    /// Between lines.
    Break,
}

impl Quotes {
    fn meaning(&mut self, c: char) -> CharacterMeaning {
        let meaning = match c {
            _ if self.escaped => CharacterMeaning::Letter,
            '\\' if self.inside => CharacterMeaning::Quoting,
            '"' if self.inside || !self.mid_word => CharacterMeaning::Quoting,
            _ if self.inside => CharacterMeaning::Letter,
            '\n' => CharacterMeaning::Break,
            ' ' => CharacterMeaning::Blank,
            _ => CharacterMeaning::Letter,
        };
        if meaning == CharacterMeaning::Quoting && c == '"' {
            self.inside = !self.inside;
        }
        self.escaped = meaning == CharacterMeaning::Quoting && c == '\\';
        self.mid_word = matches!(meaning, CharacterMeaning::Letter | CharacterMeaning::Quoting);
        meaning
    }
}

/// The lines that are not empty; `None` when the text ends inside a quoted word.
pub(super) fn logical_lines(text: &str) -> Option<Vec<&str>> {
    let (mut quotes, mut start, mut lines) = (Quotes::default(), 0, Vec::new());
    for (at, c) in text.char_indices() {
        // Remarks and the declarations of chains have no quotes.
        let line = text.get(start..at).unwrap_or_default();
        let bare = line.starts_with(['#', ':', '*']);
        let meaning = if bare && c != '\n' { CharacterMeaning::Letter } else { quotes.meaning(c) };
        if meaning == CharacterMeaning::Break {
            lines.push(line);
            start = at + 1;
        }
    }
    lines.push(text.get(start..).unwrap_or_default());
    lines.retain(|line| !line.is_empty());
    (!quotes.inside).then_some(lines)
}

/// The words of a rule without their quotes; `None` when a quote is left open.
pub(in crate::iptables) fn words(spec: &str) -> Option<Vec<String>> {
    let (mut quotes, mut words, mut word) = (Quotes::default(), Vec::new(), None::<String>);
    for c in spec.chars() {
        match quotes.meaning(c) {
            CharacterMeaning::Letter => word.get_or_insert_default().push(c),
            CharacterMeaning::Quoting => drop(word.get_or_insert_default()),
            CharacterMeaning::Blank | CharacterMeaning::Break => words.extend(word.take()),
        }
    }
    words.extend(word);
    (!quotes.inside).then_some(words)
}

/// Quotes a word as `xtables_save_string` does: only where necessary, with double quotes.
pub(super) fn quoted(word: &str) -> Cow<'_, str> {
    if word.is_empty() || word.contains([' ', '\n', '"', '\'', '\\']) {
        let escaped: String = word
            .chars()
            .flat_map(|c| ['"', '\'', '\\'].contains(&c).then_some('\\').into_iter().chain([c]))
            .collect();
        format!("\"{escaped}\"").into()
    } else {
        word.into()
    }
}
