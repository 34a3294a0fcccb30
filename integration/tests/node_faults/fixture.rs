//! A healthy node: a root directory in a mount namespace of its own, with an agent or without one, and a redirected
//! pod whose proxy listens. A fault: how it is planted on the node, and what the commands must report.

use crate::node::{Node, Pod};
use gybe_api_server::{ApiServer, ServiceAccount, Validity};
use gybe_integration::namespace::with_own_mounts;
use gybe_integration::plugin_call::PluginDir;
use gybe_integration::programs::{Run, path_of_ours, run};
use gybe_plugin::version::BUILD_MARK;
use gybe_test_support::{
    Agent, Layout, TestDir, agent_environment, cluster_environment, wait_for, wait_until, write_volume,
};
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

const PRIMARY: &str =
    r#"{ "cniVersion": "1.0.0", "name": "pods", "plugins": [{ "type": "bridge", "bridge": "cni0" }] }"#;
const NODE: &str = "node-1";
/// Where Istio's proxy listens.
const PROXY: [u16; 2] = [15001, 15006];

/// What a probe of this machine reports.
static PROBE_REPORT: LazyLock<String> = LazyLock::new(|| {
    let directory = PluginDir::new("node-faults-probe");
    let gybe = path_of_ours("gybe").unwrap();
    let probed = directory.sh(&format!("exec {} probe --json", gybe.display()), "").unwrap();
    fs::read_to_string(directory.run().join("gybe/probe.json"))
        .unwrap_or_else(|why| panic!("{why}: {probed:?}"))
});

pub(crate) struct HealthyNode {
    pub(crate) node: Node,
    pub(crate) pod: Pod,
    pub(crate) proxy: Vec<TcpListener>,
    pub(crate) clients: Vec<TcpStream>,
    /// The agent, and the cluster that it queries.
    pub(crate) agent: Option<Agent>,
    pub(crate) cluster: Option<(ApiServer, ServiceAccount)>,
}

/// Calls `work` with an empty directory in memory, in a mount namespace of its own.
pub(crate) fn with_directory_in_memory<T: Send>(work: impl FnOnce(&Path) -> T + Send) -> T {
    let directory = TestDir::new("node-faults");
    with_own_mounts(|| {
        mount(Some("test"), &*directory, Some("tmpfs"), MsFlags::empty(), Some("size=256m,mode=0755"))
            .unwrap();
        work(&directory)
    })
}

/// Sets the annotations that the runtime passed to the plugins: the manifest's, and these.
fn annotate(node: &Node, pod: &Pod, annotations: &Value) {
    let manifest = fs::read_to_string(node.root.join(format!("pods/shop/{}.json", pod.name()))).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let mut all = manifest["metadata"]["annotations"].as_object().unwrap().clone();
    all.extend(annotations.as_object().unwrap().clone());
    let path = node.result(pod, "eth0");
    let mut cached: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    cached["capabilityArgs"] = json!({ "io.kubernetes.cri.pod-annotations": all });
    fs::write(path, cached.to_string()).unwrap();
}

impl HealthyNode {
    /// Installs by hand, or starts an agent that installs.
    pub(crate) fn new(directory: &Path, agent: AgentState) -> Self {
        let (node, pod) = (Node::at(TestDir::new_in(directory, "node"), "auto"), Pod::new(1));
        node.root.write("etc/cni/net.d/10-pods.conflist", PRIMARY);
        node.root.write("run/gybe/probe.json", &*PROBE_REPORT);
        // No process named containerd or crio runs on this node.
        node.root.write("run/gybe/runtime.json", r#"{"runtimes":[]}"#);
        let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#;
        node.root.write_programs("opt/cni/bin", ["bridge", "loopback"]);
        for program in ["image/gybe", "image/gybe-cni"] {
            node.root.write(program, format!("#!/bin/sh\n# {program}\n# {BUILD_MARK}\necho '{answer}'\n"));
            fs::set_permissions(node.root.join(program), Permissions::from_mode(0o755)).unwrap();
        }
        pod.sh("ip address add fd00:10::10/64 dev eth0 nodad");
        node.manifest("shop", &pod, |_| ());
        node.cached("shop", &pod, "eth0");
        node.start(&pod);
        annotate(&node, &pod, &json!({ "sidecar.istio.io/status": "{}" }));
        let mut healthy =
            Self { node, pod, proxy: Vec::new(), clients: Vec::new(), agent: None, cluster: None };
        healthy.listen("0.0.0.0");
        healthy.apply();
        match agent {
            AgentState::Running => healthy.start_agent(),
            AgentState::Absent => {
                let from = healthy.path("image").display().to_string();
                let pods = healthy.path("pods").display().to_string();
                let installed = healthy.on_host(&["install", "--from", &from, "--pods-from", &pods]);
                assert_eq!(installed.code, Some(0), "{installed:?}");
            }
        }
        healthy
    }

    /// Writes the rules of the pod in the manifest.
    pub(crate) fn apply(&self) {
        let manifest = self.path("pods/shop/cart-1.json");
        let netns = self.pod.netns.path();
        let arguments = ["apply", "--backend", "nft", "--netns"].map(str::to_owned);
        let files = [netns.display().to_string(), "--pod".to_owned(), manifest.display().to_string()];
        let applied = self.gybe(&[arguments.to_vec(), files.to_vec()].concat());
        assert_eq!(applied.code, Some(0), "{applied:?}");
    }

    /// Gives the pod DNS capture, with its rules.
    pub(crate) fn capture_dns(&self) {
        self.node.manifest("shop", &self.pod, |pod| {
            let env = pod["spec"]["initContainers"][1]["env"].as_array_mut().unwrap();
            env.push(json!({ "name": "ISTIO_META_DNS_CAPTURE", "value": "true" }));
        });
        self.apply();
    }

    /// Makes the proxy listen at this address alone.
    pub(crate) fn listen(&mut self, address: &str) {
        self.proxy.clear();
        // A process that another thread starts has copies of the former sockets until execve(2).
        let bind = |port| wait_for("a free port", || TcpListener::bind((address, port)).ok());
        let listen = |port| self.pod.netns.run(|| bind(port)).unwrap();
        self.proxy = PROXY.map(listen).into();
    }

    /// Makes a process of the pod the one that listens, whose uid and gid are this id, and the proxy's in a user namespace
    /// that does not own the pod's network.
    pub(crate) fn proxy_runs_as(&self, id: u32) {
        let process = format!("proc/{}", 1000 + self.pod.number);
        self.write(&format!("{process}/status"), &format!("Uid:\t0\t0\t0\t{id}\nGid:\t0\t0\t0\t{id}\n"));
        for map in ["uid_map", "gid_map"] {
            self.write(&format!("{process}/{map}"), &format!("1337 {id} 1\n"));
        }
        symlink(fs::read_link("/proc/self/ns/user").unwrap(), self.path(&process).join("ns/user")).unwrap();
        let fds = self.node.root.create_dir(format!("{process}/fd"));
        for listener in &self.proxy {
            let socket = fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap();
            symlink(socket, fds.join(listener.as_raw_fd().to_string())).unwrap();
        }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.node.root.join(path)
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        self.node.root.write(path, text);
    }

    pub(crate) fn set_mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), Permissions::from_mode(mode)).unwrap();
    }

    /// Runs a shell command in the pod.
    pub(crate) fn in_pod(&self, command: &str) {
        self.pod.sh(command);
    }

    fn gybe(&self, arguments: &[String]) -> Run {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        gybe_integration::programs::ours("gybe", &arguments, "").unwrap()
    }

    fn on_host(&self, arguments: &[&str]) -> Run {
        self.node.gybe(arguments)
    }

    #[expect(clippy::disallowed_methods, reason = "the agent runs in the background of the test")]
    fn start_agent(&mut self) {
        let server = ApiServer::start().unwrap();
        let account = server.service_account(&self.path("account")).unwrap();
        let manifest = fs::read_to_string(self.path("pods/shop/cart-1.json")).unwrap();
        let mut pod: Value = serde_json::from_str(&manifest).unwrap();
        pod["spec"]["nodeName"] = json!(NODE);
        server.put_pod(pod);
        server.put(json!({ "kind": "Node", "metadata": { "name": NODE, "labels": {} } })).unwrap();
        self.set_configmap("log_level", "debug");
        let mut command = Command::new(path_of_ours("gybe").unwrap());
        command.arg("node").env_clear().envs(agent_environment(&self.node.root, Layout::Node));
        command.envs(cluster_environment(server.address()));
        let agent = Agent::start(command);
        wait_until("readiness", || agent.is_ready());
        (self.agent, self.cluster) = (Some(agent), Some((server, account)));
    }

    /// Replaces the mounted ConfigMap, as the kubelet does.
    pub(crate) fn set_configmap(&self, key: &str, value: &str) {
        write_volume(&self.path("config"), [(key, value)]).unwrap();
    }

    /// Sets the annotations that the runtime passed to the plugins.
    pub(crate) fn annotate(&self, annotations: &Value) {
        annotate(&self.node, &self.pod, annotations);
    }

    /// Lets every token of the cluster expire, and ends the connections that used one.
    pub(crate) fn expire_tokens(&self) {
        let (server, account) = self.cluster.as_ref().unwrap();
        let expired = server.tokens().issue(Validity::Expired);
        server.tokens().accept_only(&[&expired]);
        account.write(&expired).unwrap();
        server.cut_watches();
    }

    pub(crate) fn agent(&self) -> &Agent {
        self.agent.as_ref().unwrap()
    }

    /// Delays each fsync of the agent by five seconds, as a slow disk does.
    pub(crate) fn delay_syncs(&self) {
        let agent = self.agent().pid();
        let delay = "-e trace=fsync -e inject=fsync:delay_enter=5000000";
        // strace ends with the agent.
        let strace = format!("strace -f {delay} -p {agent} >/dev/null 2>&1 &");
        assert_eq!(run("sh", &["-c", &strace], "").unwrap().code, Some(0));
        let tasks = format!("/proc/{agent}/task");
        wait_until("strace, which traces each thread", || {
            let mut tasks = fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().path().join("status"));
            // A task that has ended meanwhile is looked for again.
            tasks.all(|path| fs::read_to_string(path).is_ok_and(|text| !text.contains("TracerPid:\t0\n")))
        });
    }

    pub(crate) fn conf(&self) -> String {
        fs::read_to_string(self.path("etc/cni/net.d/10-pods.conflist")).unwrap()
    }

    /// Writes the conf file by rename, as other programs do.
    pub(crate) fn put_conf(&self, text: &str) {
        let new = self.node.root.write("etc/cni/net.d/.other", text);
        fs::rename(new, self.path("etc/cni/net.d/10-pods.conflist")).unwrap();
    }

    /// The conf file without Gybe's entry.
    pub(crate) fn put_primary(&self) {
        self.put_conf(PRIMARY);
    }

    /// Replaces a text in the conf file.
    pub(crate) fn change_conf(&self, from: &str, to: &str) {
        let conf = self.conf();
        assert!(conf.contains(from), "{from} in {conf}");
        self.put_conf(&conf.replace(from, to));
    }

    /// Replaces the plugin's program by a new file.
    pub(crate) fn put_plugin(&self, content: &[u8], mode: u32) {
        let new = self.node.root.write("opt/cni/bin/.other", content);
        fs::set_permissions(&new, Permissions::from_mode(mode)).unwrap();
        fs::rename(new, self.path("opt/cni/bin/gybe-cni")).unwrap();
    }

    /// Sets what the probe's report says of a backend, for every profile.
    pub(crate) fn set_finding(&self, backend: &str, finding: &Value) {
        let path = self.path("run/gybe/probe.json");
        let mut report: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        report["untried"] = json!([]);
        for profile in report["backends"][backend].as_object_mut().unwrap().values_mut() {
            *profile = finding.clone();
        }
        fs::write(path, report.to_string()).unwrap();
    }

    /// Mounts a directory of the host on itself, with these flags.
    pub(crate) fn remount(&self, directory: &str, flags: MsFlags) {
        self.mount(directory, directory, flags);
    }

    /// Mounts a directory of the host on another one, with these flags.
    pub(crate) fn mount(&self, from: &str, directory: &str, flags: MsFlags) {
        let path = self.path(directory);
        mount(Some(&self.path(from)), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | flags;
        mount(None::<&str>, &path, None::<&str>, flags, None::<&str>).unwrap();
    }

    /// The report of `gybe doctor --json`.
    pub(crate) fn doctor(&self) -> Value {
        let run = self.path("run/gybe").display().to_string();
        let report = || {
            let ran = self.on_host(&["doctor", "--run-dir", &run, "--json"]);
            let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|why| panic!("{why}: {ran:?}"));
            // No planted fault delays the API server, but a busy machine may.
            (!ran.out.contains("the API server did not answer in time")).then_some((ran, report))
        };
        let (ran, report) = wait_for("an answer of the API server", report);
        assert_eq!(ran.code == Some(0), report["well"] == json!(true), "{ran:?}");
        report
    }

    /// The report of `gybe verify --all --json`.
    pub(crate) fn verify(&self) -> Value {
        let ran = self.on_host(&["verify", "--all", "--json"]);
        let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|why| panic!("{why}: {ran:?}"));
        assert_eq!(ran.code == Some(0), report["holds"] == json!(true), "{ran:?}");
        report
    }
}

/// The agent of a node on which a fault is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentState {
    /// An agent runs. It repairs conf files and programs within milliseconds.
    Running,
    /// Gybe was installed by hand, and the plugin reads manifests.
    Absent,
}

/// A part of the node. Two faults of the same part cannot be planted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Agent,
    Conf,
    Plugin,
    ProgramDirectory,
    ConfDirectory,
    ProbeReport,
    Rules,
    Proxy,
    Annotations,
    Runtime,
    Cache,
}

/// A finding of `gybe doctor`: these words in `says` and in `remedy`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) state: &'static str,
    pub(crate) about: &'static str,
    /// The section of docs/TROUBLESHOOTING.md; empty for none.
    pub(crate) id: &'static str,
    pub(crate) says: &'static str,
    pub(crate) remedy: &'static str,
}

pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// The node that it needs; none for any.
    pub(crate) agent: Option<AgentState>,
    pub(crate) parts: &'static [Part],
    pub(crate) plant: fn(&mut HealthyNode),
    pub(crate) doctor: &'static [Expected],
    /// The verdict on the pod, empty for any, and a part of what is reported of the pod.
    pub(crate) verify: Option<(&'static str, &'static str)>,
}

impl Expected {
    pub(crate) fn is(&self, finding: &Value) -> bool {
        let text = |key: &str| finding[key].as_str().unwrap_or_default();
        text("state") == self.state
            && text("about") == self.about
            && text("id") == self.id
            && text("says").contains(self.says)
            && text("remedy").contains(self.remedy)
    }
}

impl Fault {
    /// Returns what the commands do not report of this fault. `instead`: what doctor reports of a hidden one.
    pub(crate) fn unreported(
        &self,
        instead: Option<&'static [Expected]>,
        doctor: &Value,
        verify: &Value,
    ) -> Vec<String> {
        let findings = doctor["findings"].as_array().unwrap();
        let is_missing = |expected: &&Expected| !findings.iter().any(|finding| expected.is(finding));
        let expected = instead.unwrap_or(self.doctor).iter();
        let missing = expected.filter(is_missing).map(|expected| format!("doctor: {expected:?}"));
        let unverified = self.verify.filter(|(verdict, words)| {
            let sandboxes = verify["sandboxes"].as_array().unwrap();
            !sandboxes.iter().any(|one| {
                (verdict.is_empty() || one["verdict"] == *verdict) && one.to_string().contains(words)
            })
        });
        let unverified = unverified.filter(|_| instead.is_none());
        missing.chain(unverified.map(|expected| format!("verify: {expected:?}"))).collect()
    }
}
