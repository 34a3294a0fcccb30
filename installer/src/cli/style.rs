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
