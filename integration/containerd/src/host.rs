//! A simulated host: network, mount and PID namespaces that end with the test, however the test ends.
//!
//! Process 1 of the PID namespace is `gybe-host-init`. When its standard input closes, because the [`SimulatedHost`]
//! is dropped or the test process dies, it kills every process inside; the kernel then removes the mounts and the
//! network namespaces.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::HarnessError;

/// The path of the machine's programs: runc, ip, iptables.
const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The namespaces of one simulated host, open until dropped.
#[derive(Debug)]
pub struct SimulatedHost {
    process: Child,
    pid: u32,
}

impl SimulatedHost {
    /// Makes the namespaces; `program` is the built `gybe-host-init`.
    pub fn start(program: &Path) -> Result<SimulatedHost, HarnessError> {
        let uid = nix::unistd::geteuid();
        if !uid.is_root() {
            return Err(HarnessError::NotRoot { uid: uid.as_raw() });
        }
        let mut command = machine_command("unshare");
        command.args(["--net", "--mount", "--pid", "--fork", "--kill-child=SIGKILL"]);
        command.arg(program).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A signal to the caller's group (Ctrl-C, or the kernel's SIGHUP to an orphaned group with a stopped process)
        // would kill the host before it has removed its cgroups.
        command.process_group(0);
        let mut process = command.spawn().map_err(HarnessError::start("unshare"))?;
        let mut line = String::new();
        if let Some(output) = process.stdout.take() {
            let read = BufReader::new(output).read_line(&mut line);
            read.map_err(HarnessError::file("the standard output of gybe-host-init"))?;
        }
        match line.trim().parse() {
            Ok(pid) => Ok(SimulatedHost { process, pid }),
            Err(_) => Err(HarnessError::Ended {
                program: program.to_path_buf(),
                message: "it could not set up its namespaces; its standard error has the cause".into(),
            }),
        }
    }

    /// Returns the path by which this process reaches a path of the simulated host.
    ///
    /// `/var/run` is a link to an absolute path, which would lead out of `/proc/PID/root`.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        let relative = match path.strip_prefix("/var/run") {
            Ok(rest) => Path::new("run").join(rest),
            Err(_) => path.strip_prefix("/").unwrap_or(path).to_path_buf(),
        };
        self.init_process("root").join(relative)
    }

    /// The host's network namespace.
    pub fn netns(&self) -> PathBuf {
        self.init_process("ns/net")
    }

    /// Connects another host by a pair of virtual links: `here` on this host, and `there` on the other.
    pub fn connect(&self, here: &str, other: &SimulatedHost, there: &str) -> Result<(), HarnessError> {
        let mut command = machine_command("nsenter");
        // Only the machine's /proc has the other host.
        command
            .arg(format!("--net={}", self.netns().display()))
            .args(["ip", "link", "add", here, "type", "veth"]);
        command.args(["peer", "name", there, "netns", &other.pid.to_string()]);
        succeed(command, Path::new("ip")).map(drop)
    }

    /// Replaces a file with an empty, non-executable one on the simulated host.
    pub fn hide(&self, path: &str) -> Result<(), HarnessError> {
        self.run(Path::new("mount"), &["--bind", "/dev/null", path]).map(drop)
    }

    /// Undoes [`SimulatedHost::hide`].
    pub fn unhide(&self, path: &str) -> Result<(), HarnessError> {
        self.run(Path::new("umount"), &[path]).map(drop)
    }

    /// Runs a program on the simulated host and returns its standard output.
    pub fn run(&self, program: &Path, arguments: &[&str]) -> Result<String, HarnessError> {
        let mut command = self.command(Path::new("/nonexistent"), program);
        command.args(arguments);
        succeed(command, program)
    }

    /// Copies a program of the machine. Another process writes it: one that this process wrote could not be run while a
    /// child of another thread, before its execve(2), has it open for writing (`ETXTBSY`).
    pub fn install(&self, program: &Path, path: &str) -> Result<(), HarnessError> {
        let program = fs::canonicalize(program).map_err(HarnessError::file(program))?;
        self.run(Path::new("install"), &["-D", "-m", "755", &program.to_string_lossy(), path]).map(drop)
    }

    fn init_process(&self, file: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(file)
    }

    /// The names of the pods' links on the host, which the bridge plugin chooses.
    pub fn pod_links(&self) -> Result<Vec<String>, HarnessError> {
        let path = self.init_process("net/dev");
        let table = fs::read_to_string(&path).map_err(HarnessError::file(path))?;
        let names = table.lines().filter_map(|line| line.split_once(':'));
        let names = names.map(|(name, _)| name.trim().to_owned());
        Ok(names.filter(|name| name.starts_with("veth")).collect())
    }

    /// The cgroup of all sandboxes, removed with the host.
    pub fn cgroup(&self) -> String {
        format!("/gybe-{}", self.pid)
    }

    /// Returns a command that runs on the simulated host, with `directory` before the system's path.
    pub fn command(&self, directory: &Path, program: impl AsRef<OsStr>) -> Command {
        let mut command = machine_command("nsenter");
        command.args(["--target", &self.pid.to_string()]);
        command.args(["--net", "--mount", "--pid", "--"]).arg(program);
        let path = format!("{}:{SYSTEM_PATH}", directory.display());
        command.env_clear().env("PATH", path).stdin(Stdio::null());
        command
    }
}

/// Waits for the end of a program, and returns its standard output.
fn succeed(mut command: Command, program: &Path) -> Result<String, HarnessError> {
    let output = command.output().map_err(HarnessError::start(program))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(HarnessError::Ended { program: program.into(), message: text(&output.stderr) })
}

impl Drop for SimulatedHost {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // Drop cannot report a failure.
        let _ = self.process.wait();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test node runs programs: containerd, and unshare and nsenter for the namespaces"
)]
fn machine_command(program: &str) -> Command {
    Command::new(program)
}
