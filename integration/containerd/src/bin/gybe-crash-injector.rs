//! A CNI plugin that runs another one, the `delegate` of its entry, and kills it at the n-th system call of an ADD if
//! the pod's annotation `crash-at` is n.

use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::{env, error, io};

use gybe_integration::kill::{End, WAIT_THEN_RUN, kill_at_system_call};
use nix::sys::signal::{Signal, raise};
use serde_json::Value;

fn main() -> Result<ExitCode, Box<dyn error::Error>> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let input: Value = serde_json::from_str(&text)?;
    let delegate = input.get("delegate").and_then(Value::as_str).ok_or("the entry has no \"delegate\"")?;
    let crash_at = input.pointer("/runtimeConfig/io.kubernetes.cri.pod-annotations/crash-at");
    let at = crash_at.and_then(Value::as_str).map(str::parse).transpose()?;
    match at.filter(|_| env::var("CNI_COMMAND").is_ok_and(|command| command == "ADD")) {
        Some(at) => run_and_kill(delegate, &text, at),
        None => Ok(run(delegate, &text)?),
    }
}

fn run_and_kill(delegate: &str, text: &str, at: u64) -> Result<ExitCode, Box<dyn error::Error>> {
    let [program, arguments @ ..] = WAIT_THEN_RUN;
    #[expect(clippy::disallowed_methods, reason = "the crash injector runs the plugin that it kills")]
    let mut command = Command::new(program);
    command.args(arguments).arg(delegate);
    let run = kill_at_system_call(command, text, at)?;
    match run.end {
        End::Killed => {
            // The runtime sees the exit status of the killed plugin.
            raise(Signal::SIGKILL)?;
            Ok(ExitCode::FAILURE)
        }
        End::Exited { code, .. } => {
            io::stdout().write_all(run.stdout.as_bytes())?;
            Ok(if code == Some(0) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

fn run(delegate: &str, text: &str) -> io::Result<ExitCode> {
    #[expect(clippy::disallowed_methods, reason = "the crash injector runs the plugin that it kills")]
    let mut command = Command::new(delegate);
    let mut plugin = command.stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = plugin.stdin.take() {
        input.write_all(text.as_bytes())?;
    }
    let status = plugin.wait()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
