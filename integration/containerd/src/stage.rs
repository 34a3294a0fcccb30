//! Namespaces of their own for one test (network, mounts, processes), which end with it however it
//! ends; not what runs inside them.
//!
//! Process 1 inside is `gybe-stage`. When its standard input closes, because this value is dropped
//! or because this process died, it kills every process inside, and with the last of them the
//! kernel takes the mounts and network namespaces away.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::Trouble;

/// Programs that the machine itself has: runc, ip, iptables.
const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The namespaces, open until dropped.
#[derive(Debug)]
pub struct Stage {
    process: Child,
    pid: u32,
}

impl Stage {
    /// Makes the namespaces; `program` is the built `gybe-stage`.
    pub fn open(program: &Path) -> Result<Stage, Trouble> {
        let uid = nix::unistd::geteuid();
        if !uid.is_root() {
            return Err(Trouble::NotRoot { uid: uid.as_raw() });
        }
        let mut command = outside("unshare");
        command.args(["--net", "--mount", "--pid", "--fork", "--kill-child=SIGKILL"]);
        command.arg(program).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(starting("unshare"))?;
        let mut said = String::new();
        if let Some(output) = process.stdout.take() {
            let line = BufReader::new(output).read_line(&mut said);
            line.map_err(Trouble::file("the stage's standard output"))?;
        }
        match said.trim().parse() {
            Ok(pid) => Ok(Stage { process, pid }),
            Err(_) => Err(Trouble::Ended {
                program: program.to_path_buf(),
                said: "it could not furnish its namespaces, see above".into(),
            }),
        }
    }

    /// How the outside reaches a path inside.
    ///
    /// `/var/run` is a link to an absolute path, and such a link leads out of `/proc/PID/root`.
    pub fn path(&self, inside: impl AsRef<Path>) -> PathBuf {
        let inside = inside.as_ref();
        let relative = match inside.strip_prefix("/var/run") {
            Ok(rest) => Path::new("run").join(rest),
            Err(_) => inside.strip_prefix("/").unwrap_or(inside).to_path_buf(),
        };
        self.process_one("root").join(relative)
    }

    /// The network namespace of what counts as the node here.
    pub fn netns(&self) -> PathBuf {
        self.process_one("ns/net")
    }

    /// Makes a file of the machine empty, and no program any more, as seen from inside.
    pub fn hide(&self, path: &str) -> Result<(), Trouble> {
        self.run(Path::new("mount"), &["--bind", "/dev/null", path]).map(drop)
    }

    /// Brings back what was hidden.
    pub fn show(&self, path: &str) -> Result<(), Trouble> {
        self.run(Path::new("umount"), &[path]).map(drop)
    }

    /// Runs a program inside, to its good end, and tells what it printed.
    pub fn run(&self, program: &Path, arguments: &[&str]) -> Result<String, Trouble> {
        let mut command = self.command(Path::new("/nonexistent"), program);
        let output = command.args(arguments).output().map_err(starting(program))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        Err(Trouble::Ended { program: program.into(), said: text(&output.stderr) })
    }

    fn process_one(&self, of: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(of)
    }

    /// The node's ends of the pods' links, as the bridge plugin names them.
    pub fn pod_links(&self) -> Result<Vec<String>, Trouble> {
        let path = self.process_one("net/dev");
        let table = fs::read_to_string(&path).map_err(Trouble::file(path))?;
        let names = table.lines().filter_map(|line| line.split_once(':'));
        let names = names.map(|(name, _)| name.trim().to_owned());
        Ok(names.filter(|name| name.starts_with("veth")).collect())
    }

    /// The cgroup for all sandboxes; it vanishes with the stage.
    pub fn cgroup(&self) -> String {
        format!("/gybe-{}", self.pid)
    }

    /// A program to be run inside, with `directory` before the system's own programs.
    pub fn command(&self, directory: &Path, program: impl AsRef<OsStr>) -> Command {
        let mut command = outside("nsenter");
        command.args(["--target", &self.pid.to_string()]);
        command.args(["--net", "--mount", "--pid", "--"]).arg(program);
        let path = format!("{}:{SYSTEM_PATH}", directory.display());
        command.env_clear().env("PATH", path).stdin(Stdio::null());
        command
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // Nobody is left to be told when this fails.
        let _ = self.process.wait();
    }
}

/// For `map_err`: this program did not start.
pub(crate) fn starting(program: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Trouble {
    let program = program.into();
    move |source| Trouble::Start { program, source }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a harness runs programs: containerd is one, and namespaces are entered by another"
)]
fn outside(program: &str) -> Command {
    Command::new(program)
}
