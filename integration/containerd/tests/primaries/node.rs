//! A node with an API server, a primary plugin's agent and Gybe's agent.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use gybe_containerd_tests::{
    Agent, AgentOptions, Conflist, Cri, Generation, HostProcess, Node, Programs, Sandbox, SimulatedHost,
    agent, containerd, manifest, program_under_test,
};
use gybe_demo::testnet::namespace::Namespace;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::nft::Nft;
use gybe_test_support::wait_for_at_most;
use nix::sys::signal::Signal;
use serde_json::Value;

const HOST_INIT: &str = env!("CARGO_BIN_EXE_gybe-host-init");
const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const IMAGE: &str = "/run/gybe/image";
/// The longest wait for one event: more than any takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// An agent writes its conf file within this time of its start, or not at all; kindnetd after ten seconds.
pub(crate) const REWRITE: Duration = Duration::from_secs(15);

/// A primary plugin: `primaries/NAME.sh` starts its agent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Primary {
    pub(crate) name: &'static str,
    /// The conf file that the runtime takes.
    pub(crate) file: &'static str,
    /// Its programs. Without one of them the test does not run, and prints that.
    pub(crate) needs: &'static [&'static str],
    /// Cilium's `cni.exclusive`.
    pub(crate) exclusive: bool,
}

/// The setting `shape`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryShape {
    Chained,
    DropIn,
    /// With the probe, which reports that this containerd reads drop-ins.
    Auto,
}

impl EntryShape {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Chained => "chained",
            Self::DropIn => "dropin",
            Self::Auto => "auto",
        }
    }
}

/// A node and the agents on it.
pub(crate) struct PrimaryNode {
    pub(crate) primary: Primary,
    pub(crate) shape: EntryShape,
    pub(crate) node: Node,
    log: PathBuf,
    agent: Mutex<Option<HostProcess>>,
    gybe: Mutex<Option<Agent>>,
    probe: Mutex<Option<HostProcess>>,
    api: HostProcess,
}

/// The directory of other owners' programs: `GYBE_PRIMARIES`, or the one that `primaries/setup.sh` fills.
fn programs() -> PathBuf {
    std::env::var_os("GYBE_PRIMARIES")
        .map_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("primaries"), PathBuf::from)
}

fn script(name: &str) -> PathBuf {
    Path::new(TOP).join(format!("integration/containerd/primaries/{name}.sh"))
}

impl PrimaryNode {
    pub(crate) fn start(primary: &Primary, shape: EntryShape) -> Self {
        let missing = primary.needs.iter().find(|name| !programs().join(name).exists());
        assert_eq!(missing, None, "{}: a program is missing in {}", primary.name, programs().display());
        let test = thread::current().name().unwrap_or("unnamed").replace("::", ".");
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.log"));
        let generation = Generation::V2;
        let start = Programs { host_init: Path::new(HOST_INIT), plugins: &[], runc: None };
        let node =
            Node::start(start, generation, &Conflist::reference_plugins(generation), log.clone()).unwrap();
        fs::remove_file(node.host().path(containerd::CONF_DIR).join(gybe_containerd_tests::node::CONFLIST))
            .unwrap();
        let settings = node.host().path(agent::SETTINGS);
        fs::create_dir_all(&settings).unwrap();
        fs::write(settings.join("shape"), shape.name()).unwrap();
        for name in ["gybe", "gybe-cni"] {
            node.host().install(&program_under_test(name).unwrap(), &format!("{IMAGE}/{name}")).unwrap();
        }
        let mut api = node.host().command(Path::new("/nonexistent"), "sh");
        api.arg(script("api")).arg(Path::new(TOP).join("target/cluster"));
        let api = HostProcess::start_and_wait(api, "the API server serves", &log.with_extension("api.log"))
            .unwrap();
        Self {
            primary: *primary,
            shape,
            node,
            log,
            agent: Mutex::default(),
            gybe: Mutex::default(),
            probe: Mutex::default(),
            api,
        }
    }

    pub(crate) fn host(&self) -> &SimulatedHost {
        self.node.host()
    }

    pub(crate) fn start_primary(&self) {
        let mut command = self.host().command(Path::new("/nonexistent"), "sh");
        command.arg(script(self.primary.name)).env("PROGRAMS", programs());
        command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").env("KUBERNETES_SERVICE_PORT", "6443");
        command.env("CILIUM_EXCLUSIVE", self.primary.exclusive.to_string());
        let agent = HostProcess::start(command, "\0", &self.log.with_extension("primary.log")).unwrap();
        *self.agent.lock().unwrap() = Some(agent);
    }

    /// Kills the primary's agent and what it started.
    pub(crate) fn stop_primary(&self) {
        let Some(agent) = self.agent.lock().unwrap().take() else { return };
        agent.stop(Signal::SIGKILL).unwrap();
        // Multus' script has two agents below it, which process 1 inherits.
        for program in ["flanneld", "thin_entrypoint"] {
            let _none = self.host().run(Path::new("pkill"), &["-KILL", "-x", program]);
        }
    }

    pub(crate) fn start_gybe(&self) {
        let options = AgentOptions { image: Path::new(IMAGE), wrapper: &[], environment: &[] };
        let gybe = self.node.start_installing_agent(&options).unwrap();
        *self.gybe.lock().unwrap() = Some(gybe);
        if self.shape == EntryShape::Auto {
            let mut command = self.host().command(Path::new("/nonexistent"), Path::new(IMAGE).join("gybe"));
            command.args(["probe", "--watch", "--keep"]);
            let probe = HostProcess::start(command, "\0", &self.log.with_extension("probe.log")).unwrap();
            *self.probe.lock().unwrap() = Some(probe);
        }
    }

    pub(crate) fn stop_gybe(&self) {
        if let Some(gybe) = self.gybe.lock().unwrap().take() {
            gybe.stop(Signal::SIGKILL).unwrap();
        }
        if let Some(probe) = self.probe.lock().unwrap().take() {
            probe.stop(Signal::SIGKILL).unwrap();
        }
    }

    /// Ends containerd, both agents and `cni0`, removes what the owners and the agent's sockets leave in `/run`, and starts
    /// containerd again.
    pub(crate) fn reboot(self) -> Self {
        self.stop_primary();
        self.stop_gybe();
        let Self { primary, shape, node, log, api, .. } = self;
        let killed = node.kill_containerd().unwrap();
        for volatile in [
            "/run/flannel",
            "/run/cni-ipam-state",
            "/run/gybe/facts.sock",
            "/run/gybe/log.sock",
            "/run/gybe/runtime.json",
        ] {
            let path = killed.host().path(volatile);
            let _absent = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
        let _absent = killed.host().run(Path::new("ip"), &["link", "delete", "cni0"]);
        let node = killed.restart_containerd();
        Self {
            primary,
            shape,
            node: node.unwrap(),
            log,
            agent: Mutex::default(),
            gybe: Mutex::default(),
            probe: Mutex::default(),
            api,
        }
    }

    /// The conf file that the runtime takes: the first. Multus' is renamed when Gybe makes a list of it.
    pub(crate) fn conf_file(&self) -> PathBuf {
        let directory = self.host().path(containerd::CONF_DIR);
        let names = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        let is_conf = |path: &PathBuf| path.extension().is_some_and(|it| it == "conf" || it == "conflist");
        names.filter(is_conf).min().unwrap_or_else(|| directory.join(self.primary.file))
    }

    /// Creates the pod in the API server: for one that is not there Multus runs no plugin, and reports success. Its uid is
    /// the API server's, so the pod is described as one of a file, whose uid Multus does not compare.
    fn create_pod(&self, name: &str) {
        let pod = serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "default",
                "annotations": { "kubernetes.io/config.source": "file" } },
            "spec": { "containers": [{ "name": "app", "image": "app" }] },
        });
        let kubectl = Path::new(TOP).join("target/cluster/kubectl");
        let line = format!(
            "echo '{pod}' | HOME=/run/gybe/api {} --kubeconfig /run/gybe/api/kubeconfig create -f -",
            kubectl.display()
        );
        self.host().run(Path::new("sh"), &["-c", &line]).unwrap();
    }

    /// Changes with each write of the conf file.
    pub(crate) fn version(&self) -> Option<(u64, i64, i64)> {
        fs::metadata(self.conf_file()).map(|file| (file.ino(), file.mtime(), file.mtime_nsec())).ok()
    }

    /// Reports whether a pod that the runtime starts with the files of this moment runs `gybe-cni`.
    pub(crate) fn has_entry(&self) -> bool {
        let Ok(text) = fs::read(self.conf_file()) else { return false };
        let Ok(conf) = serde_json::from_slice::<Value>(&text) else { return false };
        if self.shape == EntryShape::Chained {
            return conf.to_string().contains("\"gybe-cni\"");
        }
        let dropin = format!("{}/zz-gybe-cni.conf", conf["name"].as_str().unwrap_or_default());
        conf["plugins"].is_array() && self.host().path(containerd::CONF_DIR).join(dropin).exists()
    }

    /// Requests a meshed pod until it starts, as the kubelet does. Returns its sandbox and whether it is redirected.
    pub(crate) fn run_pod(&self, name: &str, cri: &Cri) -> (String, bool) {
        let sandbox = Sandbox::injected("default", name);
        if self.primary.name == "multus" {
            self.create_pod(name);
        }
        manifest::publish(self.host(), &sandbox, &manifest::injected(&sandbox)).unwrap();
        let mut refused = Vec::new();
        let id = wait_for_at_most(PATIENCE, || {
            cri.run(&sandbox).map_err(|error| refused.push(error.message().to_owned())).ok()
        });
        let id = id.unwrap_or_else(|| panic!("{name} did not start: {:?}", refused.last()));
        let netns = cri.sandbox_status(&id).unwrap().netns.unwrap();
        let namespace = Namespace::open(&self.host().path(netns)).unwrap();
        let ours = namespace.run(|| Nft.inspect()).unwrap().unwrap();
        (id, !ours.is_empty())
    }

    /// Runs `gybe` of the node; returns its exit code and output.
    pub(crate) fn run_gybe(&self, arguments: &str) -> (Option<i32>, String) {
        let mut command = self.host().command(Path::new("/nonexistent"), Path::new(IMAGE).join("gybe"));
        let output = command.args(arguments.split(' ')).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    pub(crate) fn wait_for_entry(&self) {
        let found = wait_for_at_most(PATIENCE, || self.has_entry().then_some(()));
        found
            .unwrap_or_else(|| panic!("{}: no entry; {}", self.primary.name, self.node.agent_log().unwrap()));
    }
}
