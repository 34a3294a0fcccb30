//! The one module that writes to stdout and stderr.

use super::answer::{Answer, Exit, Failure};
use crate::pod::manifest::printable;
use std::io::{self, ErrorKind, Write};

/// Writes an answer in one of its forms, and says how the program ends.
pub(super) fn answer(answer: &Answer, as_json: bool) -> Exit {
    for note in &answer.notes {
        tell(note);
    }
    if as_json {
        whole(&format!("{:#}\n", answer.json), answer.exit)
    } else {
        whole(&answer.text, answer.exit)
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
        text.trim_end().lines().for_each(tell);
        return Exit::Failed;
    }
    whole(&text, Exit::Yes)
}

/// A reader that went away (`gybe inspect | head -1`) has had enough; that is no failure.
fn whole(text: &str, exit: Exit) -> Exit {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            failure(&Failure::because("cannot write the answer", error))
        }
        _ => exit,
    }
}

/// One line, whatever somebody put into a file we name. There is nobody left to tell when stderr
/// is closed.
fn tell(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", printable(line));
}
