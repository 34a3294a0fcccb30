//! A host and a container: two mount namespaces that see different programs and another `/run`.

use gybe_integration::plugin_call::PluginDir;
use gybe_integration::programs::{Run, path_of_ours};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The programs to hide so that the container looks like an image without iptables.
const NO_IPTABLES: [&str; 2] = ["/usr/sbin/xtables-nft-multi", "/usr/sbin/xtables-legacy-multi"];

/// The capabilities of the DaemonSet's container `repair`.
pub(crate) const CAPABILITIES: [&str; 7] =
    ["setuid", "net_bind_service", "net_admin", "net_raw", "sys_chroot", "sys_ptrace", "sys_admin"];

/// A mount namespace that lives as long as this value.
pub(crate) struct Host {
    directory: PluginDir,
    child: Child,
}

impl Host {
    /// Creates a host on which these programs cannot be run.
    pub(crate) fn without(test: &str, programs: &[&str]) -> Self {
        let directory = PluginDir::new(&format!("host-{test}"));
        let mounts = format!("mount --bind {} /run && {}", directory.run().display(), hide(programs));
        let script = format!("{mounts} && echo ready && exec cat");
        #[allow(clippy::disallowed_methods, reason = "the process runs in the background of the test")]
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { directory, child }
    }

    pub(crate) fn namespace(&self) -> String {
        format!("/proc/{}/ns/mnt", self.child.id())
    }

    pub(crate) fn report_path(&self) -> PathBuf {
        self.directory.run().join("gybe/probe.json")
    }

    pub(crate) fn report(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.report_path()).unwrap()).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A container without iptables, with a `/run` of its own.
pub(crate) struct Container(PluginDir);

impl Container {
    pub(crate) fn new(test: &str) -> Self {
        Self(PluginDir::new(&format!("container-{test}")))
    }

    /// Returns the command of `gybe probe --host` for this host, with these capabilities.
    pub(crate) fn probe(&self, host: &Host, capabilities: &[&str]) -> String {
        let probe = format!("probe --host --mount-namespace {}", host.namespace());
        format!("{} && exec {}", hide(&NO_IPTABLES), limited(capabilities, &probe))
    }

    /// As [`Self::probe`], from a PID namespace of its own, as without `hostPID`: with the host's `/proc` mounted.
    pub(crate) fn probe_by_mounted_proc(&self, host: &Host, capabilities: &[&str]) -> String {
        let probe = format!("probe --host --mount-namespace {}", self.mounted(&host.namespace()));
        self.with_mounted_proc(&limited(capabilities, &probe))
    }

    /// Returns a command that runs `command` in a PID namespace of its own, with the host's `/proc` mounted.
    pub(crate) fn with_mounted_proc(&self, command: &str) -> String {
        let mounted = self.mounted("/proc");
        let alone = format!("exec unshare --pid --fork --mount-proc {command}");
        format!("mkdir -p {mounted} && mount --rbind /proc {mounted} && {} && {alone}", hide(&NO_IPTABLES))
    }

    /// The container's path of a path in the host's `/proc`.
    pub(crate) fn mounted(&self, path: &str) -> String {
        format!("{}{path}", self.0.path().display())
    }

    pub(crate) fn sh(&self, command: &str) -> Run {
        self.0.sh(command, "").unwrap()
    }

    /// Starts the command in the background of the test.
    pub(crate) fn start(&self, command: &str) -> Child {
        let inside = format!("mount --bind {} /run && {command}", self.0.run().display());
        #[allow(clippy::disallowed_methods, reason = "the process runs in the background of the test")]
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sh", "-c", &inside]);
        unshare.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub(crate) fn has_no_report(&self) -> bool {
        !self.0.run().join("gybe").exists()
    }
}

/// Returns the command of `gybe` with these capabilities.
pub(crate) fn limited(capabilities: &[&str], arguments: &str) -> String {
    let set: String = capabilities.iter().map(|name| format!(",+{name}")).collect();
    let gybe = path_of_ours("gybe").unwrap();
    format!("setpriv --inh-caps=-all --bounding-set=-all{set} {} {arguments}", gybe.display())
}

/// Returns the shell commands that make these programs unexecutable if this machine has them.
fn hide(programs: &[&str]) -> String {
    programs.iter().fold("true".to_owned(), |all, path| format!("{all} && mount --bind /dev/null {path}"))
}
