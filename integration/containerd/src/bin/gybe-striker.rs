//! A CNI plugin that stands around another and kills it at the n-th system call of an ADD, where the
//! pod's annotation `strike` says n; every other call it only passes on. What is left is judged by
//! the tests.

use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::{env, error, io};

use gybe_integration::kill::{End, kill_at_system_call};
use nix::sys::signal::{Signal, raise};
use serde_json::Value;

/// Becomes the program once it is watched: it waits for a line. Its log is nobody's answer.
const WAIT_THEN_EXEC: [&str; 3] = ["sh", "-c", "read -r _ && exec \"$0\" \"$@\" 2>/dev/null"];

fn main() -> Result<ExitCode, Box<dyn error::Error>> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let input: Value = serde_json::from_str(&text)?;
    let around = input.get("around").and_then(Value::as_str).ok_or("the entry has no \"around\"")?;
    let strike = input.pointer("/runtimeConfig/io.kubernetes.cri.pod-annotations/strike");
    let at = strike.and_then(Value::as_str).map(str::parse).transpose()?;
    match at.filter(|_| env::var("CNI_COMMAND").is_ok_and(|verb| verb == "ADD")) {
        Some(at) => struck(around, &text, at),
        None => Ok(passed_on(around, &text)?),
    }
}

fn struck(around: &str, text: &str, at: u64) -> Result<ExitCode, Box<dyn error::Error>> {
    let [program, words @ ..] = WAIT_THEN_EXEC;
    #[expect(clippy::disallowed_methods, reason = "to stand around a program is to run it")]
    let mut command = Command::new(program);
    command.args(words).arg(around);
    match kill_at_system_call(command, text, at)? {
        End::Killed => {
            // The runtime sees what it would see without this one in between.
            raise(Signal::SIGKILL)?;
            Ok(ExitCode::FAILURE)
        }
        End::Exited { code, output, .. } => {
            io::stdout().write_all(output.as_bytes())?;
            Ok(if code == Some(0) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

fn passed_on(around: &str, text: &str) -> io::Result<ExitCode> {
    #[expect(clippy::disallowed_methods, reason = "to stand around a program is to run it")]
    let mut command = Command::new(around);
    let mut inner = command.stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = inner.stdin.take() {
        input.write_all(text.as_bytes())?;
    }
    let status = inner.wait()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
