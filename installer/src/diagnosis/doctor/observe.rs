//! Observes a node once for `gybe doctor`, in bounded time and without changes. Queries the node agent as the plugin
//! does, about a pod that does not exist.

pub use crate::mounts::{FileSystem, FreeSpace};

use crate::agent_status::{self, AgentStatus, TakenPort};
use crate::error::{chain, errno};
use crate::host::apply::{TrialError, try_installed};
use crate::host::desired::{Confirmed, Trial};
use crate::host::entries::OurEntries;
use crate::host::image::{PLUGIN, every_name};
use crate::host::observe::runtimes::Runtimes;
use crate::host::observe::{DirectoryState, Hash, HashCache, NodeDirectories, ObserveScope, ObservedState};
use crate::host::platform::Platform;
use crate::host::runtimes::RuntimeReport;
use crate::host::runtimes::processes::{DropInCheck, RuntimeProcess, running};
use crate::host::settings::FACTS_SOCKET;
use crate::host::watch::{DirectoryWatch, WatchMode};
use crate::mounts::file_systems;
use crate::pod::validation::SocketOwner;
use crate::probe::node_backend::{NodeProbe, node_backend};
use crate::sandboxes::probe_exemption::{self, ObservedExemption};
use crate::sandboxes::{self, HostPaths, SandboxVerdict};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_plugin::args::{Namespace, PodName, PodRef};
use gybe_plugin::conf::{FactsConf, PluginConf};
use gybe_plugin::facts::{self, AgentFault, FactsError};
use gybe_plugin::probe_cache::{ProbeCache, this_node};
use nix::errno::Errno;
use nix::unistd::{Uid, geteuid};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The parameters of an observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoctorOptions {
    pub directories: NodeDirectories,
    /// The directory of sockets and of the probe report.
    pub run: PathBuf,
    /// The path of the host's root in this mount namespace.
    pub root: PathBuf,
    /// The directory of the programs that this `gybe` would place; none if it is the installed one.
    pub image: Option<PathBuf>,
    /// The operator's setting `plugin_dir`; none to use the agent's.
    pub confirmed: Option<Confirmed>,
}

/// The observed node.
#[derive(Debug)]
pub struct Observation {
    pub options: DoctorOptions,
    pub platform: Platform,
    pub snapshot: ObservedState,
    /// The file systems of the conf, program and run directory.
    pub file_systems: Vec<FileSystem>,
    /// The target of the conf directory, if it is a symbolic link.
    pub conf_link: Option<PathBuf>,
    /// The plugin's answer to VERSION, if it is installed.
    pub trial: Option<Result<(), TrialError>>,
    /// Whether the plugin that this `gybe` would place differs from the installed one.
    pub offers_another_build: bool,
    /// The agent's answer at the socket that the entry names or, without an entry, at the usual one.
    pub agent: Option<AgentContact>,
    /// The agent's log socket.
    pub log: Option<LogSocketContact>,
    /// The agent's ports at which it cannot listen, each with the owner of the socket that does.
    pub taken_ports: Vec<(TakenPort, Option<SocketOwner>)>,
    /// The kubeconfig of the entry and the error, if it cannot be opened.
    pub unreadable_kubeconfig: Option<(PathBuf, Errno)>,
    /// The probe report.
    pub probe_report: Option<NodeProbe>,
    /// The backend in use, if its programs are missing on the host, and why.
    pub missing_programs: Option<(BackendKind, String)>,
    /// The pods of this node with their verdicts; none if Gybe is not installed, or its agent removes it.
    pub pods: Option<PodVerdicts>,
    /// The exemption of the kubelet's probes, or why it cannot be read; none without ambient pods.
    pub probe_exemption: Option<Result<ObservedExemption, String>>,
    /// How `gybe` notices changes of the conf directory.
    pub watch: WatchMode,
    /// The runtimes that run here, and what they watch.
    pub runtimes: Vec<RuntimeProcess>,
    /// The doctor's effective uid; none for root.
    pub user: Option<u32>,
    /// The security module that may refuse an access.
    pub security_module: SecurityModule,
    /// Files of istio-cni's agent.
    pub istio_files: Vec<PathBuf>,
}

impl Observation {
    /// The setting `plugin_dir`: the operator's or, without one, the running agent's.
    pub(crate) fn confirmed(&self) -> Confirmed {
        let status = self.agent.as_ref().and_then(|agent| agent.status.as_ref());
        let by_agent = match status {
            Some(status) if status.plugin_dir_confirmed => Confirmed::Yes,
            _ => Confirmed::No,
        };
        self.options.confirmed.unwrap_or(by_agent)
    }
}

/// The pod sandboxes of the node.
#[derive(Debug)]
pub struct PodVerdicts {
    /// Each sandbox with its verdict.
    pub judged: Vec<SandboxVerdict>,
    /// What could not be read, so that sandboxes may be missing.
    pub unreadable: Vec<String>,
}

/// A security module that refuses root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecurityModule {
    /// None that is visible here.
    None,
    SeLinux,
    AppArmor,
}

/// Observes the node.
#[must_use]
pub fn observe(options: DoctorOptions) -> Observation {
    let mut snapshot = crate::host::observe::observe(
        &options.directories,
        &ObserveScope::in_programs(every_name()),
        &mut HashCache::default(),
    );
    let ours = OurEntries::find(&snapshot.conf);
    let conf = ours.plugin_conf();
    // Whether the runtime reads drop-ins matters for those of other owners, too.
    let has_no_drop_in = snapshot.conf.networks.is_empty() && snapshot.conf.unread_networks.is_empty();
    let drop_ins = if has_no_drop_in { DropInCheck::Skip } else { DropInCheck::Read };
    let directories = [
        ("conf", &options.directories.conf),
        ("program", &options.directories.programs),
        ("run", &options.run),
    ];
    let plugin = options.directories.programs.join(PLUGIN);
    let has_no_entry = snapshot.conf.state == DirectoryState::Present && !ours.is_anywhere();
    let socket = match &conf {
        // The usual socket: an agent that serves it restores the entry.
        None if has_no_entry => Some(options.run.join(FACTS_SOCKET)),
        conf => conf.as_ref().and_then(|conf| conf.facts.socket.clone()),
    };
    let agent = socket.as_deref().map(query_agent);
    let is_installed = ours.is_anywhere() || plugin.exists();
    let judges_pods = is_installed && !agent.as_ref().is_some_and(AgentContact::leaves);
    let probe_report = read_probe_report(&options.run);
    let running_now = running(&options.root, &options.directories.conf, drop_ins);
    snapshot.runtimes = RuntimeReport::of(&options.root, &running_now).known(&options.directories);
    Observation {
        platform: Platform::of_host(&options.root),
        file_systems: file_systems(directories),
        conf_link: fs::read_link(&options.directories.conf).ok(),
        trial: plugin.exists().then(|| try_installed(&plugin, Trial::CniVersion)),
        taken_ports: agent.as_ref().map(taken_ports).unwrap_or_default(),
        offers_another_build: options
            .image
            .as_deref()
            .is_some_and(|image| both_exist_and_differ(&plugin, &image.join(PLUGIN))),
        agent,
        log: conf.as_ref().and_then(|conf| conf.facts.log_socket()).map(|path| connect_log(&path)),
        unreadable_kubeconfig: conf.as_ref().and_then(unreadable_kubeconfig),
        missing_programs: conf
            .as_ref()
            .and_then(|conf| missing_programs(conf, probe_report.as_ref(), &options.root)),
        probe_report,
        pods: judges_pods.then(|| pods_of(conf.unwrap_or_else(|| without_entry(&options)), &options)),
        probe_exemption: probe_exemption::observe(&options.root, &options.run)
            .map_err(|why| chain(&why))
            .transpose(),
        watch: DirectoryWatch::new([options.directories.conf.clone()]).mode(),
        runtimes: running_now,
        user: Some(geteuid()).filter(|user| !user.is_root()).map(Uid::as_raw),
        security_module: security_module(),
        istio_files: istio_files(&options),
        snapshot,
        options,
    }
}

/// What is known about the runtimes that run on the node whose root is at `root`.
#[must_use]
pub fn runtimes_of(root: &Path, directories: &NodeDirectories) -> Runtimes {
    RuntimeReport::of(root, &running(root, &directories.conf, DropInCheck::Read)).known(directories)
}

fn taken_ports(agent: &AgentContact) -> Vec<(TakenPort, Option<SocketOwner>)> {
    let taken = agent.status.iter().flat_map(|status| &status.ports);
    taken.map(|port| (port.clone(), SocketOwner::of(port.address))).collect()
}

fn both_exist_and_differ(one: &Path, other: &Path) -> bool {
    let length = |path: &Path| fs::metadata(path).ok().map(|meta| meta.len());
    let hash = |path: &Path| Hash::of_all(fs::File::open(path).ok()?).ok();
    match (length(one), length(other)) {
        (Some(one), Some(other)) if one != other => true,
        (Some(_), Some(_)) => hash(one) != hash(other),
        _ => false,
    }
}

fn unreadable_kubeconfig(conf: &PluginConf) -> Option<(PathBuf, Errno)> {
    let path = conf.facts.kubeconfig.as_ref()?;
    let why = fs::File::open(path).err()?;
    Some((path.clone(), errno(&why)))
}

fn read_probe_report(run: &Path) -> Option<NodeProbe> {
    let capabilities = ProbeCache::at(run).load()?;
    Some(NodeProbe { kernel: this_node().ok()?.kernel, capabilities })
}

fn missing_programs(
    conf: &PluginConf,
    probe_report: Option<&NodeProbe>,
    root: &Path,
) -> Option<(BackendKind, String)> {
    let kind = node_backend(conf.backend, None, probe_report).writes()?;
    kind.look_under(root).err().map(|why| (kind, why.to_string()))
}

/// The configuration where the entry is missing or cannot be parsed: the defaults, with this node's agent.
fn without_entry(options: &DoctorOptions) -> PluginConf {
    let mut conf = PluginConf::default();
    conf.facts.socket = Some(options.run.join(FACTS_SOCKET));
    conf
}

fn pods_of(conf: PluginConf, options: &DoctorOptions) -> PodVerdicts {
    let paths = HostPaths { results: options.directories.results.clone(), root: options.root.clone() };
    let found = sandboxes::find(&paths);
    let sources = sandboxes::PolicySources::of(conf);
    let judged = sandboxes::judge_all(found.sandboxes, &sources, &options.root);
    PodVerdicts { judged, unreadable: found.unreadable }
}

/// Detects the security module by selinux(8)'s and apparmor(7)'s files.
fn security_module() -> SecurityModule {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    if text("/sys/fs/selinux/enforce").trim() == "1" {
        return SecurityModule::SeLinux;
    }
    let confined = is_confined(&text("/proc/self/attr/apparmor/current"));
    if confined { SecurityModule::AppArmor } else { SecurityModule::None }
}

/// Reports whether AppArmor refuses accesses of a process with this label: a profile may only log them, or allow all.
fn is_confined(label: &str) -> bool {
    let label = label.trim();
    let allows_all = ["unconfined", "(unconfined)", "(complain)"].iter().any(|end| label.ends_with(end));
    !label.is_empty() && !allows_all
}

/// The files that istio-cni's agent keeps on a node (docs/ISTIO.md, section 5).
fn istio_files(options: &DoctorOptions) -> Vec<PathBuf> {
    let kept = ["log.sock", "istio-cni-kubeconfig", "pluginevent.sock"];
    let kept = kept.map(|name| options.root.join("var/run/istio-cni").join(name));
    let older = options.directories.conf.join("ZZZ-istio-cni-kubeconfig");
    kept.into_iter().chain([older]).filter(|path| path.symlink_metadata().is_ok()).collect()
}

/// The doctor's own limit for each query of the agent, shorter than an ADD's (`facts.deadline_ms`).
const TIMEOUT: Duration = Duration::from_secs(2);

/// The agent's answer.
#[derive(Debug)]
pub struct AgentContact {
    /// The path of its socket.
    pub socket: PathBuf,
    /// None if it responded as expected: it does not know the pod.
    pub fault: Option<FactsError>,
    /// The agent's own status; none if it does not report one.
    pub status: Option<AgentStatus>,
}

impl AgentContact {
    /// Reports whether an agent answers at the socket, possibly with an error of its own. A listener of another user,
    /// or one that does not answer in time, is not a usable agent.
    pub(crate) fn is_running(&self) -> bool {
        match &self.fault {
            None => true,
            Some(FactsError::Agent(error)) => {
                use AgentFault::{Invalid, Manifest, Reported, TooLong};
                matches!(error.fault, Reported(_) | Manifest(_) | Invalid(_) | TooLong)
            }
            Some(_) => false,
        }
    }

    /// Reports whether no process serves the socket. An agent that hangs, or is another user's, is not absent.
    pub(crate) fn is_absent(&self) -> bool {
        let fault = match &self.fault {
            Some(FactsError::Agent(error)) => &error.fault,
            _ => return false,
        };
        matches!(fault, AgentFault::Unreachable(Errno::ENOENT | Errno::ECONNREFUSED))
    }

    /// Reports whether the agent removes Gybe from this node, or has removed it (`mode: leave`).
    pub(crate) fn leaves(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.leaves)
    }
}

/// The agent's socket for the plugin's log lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSocketContact {
    pub socket: PathBuf,
    /// The error of connect(2): no process receives there, or the kernel refuses.
    pub fault: Option<Errno>,
}

pub(crate) fn query_agent(socket: &Path) -> AgentContact {
    let conf =
        FactsConf { socket: Some(socket.to_owned()), directory: None, kubeconfig: None, deadline: TIMEOUT };
    let fault = absent_pod().and_then(|pod| match facts::look_up(&conf, &pod, false) {
        Ok(_) | Err(FactsError::Unknown(_)) => None,
        Err(fault) => Some(fault),
    });
    let mut contact = AgentContact { socket: socket.to_owned(), fault, status: None };
    if contact.is_running() {
        contact.status = agent_status::query(socket, TIMEOUT).ok().flatten();
    }
    contact
}

/// A pod that does not exist: a valid name, because the agent refuses any other, and a uid that no pod has.
fn absent_pod() -> Option<PodRef> {
    let namespace = Namespace::parse("gybe-doctor").ok()?;
    let name = PodName::parse("a-pod-that-there-is-not").ok()?;
    Some(PodRef { namespace, name, uid: Some("00000000-0000-0000-0000-000000000000".to_owned()) })
}

/// Connects to the datagram socket, which fails if no process receives there; sends nothing.
fn connect_log(path: &Path) -> LogSocketContact {
    let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    let fault = connected.err().map(|why| errno(&why));
    LogSocketContact { socket: path.to_owned(), fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_of_apparmor_that_refuses_nothing_does_not_confine() {
        for (label, expected) in [
            ("", false),
            ("unconfined\n", false),
            ("steam (unconfined)\n", false),
            ("cri-containerd.apparmor.d (complain)\n", false),
            ("cri-containerd.apparmor.d (enforce)\n", true),
            ("a//&b (mixed)\n", true),
        ] {
            assert_eq!(is_confined(label), expected, "{label:?}");
        }
    }
}
