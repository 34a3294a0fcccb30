//! The compared programs with their input for the default policy, and the time from start to end of a process.

use crate::pod::{CniCall, Pod};
use crate::policies;
use gybe_integration::failure::Failure;
use gybe_netfilter::compile::compile;
use gybe_netfilter::inspect::show::show;
use gybe_netfilter::iptables::script;
use gybe_netfilter::model::ruleset::Family;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program, or several in sequence, that write the rules of a namespace.
#[derive(Debug, Clone)]
pub struct Contender {
    /// Its name in tables.
    pub name: &'static str,
    /// The commands, in sequence.
    commands: Vec<ProgramCommand>,
    namespace: StartNamespace,
}

/// The network namespace in which a program is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartNamespace {
    /// The node's; the program enters the pod's itself.
    Node,
    /// The pod's, so that the time does not include entering it.
    Pod,
}

#[derive(Debug, Clone)]
struct ProgramCommand {
    program: PathBuf,
    arguments: Vec<&'static str>,
    environment: Environment,
    stdin: Vec<u8>,
}

#[derive(Debug, Clone)]
enum Environment {
    Cni(CniCall),
    /// The lock of iptables-legacy is the namespace, as under Gybe: concurrent programs do not wait for each other.
    OwnLock,
}

/// Returns the path of a built program, which is in the directory of this one.
///
/// # Errors
/// When it is not built.
pub fn built_program(name: &str) -> Result<PathBuf, Failure> {
    let path = std::env::current_exe()?.with_file_name(name);
    if path.exists() { Ok(path) } else { Err(Failure::new(format!("there is no {path:?}; run: make bench"))) }
}

/// Returns the path of a program of the system.
///
/// # Errors
/// When it is missing; the error names its package.
pub fn system_program(name: &str, package: &str) -> Result<PathBuf, Failure> {
    let paths = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(|directory| Path::new(directory).join(name));
    let found = paths.into_iter().find(|path| path.exists());
    found.ok_or_else(|| Failure::new(format!("there is no {name}; install the Debian package {package}")))
}

impl Contender {
    /// A program that does nothing: static with glibc. Targets refer to it.
    ///
    /// # Errors
    /// When it is not built.
    pub fn noop(call: &CniCall) -> Result<Self, Failure> {
        Ok(Self::cni("no-op, glibc", built_program("gybe-noop")?, call))
    }

    /// A program that does nothing, without a C library.
    ///
    /// # Errors
    /// When it is not built.
    pub fn floor(call: &CniCall) -> Result<Self, Failure> {
        Ok(Self::cni("no-op, no C library", built_program("gybe-floor")?, call))
    }

    /// The plugin with that call; `name` is its name in tables.
    ///
    /// # Errors
    /// When it is not built.
    pub fn gybe(name: &'static str, call: &CniCall) -> Result<Self, Failure> {
        Ok(Self::cni(name, built_program("gybe-cni")?, call))
    }

    /// The plugin of another build, in this directory.
    pub fn gybe_before(name: &'static str, before: &Path, call: &CniCall) -> Self {
        Self::cni(name, before.join("gybe-cni"), call)
    }

    /// A program with that call.
    pub fn cni(name: &'static str, program: PathBuf, call: &CniCall) -> Self {
        let command = ProgramCommand {
            program,
            arguments: Vec::new(),
            stdin: call.stdin().into_bytes(),
            environment: Environment::Cni(call.clone()),
        };
        Self { name, commands: vec![command], namespace: StartNamespace::Node }
    }

    /// Reports whether it consists of programs of the system.
    pub fn is_of_the_system(&self) -> bool {
        self.namespace == StartNamespace::Pod
    }

    /// Programs of the system that write the same rules.
    ///
    /// # Errors
    /// When one is missing.
    pub fn system_programs() -> Result<Vec<Self>, Failure> {
        let rules = compile(&policies::default()?);
        let nft = ProgramCommand {
            program: system_program("nft", "nftables")?,
            arguments: vec!["-f", "-"],
            environment: Environment::OwnLock,
            stdin: show(&rules).into_bytes(),
        };
        let restore = |v4: &str, v6: &str| {
            [(v4, Family::V4), (v6, Family::V6)]
                .into_iter()
                .map(|(name, family)| {
                    Ok(ProgramCommand {
                        program: system_program(name, "iptables")?,
                        arguments: vec!["--noflush", "--wait"],
                        environment: Environment::OwnLock,
                        stdin: script(&rules, family)?.into_bytes(),
                    })
                })
                .collect::<Result<Vec<_>, Failure>>()
        };
        let in_pod = |name, commands| Self { name, commands, namespace: StartNamespace::Pod };
        Ok(vec![
            in_pod("nft -f", vec![nft]),
            in_pod(
                "iptables-nft-restore, v4 and v6",
                restore("iptables-nft-restore", "ip6tables-nft-restore")?,
            ),
            in_pod(
                "iptables-legacy-restore, v4 and v6",
                restore("iptables-legacy-restore", "ip6tables-legacy-restore")?,
            ),
        ])
    }

    /// Runs the commands for a pod. Calls `ready` immediately before the start.
    ///
    /// # Errors
    /// When a command fails.
    pub fn run(&self, pod: &Pod, ready: impl FnOnce() + Send) -> Result<RunTime, Failure> {
        let work = || {
            let commands: Result<Vec<_>, _> =
                self.commands.iter().map(|command| command.with_stdin(pod)).collect();
            // Also after an error: other threads may wait for this one.
            ready();
            let (commands, started) = (commands?, Instant::now());
            commands.into_iter().try_for_each(run_to_end)?;
            Ok(RunTime { started, ended: Instant::now() })
        };
        match self.namespace {
            StartNamespace::Node => work(),
            StartNamespace::Pod => pod.namespace.run(work)?,
        }
    }

    /// Starts the command for a pod without writing its stdin.
    ///
    /// # Errors
    /// When it cannot be started, or there are several commands.
    pub fn start(&self, pod: &Pod) -> Result<Waiting<'_>, Failure> {
        let [command] = self.commands.as_slice() else {
            return Err(Failure::new("more than one program"));
        };
        let (reader, writer) = pipe()?;
        let child = command.command(pod, reader).spawn()?;
        Ok(Waiting { child, writer: Some(writer), stdin: &command.stdin })
    }
}

/// A program that waits for its stdin.
#[derive(Debug)]
pub struct Waiting<'r> {
    child: Child,
    /// Closed after writing: the program reads to the end.
    writer: Option<PipeWriter>,
    stdin: &'r [u8],
}

impl Waiting<'_> {
    /// The process id.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Writes the stdin. The caller waits for the process.
    ///
    /// # Errors
    /// When the program does not read.
    pub fn write_stdin(&mut self) -> Result<(), Failure> {
        Ok(self.writer.take().map_or(Ok(()), |mut writer| writer.write_all(self.stdin))?)
    }
}

/// The start and the end of a run.
#[derive(Debug, Clone, Copy)]
pub struct RunTime {
    /// Before the start of the first process.
    pub started: Instant,
    /// After the end of the last process.
    pub ended: Instant,
}

impl RunTime {
    /// The elapsed time.
    pub fn elapsed(&self) -> Duration {
        self.ended.duration_since(self.started)
    }
}

impl ProgramCommand {
    /// All but the start: stdin is written and closed, as a pipe has room for it.
    fn with_stdin(&self, pod: &Pod) -> Result<Command, Failure> {
        let (reader, mut writer) = pipe()?;
        writer.write_all(&self.stdin)?;
        Ok(self.command(pod, reader))
    }

    fn command(&self, pod: &Pod, stdin: PipeReader) -> Command {
        let mut command = command(&self.program);
        command.args(&self.arguments).env_clear();
        match &self.environment {
            Environment::Cni(call) => command.envs(call.env(pod)),
            Environment::OwnLock => command.env("XTABLES_LOCKFILE", "/proc/self/ns/net"),
        };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn run_to_end(mut command: Command) -> Result<(), Failure> {
    let mut child = command.spawn()?;
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    let mut output = String::new();
    child.stdout.take().into_iter().try_for_each(|mut out| out.read_to_string(&mut output).map(drop))?;
    child.stderr.take().into_iter().try_for_each(|mut err| err.read_to_string(&mut output).map(drop))?;
    Err(Failure::new(format!("{command:?}: {status}: {output}")))
}

/// A command for a measured or measuring program.
pub fn command(program: &Path) -> Command {
    #[allow(clippy::disallowed_methods, reason = "the benchmark runs programs")]
    Command::new(program)
}
