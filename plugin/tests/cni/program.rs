//! Runs the program once: nothing in its environment but what the test says.

use serde_json::Value;
use std::fs::File;
use std::io::{PipeWriter, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The program, as it was built.
pub(crate) const GYBE_CNI: &str = env!("CARGO_BIN_EXE_gybe-cni");

/// What a call came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) exit: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Stdout as one JSON document; nothing when it is empty.
    pub(crate) fn json(&self) -> Option<Value> {
        let empty = self.stdout.trim().is_empty();
        (!empty)
            .then(|| serde_json::from_str(&self.stdout).unwrap_or_else(|fault| panic!("{fault}: {self:?}")))
    }

    /// CNI's error code; nothing when the call succeeded.
    pub(crate) fn code(&self) -> Option<u64> {
        self.json()?.get("code").and_then(Value::as_u64)
    }

    /// What an event would show.
    pub(crate) fn message(&self) -> String {
        let json = self.json().unwrap_or_default();
        let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
        format!("{}; {}", text("msg"), text("details"))
    }
}

/// Runs `gybe-cni` with this environment and stdin.
pub(crate) fn run<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>, stdin: &str) -> Outcome {
    let mut child = started(env, Stdio::piped());
    // A call refused for its environment is answered before anybody reads stdin.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    ended(child)
}

/// The same of a copy of it that stands elsewhere.
pub(crate) fn run_at<'a>(
    program: &Path,
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
    stdin: &str,
) -> Outcome {
    let mut command = command(program, env);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    ended(child)
}

/// Puts a program somewhere. A child does it: what this process holds open for writing, another test's
/// child holds for a moment as well, and a program that is open for writing cannot be run.
#[expect(clippy::disallowed_methods, reason = "see above")]
pub(crate) fn install(from: &Path, to: &Path) {
    let copied = Command::new("cp").args(["--preserve=mode", "--"]).args([from, to]).status().unwrap();
    assert!(copied.success(), "{} to {}", from.display(), to.display());
}

/// The same, but stdin is not closed before the program has ended.
pub(crate) fn run_held_open<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>, stdin: &str) -> Outcome {
    let mut child = started(env, Stdio::piped());
    let mut held = child.stdin.take().unwrap();
    held.write_all(stdin.as_bytes()).unwrap();
    let outcome = ended(child);
    drop(held);
    outcome
}

/// The same where `/run` is the call's own: what STATUS finds out about this machine is gone with it. Who
/// is not root can try nothing out, and so can keep nothing.
#[expect(clippy::disallowed_methods, reason = "a mount namespace is a program's to make")]
pub(crate) fn run_apart<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>, stdin: &str) -> Outcome {
    if !nix::unistd::geteuid().is_root() {
        return run(env, stdin);
    }
    let mut unshare = Command::new("unshare");
    let script = "mount -t tmpfs tmpfs /run && exec env -i \"$@\"";
    unshare.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    unshare.args(env.into_iter().map(|(name, value)| format!("{name}={value}"))).arg(GYBE_CNI);
    let mut child =
        unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    ended(child)
}

/// The same with a file for stdin.
pub(crate) fn run_reading<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>, stdin: File) -> Outcome {
    ended(started(env, stdin.into()))
}

fn started<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>, stdin: Stdio) -> Child {
    gybe_cni(env).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ended(child: Child) -> Outcome {
    let output = child.wait_with_output().unwrap();
    Outcome {
        exit: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The exit of a call whose answer goes to `stdout`.
pub(crate) fn exit_writing_to<'a>(
    stdout: File,
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Option<i32> {
    gybe_cni(env).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null()).status().unwrap().code()
}

/// The exit of a call whose log goes to `stderr`.
pub(crate) fn exit_logging_to<'a>(
    stderr: PipeWriter,
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Option<i32> {
    gybe_cni(env).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).status().unwrap().code()
}

/// A call by somebody who closed descriptors before: `closing` as a shell writes it, `<&-`.
#[expect(clippy::disallowed_methods, reason = "a shell can close what std's Command cannot")]
pub(crate) fn run_without<'a>(closing: &str, env: impl IntoIterator<Item = (&'a str, &'a str)>) -> Outcome {
    let script = format!("exec \"$0\" {closing}");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_gybe-cni")]).env_clear().envs(env);
    ended(shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

fn gybe_cni<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>) -> Command {
    command(Path::new(GYBE_CNI), env)
}

#[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
fn command<'a>(program: &Path, env: impl IntoIterator<Item = (&'a str, &'a str)>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(env);
    command
}
