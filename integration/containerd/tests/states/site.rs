//! A node that is put into one state after the other, and all who are asked about each.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{panic, thread};

use gybe_containerd_tests::agent::Keeping;
use gybe_containerd_tests::generation::program_under_test;
use gybe_containerd_tests::{
    Agent, Chain, Generation, Node, Programs, Sandbox, Trouble, agent, config, manifest,
};
use gybe_installer::host::libcni::choice::{NoChoice, Runtime, choose};
use gybe_installer::host::observe::{FileName, HashCache, NodeDirectories, ObserveScope, look};
use gybe_installer::host::runtimes::DropIns;
use gybe_installer::testnet::namespace::Namespace;
use gybe_netfilter::backend::Backend;
use gybe_netfilter::nft::Nft;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::rows::{Report, Row};

const STAGE: &str = env!("CARGO_BIN_EXE_gybe-stage");
/// The programs that the agent brings, inside the stage.
const IMAGE: &str = "/run/gybe/image";
/// Where the host's files are that links of the conf directory lead to, inside the stage.
pub(crate) const ELSEWHERE: &str = "/run/gybe/elsewhere";
/// Findings without what was seen of the runtime, inside the stage.
const WITHOUT_REPORT: &str = "/run/gybe/probe";
/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// What has not come about by then is not what was expected.
const COMING: Duration = Duration::from_secs(10);

/// What became of a pod of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pod {
    Redirected,
    NotRedirected,
    NotStarted,
}

impl Pod {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Redirected => "redirected",
            Self::NotRedirected => "starts, not redirected",
            Self::NotStarted => "does not start",
        }
    }
}

/// What each says of one state.
#[derive(Debug)]
pub(crate) struct Verdicts {
    pub(crate) plan: bool,
    pub(crate) ready: bool,
    pub(crate) metric: u8,
    pub(crate) doctor: bool,
    pub(crate) pod: Pod,
    pub(crate) why: String,
}

impl Verdicts {
    pub(crate) fn disagreement(&self, row: &Row) -> Option<String> {
        let is_met = self.pod == Pod::Redirected;
        let all = [self.plan, self.ready, self.metric == 1, self.doctor, row.is_met];
        all.iter().any(|one| *one != is_met).then(|| format!("{}: {self:?}", row.name))
    }
}

pub(crate) struct Site {
    pub(crate) node: Node,
    pub(crate) generation: Generation,
    /// The runtime's plugins, and where each link leads.
    plugins: BTreeMap<PathBuf, PathBuf>,
}

impl Site {
    /// A node with containerd, on which the probe has been.
    pub(crate) fn of(generation: Generation, part: usize) -> Self {
        let programs = Programs { stage: Path::new(STAGE), plugins: &[] };
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("states-{generation}-{part}.log"));
        let chain = Chain::of_reference_plugins(generation);
        let node = Node::start(programs, generation, &chain, log).unwrap();
        let path = |inside: &str| node.stage().path(inside);
        for directory in [agent::SETTINGS, manifest::DIRECTORY, IMAGE, ELSEWHERE, WITHOUT_REPORT] {
            fs::create_dir_all(path(directory)).unwrap();
        }
        for name in ["gybe", "gybe-cni"] {
            fs::copy(program_under_test(name).unwrap(), path(IMAGE).join(name)).unwrap();
        }
        let entries = fs::read_dir(path(config::BIN_DIR)).unwrap().map(|entry| entry.unwrap().path());
        let plugins = entries.map(|link| (link.file_name().unwrap().into(), fs::read_link(&link).unwrap()));
        let plugins = plugins.collect();
        let site = Self { node, generation, plugins };
        site.probe();
        site
    }

    /// The probe's container, as far as it is needed: until it has kept what it found.
    fn probe(&self) {
        let gybe = format!("{IMAGE}/gybe");
        let mut probe = self.node.stage().command(Path::new("/nonexistent"), &gybe);
        let mut probe = probe.args(["probe", "--watch", "--keep"]).spawn().unwrap();
        let kept = ["probe.json", "runtime.json"].map(|name| self.path("/run/gybe").join(name));
        until("the probe's findings", || kept.iter().all(|path| path.exists()).then_some(()));
        // nsenter has one child, which is the probe.
        let nsenter = probe.id();
        let children = fs::read_to_string(format!("/proc/{nsenter}/task/{nsenter}/children")).unwrap();
        kill(Pid::from_raw(children.trim().parse().unwrap()), Signal::SIGTERM).unwrap();
        probe.wait().unwrap();
        fs::copy(&kept[0], self.path(WITHOUT_REPORT).join("probe.json")).unwrap();
    }

    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.node.stage().path(inside)
    }

    /// A conf file, or one in a network's directory.
    pub(crate) fn put(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(config::CONF_DIR).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// A file of another user's, which root without capabilities cannot read.
    pub(crate) fn put_unreadable(&self, name: &str, text: &str) {
        let path = self.put(name, text);
        make_unreadable(&path);
    }

    /// A link to a file of the host's.
    pub(crate) fn link(&self, name: &str, to: &str, text: Option<&str>) {
        if let Some(text) = text {
            fs::write(self.path(ELSEWHERE).join(to), text).unwrap();
        }
        let link = self.path(config::CONF_DIR).join(name);
        symlink(Path::new("../elsewhere").join(to), link).unwrap();
    }

    pub(crate) fn judged(&self, n: usize, row: &Row) -> Verdicts {
        self.clear();
        (row.make)(self);
        for (key, value) in row.settings {
            fs::write(self.path(agent::SETTINGS).join(key), value).unwrap();
        }
        let agent = self.agent(row);
        until("the agent's first pass", || {
            self.get(8000, "/readyz").filter(|page| !page.contains("has not ended"))
        });
        if row.is_met {
            // What does not come about is told by the row.
            within(COMING, || self.get(8000, "/readyz").filter(|page| page.starts_with("ready")));
        }
        within(COMING, || self.has_loaded().then_some(()));
        let pod = self.pod(n);
        let page = self.get(8000, "/readyz").unwrap();
        let metrics = self.get(15014, "/metrics").unwrap();
        let metric = metrics.lines().find_map(|line| line.strip_prefix("istio_cni_install_ready "));
        let verdicts = Verdicts {
            plan: self.plan(row),
            ready: page.starts_with("ready"),
            metric: metric.unwrap().parse().unwrap(),
            doctor: self.doctor(row),
            pod,
            why: page.lines().nth(1).and_then(|line| line.strip_prefix("- ")).unwrap_or_default().to_owned(),
        };
        agent.end(Signal::SIGKILL).unwrap();
        verdicts
    }

    fn agent(&self, row: &Row) -> Agent {
        let probe = if row.report == Report::Kept { "/run/gybe" } else { WITHOUT_REPORT };
        let mut environment = vec![
            ("GYBE_PROBE_DIR", probe),
            ("GYBE_ISTIO_RUN_DIR", "/run/gybe/istio"),
            ("MOUNTED_CNI_BIN_DIR", row.bin),
        ];
        environment.extend(row.environment);
        let how = Keeping { image: Path::new(IMAGE), wrapper: row.wrapper, environment: &environment };
        self.node.begin_keeping_as(&how).unwrap()
    }

    /// Nothing but the runtime's own plugins, as it was.
    fn clear(&self) {
        for inside in [
            config::CONF_DIR,
            config::BIN_DIR,
            agent::SETTINGS,
            ELSEWHERE,
            "/run/gybe/istio",
            "/run/gybe/else",
        ] {
            for entry in fs::read_dir(self.path(inside)).into_iter().flatten() {
                let path = entry.unwrap().path();
                let is_directory = path.symlink_metadata().unwrap().is_dir();
                if is_directory { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
            }
            fs::create_dir_all(self.path(inside)).unwrap();
        }
        for (name, to) in &self.plugins {
            symlink(to, self.path(config::BIN_DIR).join(name)).unwrap();
        }
    }

    /// Whether containerd has loaded what is there now, or has failed to. What it has loaded otherwise, the pod
    /// shows.
    fn has_loaded(&self) -> bool {
        let drop_ins = if self.generation == Generation::V2 { DropIns::Loaded } else { DropIns::Ignored };
        let places = NodeDirectories {
            conf: self.path(config::CONF_DIR),
            programs: self.path(config::BIN_DIR),
            results: self.path("/var/lib/cni/results"),
        };
        let conf = look(&places, &ObserveScope::default(), &mut HashCache::default()).conf;
        let loaded = self.node.cri.loaded().unwrap();
        let is_of = |file: &FileName| {
            let text = fs::read(places.conf.join(file.as_os_str())).unwrap_or_default();
            let file: Value = serde_json::from_slice(&text).unwrap_or_default();
            file.get("plugins").is_none() || loaded.conflist == Some(file)
        };
        match choose(&conf, Runtime::Containerd, drop_ins) {
            Ok(choice) => {
                loaded.outcome == "OK" && is_of(&choice.file) && loaded.plugins == choice.network.plugins
            }
            // Too large for us to read, or a link without an end.
            Err(NoChoice::Unknown(broken)) if places.conf.join(broken.file.as_os_str()).exists() => {
                loaded.outcome == "OK" && is_of(&broken.file)
            }
            Err(_) => loaded.outcome != "OK",
        }
    }

    fn pod(&self, n: usize) -> Pod {
        let sandbox = Sandbox::injected("shop", &format!("row-{n}"));
        manifest::publish(self.node.stage(), &sandbox, &manifest::injected(&sandbox)).unwrap();
        let id = match self.node.cri.run(&sandbox) {
            Ok(id) => id,
            Err(Trouble::Refused { .. }) => return Pod::NotStarted,
            Err(trouble) => panic!("{trouble}"),
        };
        let netns = self.node.cri.standing(&id).unwrap().netns.unwrap();
        let namespace = Namespace::open(&self.path(netns.to_str().unwrap())).unwrap();
        let ours = namespace.run(|| Nft.inspect()).unwrap().unwrap();
        self.node.cri.stop(&id).unwrap();
        self.node.cri.remove(&id).unwrap();
        if ours.is_empty() { Pod::NotRedirected } else { Pod::Redirected }
    }

    /// What `gybe install --dry-run` plans for, with the same settings and the same sight as the agent.
    fn plan(&self, row: &Row) -> bool {
        let words = ["install", "--dry-run", "--json", "--from", IMAGE, "--config", agent::SETTINGS];
        let (shape, directories) = (row.flags, ["--conf-dir", config::CONF_DIR, "--bin-dir", row.bin]);
        let told = self.gybe(row.wrapper, &[&words[..], &directories, shape].concat());
        told["redirected"].as_bool().unwrap_or_else(|| panic!("{told}"))
    }

    /// Whether the doctor finds nothing wrong with what leads pods to Gybe.
    fn doctor(&self, row: &Row) -> bool {
        let words = ["doctor", "--json", "--conf-dir", config::CONF_DIR, "--bin-dir", row.bin];
        let told = self.gybe(&[], &words);
        let about = ["directories", "chain", "entry", "programs", "others"];
        let wrong = |it: &&Value| it["state"] == "wrong" && about.iter().any(|one| it["about"] == *one);
        told["findings"].as_array().unwrap().iter().filter(wrong).count() == 0
    }

    fn gybe(&self, wrapper: &[&str], words: &[&str]) -> Value {
        let gybe = format!("{IMAGE}/gybe");
        let all: Vec<&str> =
            wrapper.iter().copied().chain([gybe.as_str()]).chain(words.iter().copied()).collect();
        let mut command = self.node.stage().command(Path::new("/nonexistent"), all[0]);
        let output = command.args(&all[1..]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {all:?} {output:?}"))
    }

    /// A page of the agent's.
    fn get(&self, port: u16, path: &str) -> Option<String> {
        let node = Namespace::open(&self.node.stage().netns()).unwrap();
        let asked = node.run(|| {
            let mut agent = TcpStream::connect(("127.0.0.1", port)).ok()?;
            agent.set_read_timeout(Some(PATIENCE)).ok()?;
            write!(agent, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
            let mut answer = String::new();
            agent.read_to_string(&mut answer).ok()?;
            Some(answer.split_once("\r\n\r\n")?.1.to_owned())
        });
        asked.unwrap()
    }
}

pub(crate) fn make_unreadable(path: &Path) {
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
}

/// Asks until it is so.
fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, ask).unwrap_or_else(|| panic!("{what} did not happen"))
}

fn within<T>(time: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() < time {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}
