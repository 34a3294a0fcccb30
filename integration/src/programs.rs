//! The built programs the tests run, and how they are run. What they should say stands in `tests/`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What a program did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// How it ended; `None` when by a signal.
    pub code: Option<i32>,
    /// What it wrote to stdout.
    pub out: String,
    /// What it wrote to stderr.
    pub err: String,
}

/// Why a program was not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The tests do not build it themselves: it belongs to another package.
    #[error("{path} is not there; build it first: cargo build --workspace")]
    NotBuilt {
        /// Where it should be.
        path: PathBuf,
    },
    /// It could not be started, written to or waited for.
    #[error("cannot run {program}")]
    NotRun {
        /// Which program.
        program: String,
        /// Why.
        source: io::Error,
    },
}

/// Where one of our own programs is: in the directory the tests were built in.
///
/// # Errors
/// When it is not built.
pub fn path_of_ours(name: &str) -> Result<PathBuf, RunError> {
    let not_run = |source| RunError::NotRun { program: name.to_owned(), source };
    // A test stands in target/PROFILE/deps, the programs in target/PROFILE.
    let test = std::env::current_exe().map_err(not_run)?;
    let path = test.ancestors().nth(2).map(|profile| profile.join(name)).unwrap_or_default();
    if path.exists() { Ok(path) } else { Err(RunError::NotBuilt { path }) }
}

/// Runs one of our own programs.
///
/// # Errors
/// When it is not built, or cannot be run.
pub fn ours(name: &str, arguments: &[&str], stdin: &str) -> Result<Run, RunError> {
    run(&path_of_ours(name)?.to_string_lossy(), arguments, stdin)
}

/// Runs any program, in the network namespace of the calling thread, with `stdin` to read.
///
/// # Errors
/// When it cannot be run.
pub fn run(program: &str, arguments: &[&str], stdin: &str) -> Result<Run, RunError> {
    let not_run = |source| RunError::NotRun { program: program.to_owned(), source };
    #[allow(clippy::disallowed_methods, reason = "tests run programs: ours, and those that judge ours")]
    let mut command = Command::new(program);
    let pipes = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().map_err(not_run)?;
    if let Some(mut pipe) = child.stdin.take() {
        match pipe.write_all(stdin.as_bytes()) {
            // It may end without having read all of it.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(not_run(error)),
            _ => {}
        }
    }
    let output = child.wait_with_output().map_err(not_run)?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) })
}
