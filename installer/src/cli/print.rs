//! The one module that writes to stdout and stderr.

use super::output::{CommandError, CommandOutput, Exit};
use super::style;
use crate::pod::manifest::printable;
use anstream::AutoStream;
use std::io::{self, BufRead, ErrorKind, Read, Write};

/// The limit of an answer on stdin.
const MAX_ANSWER: u64 = 64;

/// Prints a command's output as text or as JSON, and returns its exit code.
pub(super) fn output(output: &CommandOutput, as_json: bool) -> Exit {
    output.notes.iter().for_each(|note| line_on_stderr(note));
    if as_json {
        on_stdout(&format!("{:#}\n", output.json), output.exit)
    } else {
        on_stdout(&output.text, output.exit)
    }
}

/// Returns the number of columns of the terminal on stdout; none for a pipe or a file.
pub(super) fn width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0.into())
}

/// Prints why a command failed, and the hint.
pub(super) fn failure(failure: &CommandError) -> Exit {
    line_on_stderr(&format!("gybe: {failure}"));
    if let Some(hint) = failure.hint() {
        line_on_stderr(&format!("hint: {hint}"));
    }
    Exit::Failed
}

/// Asks on stderr, and returns whether the line on stdin is `y` or `yes`.
pub(super) fn confirm(question: &str) -> bool {
    let mut answer = String::new();
    let mut stderr = io::stderr().lock();
    let is_asked = write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()).is_ok();
    is_asked
        && io::stdin().lock().take(MAX_ANSWER).read_line(&mut answer).is_ok()
        && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// Prints what the argument parser returned: help and version on stdout, everything else on stderr.
pub(super) fn usage(error: &clap::Error) -> Exit {
    let text = error.render();
    if error.use_stderr() {
        text.to_string().trim_end().lines().for_each(line_on_stderr);
        return Exit::Failed;
    }
    on_stdout(&text.ansi().to_string(), Exit::Yes)
}

/// Colours are kept on a terminal only (`AutoStream`). A closed pipe (`gybe inspect | head -1`) is not a failure.
fn on_stdout(text: &str, exit: Exit) -> Exit {
    let mut stdout = AutoStream::auto(io::stdout().lock());
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            failure(&CommandError::because("cannot write to stdout", error))
        }
        _ => exit,
    }
}

/// Control characters from files and arguments are escaped. An error is ignored: without stderr there is no
/// place left to report it.
pub(super) fn line_on_stderr(line: &str) {
    let _ = writeln!(AutoStream::auto(io::stderr().lock()), "{}", style::message(&printable(line)));
}
