//! The programs that are compared, each with what makes it write the default policy, and the time
//! from the start of a process to its end.

use crate::pod::{Call, Pod};
use crate::policies;
use gybe_integration::failure::Failure;
use gybe_netfilter::compile::compile;
use gybe_netfilter::iptables::script;
use gybe_netfilter::ruleset::Family;
use gybe_netfilter::show::show;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// One way to have the rules in a namespace.
#[derive(Debug, Clone)]
pub struct Contender {
    /// Its name in tables.
    pub name: &'static str,
    /// What is run, one after the other.
    runs: Vec<Run>,
    stands: Stands,
}

/// Where a program stands when it is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    /// On the node; it is told the namespace, if it needs one.
    Outside,
    /// In the namespace already, so entering it costs it nothing.
    Inside,
}

#[derive(Debug, Clone)]
struct Run {
    program: PathBuf,
    arguments: Vec<&'static str>,
    env: Env,
    stdin: Vec<u8>,
}

#[derive(Debug, Clone)]
enum Env {
    Cni(Call),
    /// iptables-legacy may lock its own namespace, as it does under Gybe: else all would wait for one.
    OwnLock,
}

/// The program of this name of ours: beside this one.
///
/// # Errors
/// When it is not built.
pub fn ours(name: &str) -> Result<PathBuf, Failure> {
    let path = std::env::current_exe()?.with_file_name(name);
    if path.exists() { Ok(path) } else { Err(Failure::new(format!("{path:?} is not there: make bench"))) }
}

/// A program of the system's, by name.
///
/// # Errors
/// When it is not there, naming the package that has it.
pub fn theirs(name: &str, package: &str) -> Result<PathBuf, Failure> {
    let places = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(|place| Path::new(place).join(name));
    let found = places.into_iter().find(|path| path.exists());
    found.ok_or_else(|| Failure::new(format!("no {name}: install the Debian package {package}")))
}

impl Contender {
    /// A program that does nothing.
    ///
    /// # Errors
    /// When a program is missing.
    pub fn noop(call: &Call) -> Result<Self, Failure> {
        let run = Run { program: ours("gybe-noop")?, arguments: Vec::new(), ..Run::cni(call)? };
        Ok(Self { name: "no-op", runs: vec![run], stands: Stands::Outside })
    }

    /// The plugin, called so.
    ///
    /// # Errors
    /// When it is not built.
    pub fn gybe(name: &'static str, call: &Call) -> Result<Self, Failure> {
        Ok(Self { name, runs: vec![Run::cni(call)?], stands: Stands::Outside })
    }

    /// Those who write the same rules with the system's programs.
    ///
    /// # Errors
    /// When one is missing.
    pub fn others() -> Result<Vec<Self>, Failure> {
        let rules = compile(&policies::default()?);
        let nft = Run {
            program: theirs("nft", "nftables")?,
            arguments: vec!["-f", "-"],
            env: Env::OwnLock,
            stdin: show(&rules).into_bytes(),
        };
        let restore = |v4: &str, v6: &str| {
            [(v4, Family::V4), (v6, Family::V6)]
                .into_iter()
                .map(|(name, family)| {
                    Ok(Run {
                        program: theirs(name, "iptables")?,
                        arguments: vec!["--noflush", "--wait"],
                        env: Env::OwnLock,
                        stdin: script(&rules, family).unwrap().into_bytes(),
                    })
                })
                .collect::<Result<Vec<_>, Failure>>()
        };
        let inside = |name, runs| Self { name, runs, stands: Stands::Inside };
        Ok(vec![
            inside("nft -f", vec![nft]),
            inside(
                "iptables-nft-restore, v4 and v6",
                restore("iptables-nft-restore", "ip6tables-nft-restore")?,
            ),
            inside(
                "iptables-legacy-restore, v4 and v6",
                restore("iptables-legacy-restore", "ip6tables-legacy-restore")?,
            ),
        ])
    }

    /// Runs it for this namespace. `ready` is called when only the start is left to do.
    ///
    /// # Errors
    /// When it fails.
    pub fn run(&self, pod: &Pod, ready: impl FnOnce() + Send) -> Result<Ran, Failure> {
        let work = || {
            let runs: Result<Vec<_>, _> = self.runs.iter().map(|run| run.prepared(pod)).collect();
            // Also when there is nothing to start: others may wait for this one.
            ready();
            let (runs, begun) = (runs?, Instant::now());
            runs.into_iter().try_for_each(to_its_end)?;
            Ok(Ran { begun, ended: Instant::now() })
        };
        match self.stands {
            Stands::Outside => work(),
            Stands::Inside => pod.namespace.run(work)?,
        }
    }
}

impl Contender {
    /// Starts it for this namespace, without its stdin.
    ///
    /// # Errors
    /// When it cannot be started, or is none that reads its stdin.
    pub fn begun(&self, pod: &Pod) -> Result<Waiting<'_>, Failure> {
        let [run] = self.runs.as_slice() else { return Err(Failure::new("more than one program")) };
        let (reader, writer) = pipe()?;
        let child = run.command(pod, reader).spawn()?;
        Ok(Waiting { child, writer: Some(writer), stdin: &run.stdin })
    }
}

/// A program that waits for its stdin.
#[derive(Debug)]
pub struct Waiting<'r> {
    child: Child,
    /// Closed when all is written, or the program would wait for more.
    writer: Option<PipeWriter>,
    stdin: &'r [u8],
}

impl Waiting<'_> {
    /// Its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Gives it its stdin. Whoever watches it waits for it, too.
    ///
    /// # Errors
    /// When it does not listen.
    pub fn go_on(&mut self) -> Result<(), Failure> {
        Ok(self.writer.take().map_or(Ok(()), |mut writer| writer.write_all(self.stdin))?)
    }
}

/// When it was.
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    /// Before the first process was started.
    pub begun: Instant,
    /// After the last was waited for.
    pub ended: Instant,
}

impl Ran {
    /// From start to end.
    pub fn took(&self) -> Duration {
        self.ended.duration_since(self.begun)
    }
}

impl Run {
    fn cni(call: &Call) -> Result<Self, Failure> {
        let (program, stdin) = (ours("gybe-cni")?, call.stdin().into_bytes());
        Ok(Self { program, arguments: Vec::new(), env: Env::Cni(call.clone()), stdin })
    }

    /// All but the start: stdin is written and closed, as a pipe has room for it.
    fn prepared(&self, pod: &Pod) -> Result<Command, Failure> {
        let (reader, mut writer) = pipe()?;
        writer.write_all(&self.stdin)?;
        Ok(self.command(pod, reader))
    }

    fn command(&self, pod: &Pod, stdin: PipeReader) -> Command {
        let mut command = command(&self.program);
        command.args(&self.arguments).env_clear();
        match &self.env {
            Env::Cni(call) => command.envs(call.env(pod)),
            Env::OwnLock => command.env("XTABLES_LOCKFILE", "/proc/self/ns/net"),
        };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn to_its_end(mut command: Command) -> Result<(), Failure> {
    let mut child = command.spawn()?;
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    child.stdout.take().into_iter().try_for_each(|mut out| out.read_to_string(&mut said).map(drop))?;
    child.stderr.take().into_iter().try_for_each(|mut err| err.read_to_string(&mut said).map(drop))?;
    Err(Failure::new(format!("{command:?}: {status}: {said}")))
}

/// A command for a program that is compared, or that judges one.
pub fn command(program: &Path) -> Command {
    #[allow(clippy::disallowed_methods, reason = "what programs cost can only be seen by running them")]
    Command::new(program)
}
