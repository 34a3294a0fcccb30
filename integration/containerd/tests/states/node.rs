//! A node that is put into one state after another, and the verdicts about each state.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::panic;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gybe_containerd_tests::{
    Agent, AgentOptions, Conflist, Generation, HarnessError, HostProcess, Node, Programs, Sandbox, agent,
    containerd, manifest, program_under_test,
};
use gybe_demo::testnet::namespace::Namespace;
use gybe_installer::host::libcni::{NoChoice, choose};
use gybe_installer::host::observe::runtimes::{DropIns, Runtime};
use gybe_installer::host::observe::{FileName, HashCache, NodeDirectories, ObserveScope, observe};
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::nft::Nft;
use gybe_test_support::wait_for_at_most;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::rows::{Content, Row, RuntimeReport, Step};

const HOST_INIT: &str = env!("CARGO_BIN_EXE_gybe-host-init");
/// The directory of the agent's image on the node.
const IMAGE: &str = "/run/gybe/image";
/// The directory of the files to which links in the conf directory lead.
const LINK_TARGETS: &str = "/etc/cni/link-targets";
/// A directory of programs that the runtime does not search.
pub(crate) const OTHER_BIN_DIR: &str = "/run/gybe/other-bin";
const ISTIO_RUN_DIR: &str = "/run/gybe/istio";
/// The directory of the probe's reports.
const PROBE_DIR: &str = "/run/gybe";
/// A directory with the probe's report about backends and none about the runtime.
const PROBE_DIR_WITHOUT_RUNTIME: &str = "/run/gybe/probe";
/// Longer than any awaited event takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time after which an expected state that has not come about is reported as a disagreement.
const SETTLING_TIME: Duration = Duration::from_secs(10);

/// What happened to a meshed pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextPod {
    Redirected,
    NotRedirected,
    NotStarted,
}

impl NextPod {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Redirected => "redirected",
            Self::NotRedirected => "starts, not redirected",
            Self::NotStarted => "does not start",
        }
    }
}

/// The verdicts about one state.
#[derive(Debug)]
pub(crate) struct Verdicts {
    pub(crate) plan: bool,
    pub(crate) ready: bool,
    pub(crate) metric: u8,
    /// Whether `gybe doctor` finds no problem.
    pub(crate) doctor: bool,
    pub(crate) pod: NextPod,
    /// The reason in `/readyz`.
    pub(crate) reason: String,
}

impl Verdicts {
    pub(crate) fn disagreement(&self, row: &Row) -> Option<String> {
        let redirected = self.pod == NextPod::Redirected;
        let all = [self.plan, self.ready, self.metric == 1, self.doctor, row.redirected];
        all.iter().any(|verdict| *verdict != redirected).then(|| format!("{}: {self:?}", row.name))
    }
}

pub(crate) struct StateNode {
    /// It renews its report about the runtime.
    _probe: HostProcess,
    node: Node,
    generation: Generation,
    /// The runtime's plugins: names and targets of the links.
    plugins: BTreeMap<PathBuf, PathBuf>,
}

impl StateNode {
    /// Starts a node with containerd and the probe. `number` distinguishes nodes of one generation.
    pub(crate) fn start(generation: Generation, number: usize) -> Self {
        let programs = Programs { host_init: Path::new(HOST_INIT), plugins: &[], runc: None };
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("states-{generation}-{number}.log"));
        let conflist = Conflist::reference_plugins(generation);
        let node = Node::start(programs, generation, &conflist, log).unwrap();
        let path = |path: &str| node.host().path(path);
        for directory in [manifest::DIRECTORY, IMAGE, PROBE_DIR_WITHOUT_RUNTIME] {
            fs::create_dir_all(path(directory)).unwrap();
        }
        for name in ["gybe", "gybe-cni"] {
            node.host().install(&program_under_test(name).unwrap(), &format!("{IMAGE}/{name}")).unwrap();
        }
        let links = fs::read_dir(path(containerd::BIN_DIR)).unwrap().map(|entry| entry.unwrap().path());
        let plugins = links.map(|link| (link.file_name().unwrap().into(), fs::read_link(&link).unwrap()));
        let plugins = plugins.collect();
        let mut probe = node.host().command(Path::new("/nonexistent"), format!("{IMAGE}/gybe"));
        probe.args(["probe", "--watch", "--keep"]);
        let log =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("states-{generation}-{number}.probe.log"));
        let probe = HostProcess::start(probe, "\0", &log).unwrap();
        let reports = ["probe.json", "runtime.json"].map(|name| path(PROBE_DIR).join(name));
        wait_for("the probe's reports", || reports.iter().all(|path| path.exists()).then_some(()));
        fs::copy(&reports[0], path(PROBE_DIR_WITHOUT_RUNTIME).join("probe.json")).unwrap();
        Self { _probe: probe, node, generation, plugins }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.node.host().path(path)
    }

    fn conf_path(&self, name: &str) -> PathBuf {
        self.path(containerd::CONF_DIR).join(name)
    }

    fn perform(&self, step: &Step) {
        match *step {
            Step::File(name, content) => self.write_conf(name, content),
            Step::Unreadable(name, content) => {
                self.write_conf(name, content);
                make_unreadable(&self.conf_path(name));
            }
            Step::UnreadableDirectory(name) => make_unreadable(&self.conf_path(name)),
            Step::Directory(name) => fs::create_dir(self.conf_path(name)).unwrap(),
            Step::Link { name, target, content } => {
                if let Some(content) = content {
                    fs::write(self.path(LINK_TARGETS).join(target), self.text(content)).unwrap();
                }
                symlink(Path::new("../link-targets").join(target), self.conf_path(name)).unwrap();
            }
            Step::IstioAgent => {
                let listener = UnixListener::bind(self.path(ISTIO_RUN_DIR).join("log.sock")).unwrap();
                // The socket listens until the test process ends.
                std::mem::forget(listener);
            }
            Step::OtherPlugin(name) => {
                let plugin = self.path(OTHER_BIN_DIR).join(name);
                fs::write(&plugin, "#!/bin/sh\n").unwrap();
                fs::set_permissions(plugin, Permissions::from_mode(0o755)).unwrap();
            }
            Step::RemovePlugin(name) => {
                fs::remove_file(self.path(containerd::BIN_DIR).join(name)).unwrap();
            }
        }
    }

    /// Writes a conf file, or one in a network's directory.
    fn write_conf(&self, name: &str, content: Content) {
        let path = self.conf_path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, self.text(content)).unwrap();
    }

    fn text(&self, content: Content) -> String {
        let list = Conflist::reference_plugins(self.generation).text(0);
        let mut json: Value = serde_json::from_str(&list).unwrap();
        match content {
            Content::Text(text) => return text.to_owned(),
            Content::List => return list,
            Content::ListAfter(text) => return format!("{text}{list}"),
            Content::ListWith(plugins) => {
                let plugins = plugins.iter().map(|plugin| serde_json::from_str::<Value>(plugin).unwrap());
                json["plugins"].as_array_mut().unwrap().extend(plugins);
            }
            Content::ListWithFlag(name) => json[name] = true.into(),
            Content::LargeList => json["filler"] = "x".repeat(1 << 20).into(),
            Content::SinglePlugin => {
                let mut plugin = json["plugins"][0].clone();
                plugin["name"] = json["name"].clone();
                plugin["cniVersion"] = json["cniVersion"].clone();
                json = plugin;
            }
        }
        json.to_string()
    }

    /// Puts the node into a row's state, runs the agent, and returns the verdicts.
    pub(crate) fn verdicts(&self, index: usize, row: &Row) -> Verdicts {
        self.reset();
        row.steps.iter().for_each(|step| self.perform(step));
        for (key, value) in row.settings {
            fs::write(self.path(agent::SETTINGS).join(key), value).unwrap();
        }
        let agent = self.start_agent(row);
        wait_for("the agent's first pass", || {
            self.get(8000, "/readyz").filter(|page| !page.contains("has not ended"))
        });
        if row.redirected {
            wait_for_at_most(SETTLING_TIME, || {
                self.get(8000, "/readyz").filter(|page| page.starts_with("ready"))
            });
        }
        wait_for_at_most(SETTLING_TIME, || self.has_loaded().then_some(()));
        let pod = self.start_pod(index);
        let page = self.get(8000, "/readyz").unwrap();
        let metrics = self.get(15014, "/metrics").unwrap();
        let metric = metrics.lines().find_map(|line| line.strip_prefix("istio_cni_install_ready "));
        let reason = page.lines().nth(1).and_then(|line| line.strip_prefix("- ")).unwrap_or_default();
        let verdicts = Verdicts {
            plan: self.plan(row),
            ready: page.starts_with("ready"),
            metric: metric.unwrap().parse().unwrap(),
            doctor: self.doctor(row),
            pod,
            reason: reason.to_owned(),
        };
        agent.stop(Signal::SIGKILL).unwrap();
        verdicts
    }

    fn start_agent(&self, row: &Row) -> Agent {
        let probe_dir = match row.runtime_report {
            RuntimeReport::Present => PROBE_DIR,
            RuntimeReport::Absent => PROBE_DIR_WITHOUT_RUNTIME,
        };
        let mut environment = vec![
            ("GYBE_PROBE_DIR", probe_dir),
            ("GYBE_ISTIO_RUN_DIR", ISTIO_RUN_DIR),
            ("MOUNTED_CNI_BIN_DIR", row.bin_dir),
        ];
        environment.extend(row.environment);
        let image = Path::new(IMAGE);
        let options = AgentOptions { image, wrapper: row.wrapper, environment: &environment };
        self.node.start_installing_agent(&options).unwrap()
    }

    /// Empties all directories, then links the runtime's plugins again.
    fn reset(&self) {
        for directory in [
            containerd::CONF_DIR,
            containerd::BIN_DIR,
            agent::SETTINGS,
            LINK_TARGETS,
            ISTIO_RUN_DIR,
            OTHER_BIN_DIR,
        ] {
            for entry in fs::read_dir(self.path(directory)).into_iter().flatten() {
                let path = entry.unwrap().path();
                let is_directory = path.symlink_metadata().unwrap().is_dir();
                if is_directory { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
            }
            fs::create_dir_all(self.path(directory)).unwrap();
        }
        for (name, target) in &self.plugins {
            symlink(target, self.path(containerd::BIN_DIR).join(name)).unwrap();
        }
    }

    /// Reports whether containerd has loaded the conf directory as it is now, or failed to if it cannot be loaded.
    /// A wrong prediction of what containerd loads shows in the pod.
    fn has_loaded(&self) -> bool {
        let drop_ins = if self.generation == Generation::V2 { DropIns::Loaded } else { DropIns::Ignored };
        let directories = NodeDirectories {
            conf: self.path(containerd::CONF_DIR),
            programs: self.path(containerd::BIN_DIR),
            results: self.path("/var/lib/cni/results"),
        };
        let conf = observe(&directories, &ObserveScope::default(), &mut HashCache::default()).conf;
        let loaded = self.node.cri.loaded_network().unwrap();
        let is_loaded = |file: &FileName| {
            let text = fs::read(directories.conf.join(file.as_os_str())).unwrap_or_default();
            let file: Value = serde_json::from_slice(&text).unwrap_or_default();
            file.get("plugins").is_none() || loaded.conflist == Some(file)
        };
        match choose(&conf, Runtime::Containerd, drop_ins) {
            Ok(choice) => {
                loaded.outcome == "OK" && is_loaded(&choice.file) && loaded.plugins == choice.network.plugins
            }
            // A file that is too large for Gybe, or a dangling link.
            Err(NoChoice::Unknown(broken)) if directories.conf.join(broken.file.as_os_str()).exists() => {
                loaded.outcome == "OK" && is_loaded(&broken.file)
            }
            Err(_) => loaded.outcome != "OK",
        }
    }

    /// Starts and deletes a meshed pod.
    fn start_pod(&self, index: usize) -> NextPod {
        let sandbox = Sandbox::injected("shop", &format!("row-{index}"));
        manifest::publish(self.node.host(), &sandbox, &manifest::injected(&sandbox)).unwrap();
        let id = match self.node.cri.run(&sandbox) {
            Ok(id) => id,
            Err(HarnessError::Refused { .. }) => return NextPod::NotStarted,
            Err(error) => panic!("{error}"),
        };
        let netns = self.node.cri.sandbox_status(&id).unwrap().netns.unwrap();
        let namespace = Namespace::open(&self.path(netns.to_str().unwrap())).unwrap();
        let ours = namespace.run(|| Nft.inspect()).unwrap().unwrap();
        self.node.cri.delete(&id).unwrap();
        if ours.is_empty() { NextPod::NotRedirected } else { NextPod::Redirected }
    }

    /// Returns the verdict of `gybe install --dry-run` with the agent's settings and mounts.
    fn plan(&self, row: &Row) -> bool {
        let arguments = ["install", "--dry-run", "--json", "--from", IMAGE, "--config", agent::SETTINGS];
        // This agent has no namespace.
        let arguments = [&arguments[..], &["--agent-namespace", ""]].concat();
        let directories = ["--conf-dir", containerd::CONF_DIR, "--bin-dir", row.bin_dir];
        let arguments = [&arguments[..], &directories, row.install_arguments].concat();
        let plan = self.run_gybe(row.wrapper, &arguments);
        plan["redirected"].as_bool().unwrap_or_else(|| panic!("{plan}"))
    }

    /// Reports whether `gybe doctor` finds no problem that concerns the redirection of pods.
    fn doctor(&self, row: &Row) -> bool {
        let arguments = ["doctor", "--json", "--conf-dir", containerd::CONF_DIR, "--bin-dir", row.bin_dir];
        let report = self.run_gybe(&[], &arguments);
        let subjects = ["directories", "chain", "entry", "programs", "others"];
        let is_problem = |finding: &Value| {
            finding["state"] == "wrong" && subjects.iter().any(|subject| finding["about"] == *subject)
        };
        !report["findings"].as_array().unwrap().iter().any(is_problem)
    }

    /// Runs `gybe` on the node and returns its JSON output.
    fn run_gybe(&self, wrapper: &[&str], arguments: &[&str]) -> Value {
        let gybe = format!("{IMAGE}/gybe");
        let line = [wrapper, &[gybe.as_str()], arguments].concat();
        let mut command = self.node.host().command(Path::new("/nonexistent"), line[0]);
        let output = command.args(&line[1..]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {line:?} {output:?}"))
    }

    /// Returns the body of one of the agent's HTTP endpoints.
    fn get(&self, port: u16, path: &str) -> Option<String> {
        let namespace = Namespace::open(&self.node.host().netns()).unwrap();
        let body = namespace.run(|| {
            let mut agent = TcpStream::connect(("127.0.0.1", port)).ok()?;
            agent.set_read_timeout(Some(PATIENCE)).ok()?;
            write!(agent, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
            let mut response = String::new();
            agent.read_to_string(&mut response).ok()?;
            Some(response.split_once("\r\n\r\n")?.1.to_owned())
        });
        body.unwrap()
    }
}

/// Gives a file or directory to another user.
fn make_unreadable(path: &Path) {
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
}

fn wait_for<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    wait_for_at_most(PATIENCE, probe).unwrap_or_else(|| panic!("not within {PATIENCE:?}: {what}"))
}
