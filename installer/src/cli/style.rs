//! Colours of the output. `print` removes them when the output is not a terminal, or `NO_COLOR` is set.

use anstyle::{AnsiColor, Style};
use clap::builder::StyledStr;

const GREEN: Style = AnsiColor::Green.on_default();
const YELLOW: Style = AnsiColor::Yellow.on_default();
const RED: Style = AnsiColor::Red.on_default().bold();
const BOLD: Style = Style::new().bold();
/// clap's own style of a heading.
const HEADING: Style = Style::new().bold().underline();

fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

pub(super) fn good(text: &str) -> String {
    styled(GREEN, text)
}

pub(super) fn doubtful(text: &str) -> String {
    styled(YELLOW, text)
}

pub(super) fn bad(text: &str) -> String {
    styled(RED, text)
}

/// The column titles of a table.
pub(super) fn titles(text: &str) -> String {
    styled(BOLD, text)
}

pub(super) fn heading(text: &str) -> String {
    styled(HEADING, text)
}

/// The examples below a command's help, one a line.
pub(super) fn examples(lines: &[&str]) -> StyledStr {
    let lines: String = lines.iter().map(|line| format!("\n  {line}")).collect();
    format!("{}{lines}", heading("Examples:")).into()
}

/// Breaks a text between words so that no line is longer than `width`, `indent` blanks before each further line
/// included; a longer word has a line of its own. A text for a pipe or for a very narrow terminal is one line.
pub(super) fn wrapped(text: &str, indent: usize, width: Option<usize>) -> String {
    let Some(room) = width.and_then(|width| width.checked_sub(indent)).filter(|room| *room >= MIN_ROOM)
    else {
        return text.to_owned();
    };
    let mut lines: Vec<(String, usize)> = Vec::new();
    for word in text.split(' ') {
        let length = word.chars().count();
        match lines.last_mut().filter(|(_, used)| used + 1 + length <= room) {
            Some((line, used)) => {
                *line = format!("{line} {word}");
                *used += 1 + length;
            }
            None => lines.push((word.to_owned(), length)),
        }
    }
    let lines: Vec<String> = lines.into_iter().map(|(line, _)| line).collect();
    lines.join(&format!("\n{:indent$}", ""))
}

/// The narrowest column that a text is broken into.
const MIN_ROOM: usize = 20;

/// Colours the first word of a line on stderr, which names the kind of line.
pub(super) fn message(line: &str) -> String {
    let coloured = |prefix: &str, style| {
        line.strip_prefix(prefix).map(|rest| format!("{}{rest}", styled(style, prefix)))
    };
    let kinds = [
        ("gybe:", RED),
        ("error:", RED),
        ("warning:", YELLOW),
        ("note:", YELLOW),
        ("hint:", GREEN),
        ("Usage:", HEADING),
    ];
    kinds.into_iter().find_map(|(prefix, style)| coloured(prefix, style)).unwrap_or_else(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_broken_between_words_at_the_terminals_width() {
        let text = "the conf directory /a/very/long/path/that/fits/nowhere cannot be read: Permission denied";
        for (width, expected) in [
            (None, text),
            (Some(21), text),
            (Some(200), text),
            (
                Some(30),
                "the conf directory\n    /a/very/long/path/that/fits/nowhere\n    cannot be read: Permission\n    denied",
            ),
        ] {
            assert_eq!(wrapped(text, 4, width), expected, "{width:?}");
        }
        assert_eq!(wrapped("äöü äöü äöü äöü äöü", 0, Some(20)), "äöü äöü äöü äöü äöü");
    }
}
