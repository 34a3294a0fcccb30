//! The one module that writes to stdout and stderr.

use super::answer::{Answer, Exit, Failure};
use std::io::{self, ErrorKind, Write};

/// Writes an answer in one of its forms, and says how the program ends.
///
/// A reader that went away (`gybe inspect | head -1`) has had enough; that is no failure.
pub(super) fn answer(answer: &Answer, as_json: bool) -> Exit {
    for note in &answer.notes {
        tell(note);
    }
    let text = if as_json { format!("{:#}\n", answer.json) } else { answer.text.clone() };
    match write_whole(&text) {
        Ok(()) => answer.exit,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => answer.exit,
        Err(error) => failure(&Failure::because("cannot write the answer", error)),
    }
}

/// Writes why the program could not do its work.
pub(super) fn failure(failure: &Failure) -> Exit {
    tell(&format!("gybe: {failure}"));
    if let Some(hint) = failure.hint() {
        tell(&format!("hint: {hint}"));
    }
    Exit::Failed
}

/// Writes what the argument parser has to say: help and version are answers, the rest is not.
pub(super) fn usage(error: &clap::Error) -> Exit {
    let text = error.render().to_string();
    if error.use_stderr() {
        tell(text.trim_end());
        return Exit::Failed;
    }
    match write_whole(&text) {
        Ok(()) => Exit::Yes,
        Err(_) => Exit::Failed,
    }
}

fn write_whole(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// There is nobody left to tell when stderr is closed.
fn tell(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
