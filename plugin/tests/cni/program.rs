//! Runs the program once, with the variables of the test as its whole environment.

use serde_json::Value;
use std::fs::{self, File};
use std::io::{PipeWriter, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The path of the built program.
pub(crate) const GYBE_CNI: &str = env!("CARGO_BIN_EXE_gybe-cni");

/// The outcome of a call.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) exit: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Stdout as one JSON document; none when it is empty.
    pub(crate) fn json(&self) -> Option<Value> {
        let empty = self.stdout.trim().is_empty();
        (!empty)
            .then(|| serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}")))
    }

    /// CNI's error code; none when the call succeeded.
    pub(crate) fn code(&self) -> Option<u64> {
        self.json()?.get("code").and_then(Value::as_u64)
    }

    /// Message and details, as the kubelet's event shows them.
    pub(crate) fn message(&self) -> String {
        let json = self.json().unwrap_or_default();
        let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
        format!("{}; {}", text("msg"), text("details"))
    }
}

/// A call in progress.
pub(crate) struct Running(Child);

impl Running {
    /// Starts `gybe-cni` with this environment and stdin.
    pub(crate) fn start<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>, stdin: &str) -> Self {
        let mut child = start(env, Stdio::piped());
        // The plugin does not read stdin of a call that it refuses for its environment.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        Self(child)
    }

    /// Reports whether the call watches a directory with inotify.
    pub(crate) fn watches_a_directory(&self) -> bool {
        let descriptors = fs::read_dir(format!("/proc/{}/fdinfo", self.0.id()));
        let descriptors = descriptors.into_iter().flatten().flatten();
        descriptors
            .filter_map(|descriptor| fs::read_to_string(descriptor.path()).ok())
            .any(|text| text.contains("inotify wd:"))
    }

    /// Waits for the end of the call.
    pub(crate) fn end(self) -> Outcome {
        outcome(self.0)
    }
}

/// Runs `gybe-cni` with this environment and stdin.
pub(crate) fn run<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>, stdin: &str) -> Outcome {
    Running::start(env, stdin).end()
}

/// Runs a copy of the program at another path.
pub(crate) fn run_at<'a>(
    program: &Path,
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
    stdin: &str,
) -> Outcome {
    let mut command = command(program, env);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    outcome(child)
}

/// Copies a program. A child process does it: a file that this process has open for writing is also open in
/// another test's child for a moment, and a program that is open for writing cannot be executed.
#[expect(clippy::disallowed_methods, reason = "a child process must copy, as described above")]
pub(crate) fn install(from: &Path, to: &Path) {
    let copied = Command::new("cp").args(["--preserve=mode", "--"]).args([from, to]).status().unwrap();
    assert!(copied.success(), "{} to {}", from.display(), to.display());
}

/// Runs the program, and closes its stdin only after it has ended.
pub(crate) fn run_with_open_stdin<'a>(
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
    stdin: &str,
) -> Outcome {
    let mut child = start(env, Stdio::piped());
    let mut open_stdin = child.stdin.take().unwrap();
    open_stdin.write_all(stdin.as_bytes()).unwrap();
    let outcome = outcome(child);
    drop(open_stdin);
    outcome
}

/// Runs the program with an empty `/run`, so that findings of STATUS about this machine are not kept. A user
/// other than root can neither probe nor keep findings.
#[expect(clippy::disallowed_methods, reason = "unshare makes the mount namespace")]
pub(crate) fn run_with_own_run_directory<'a>(
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
    stdin: &str,
) -> Outcome {
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
    outcome(child)
}

/// Runs the program with a file as stdin.
pub(crate) fn run_with_stdin<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>, stdin: File) -> Outcome {
    outcome(start(env, stdin.into()))
}

fn start<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>, stdin: Stdio) -> Child {
    gybe_cni(env).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn outcome(child: Child) -> Outcome {
    let output = child.wait_with_output().unwrap();
    Outcome {
        exit: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Returns the exit status of a call whose reply goes to `stdout`.
pub(crate) fn exit_with_stdout<'a>(
    stdout: File,
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Option<i32> {
    gybe_cni(env).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null()).status().unwrap().code()
}

/// Returns the exit status of a call whose log goes to `stderr`.
pub(crate) fn exit_with_stderr<'a>(
    stderr: PipeWriter,
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Option<i32> {
    gybe_cni(env).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).status().unwrap().code()
}

/// Runs the program without some standard descriptors: `closing` in shell syntax, `<&-`.
#[expect(clippy::disallowed_methods, reason = "a shell can close what std's Command cannot")]
pub(crate) fn run_with_closed<'a>(
    closing: &str,
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Outcome {
    let script = format!("exec \"$0\" {closing}");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_gybe-cni")]).env_clear().envs(env);
    outcome(shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
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
