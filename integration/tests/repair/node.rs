//! A node's root directory: the conf file, libcni's cached results, manifests and `/proc`.

use gybe_demo::testnet::namespace::{LinkEnd, Namespace, NextHop, join, route};
use gybe_integration::namespace::sh;
use gybe_integration::programs::{Run, ours, path_of_ours, run};
use gybe_netfilter::model::policy::InterfaceName;
use gybe_test_support::{Agent, TestDir, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The conflist `{"plugins":[{"type":"bridge"}]}` of an ADD before Gybe was installed, as libcni caches it.
pub(crate) const WITHOUT_GYBE: &str = "eyJwbHVnaW5zIjpbeyJ0eXBlIjoiYnJpZGdlIn1dfQ==";

/// The message of a repair.
pub(crate) const REDIRECTED: &str = "gybe repair: redirected a running pod";

pub(crate) struct Node {
    pub(crate) root: TestDir,
    pub(crate) own: Namespace,
}

/// A pod with one interface and a default route through it, and nothing that listens.
pub(crate) struct Pod {
    pub(crate) number: u32,
    pub(crate) netns: Namespace,
}

impl Node {
    pub(crate) fn new(test: &str, backend: &str) -> Self {
        Self::at(TestDir::new(&format!("repair-{test}")), backend)
    }

    /// A node whose root is this empty directory.
    pub(crate) fn at(root: TestDir, backend: &str) -> Self {
        let node = Self { root, own: Namespace::new().unwrap() };
        let facts = json!({ "directory": node.root.join("pods"), "deadline_ms": 1000 });
        let ours = json!({ "type": "gybe-cni", "facts": facts, "backend": backend, "exclude_namespaces": ["kube-system"] });
        let primary = json!({ "type": "bridge", "bridge": "cni0" });
        let chain = json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": [primary, ours] });
        node.root.write("etc/cni/net.d/10-pods.conflist", chain.to_string());
        node.root.create_dir("opt/cni/bin");
        node.root.create_dir("var/lib/cni/results");
        node.root.create_dir("run/netns");
        node.process(1, "0::/init.scope", &node.own);
        node
    }

    pub(crate) fn process(&self, pid: u32, cgroup: &str, netns: &Namespace) {
        let process = self.root.create_dir(format!("proc/{pid}"));
        fs::create_dir_all(process.join("ns")).unwrap();
        fs::write(process.join("cgroup"), format!("{cgroup}\n")).unwrap();
        symlink(netns.path(), process.join("ns/net")).unwrap();
    }

    pub(crate) fn end_process(&self, pid: u32) {
        let _ = fs::remove_dir_all(self.root.join(format!("proc/{pid}")));
    }

    /// The path of the namespace's name.
    pub(crate) fn netns_name(&self, pod: &Pod) -> PathBuf {
        self.root.join("run/netns").join(pod.name())
    }

    /// The path of the cached result of the pod's ADD for this interface.
    pub(crate) fn result(&self, pod: &Pod, interface: &str) -> PathBuf {
        self.root.join(format!("var/lib/cni/results/pods-{}-{interface}", pod.name()))
    }

    /// The example's pod under this name and uid, changed by `change`.
    pub(crate) fn manifest(&self, namespace: &str, pod: &Pod, change: impl FnOnce(&mut Value)) {
        let mut manifest: Value = serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
        manifest["metadata"]["namespace"] = json!(namespace);
        manifest["metadata"]["name"] = json!(pod.name());
        manifest["metadata"]["uid"] = json!(pod.uid());
        change(&mut manifest);
        self.root.write(format!("pods/{namespace}/{}.json", pod.name()), manifest.to_string());
        self.root.create_dir(format!("var/log/pods/{namespace}_{}_{}", pod.name(), pod.uid()));
    }

    /// The cached result of the pod's ADD for this interface.
    pub(crate) fn cached(&self, namespace: &str, pod: &Pod, interface: &str) {
        let name = pod.name();
        let arguments =
            [["K8S_POD_NAMESPACE", namespace], ["K8S_POD_NAME", &name], ["K8S_POD_UID", &pod.uid()]];
        let result = json!({ "ips": [{ "address": format!("{}/24", pod.address()) }] });
        let info = json!({
            "kind": "cniCacheV1", "containerId": format!("container-{name}"), "ifName": interface,
            "netns": format!("/var/run/netns/{name}"), "cniArgs": arguments, "result": result,
            "config": WITHOUT_GYBE,
        });
        fs::write(self.result(pod, interface), info.to_string()).unwrap();
    }

    /// Binds the namespace's name and starts the pod's process.
    pub(crate) fn start(&self, pod: &Pod) {
        symlink(pod.netns.path(), self.netns_name(pod)).unwrap();
        self.process(1000 + pod.number, &pod.cgroup(), &pod.netns);
    }

    /// A pod of the mesh that started without Gybe in the chain.
    pub(crate) fn unredirected(&self, number: u32) -> Pod {
        let pod = Pod::new(number);
        self.manifest("shop", &pod, |_| ());
        self.cached("shop", &pod, "eth0");
        self.start(&pod);
        pod
    }

    /// Starts `gybe repair --watch`.
    pub(crate) fn watch(&self) -> Agent {
        #[allow(clippy::disallowed_methods, reason = "it runs in the background of the test")]
        let mut command = Command::new(path_of_ours("gybe").unwrap());
        command.args(["repair", "--watch", "--root"]).arg(self.root.path());
        Agent::start(command)
    }

    pub(crate) fn gybe(&self, arguments: &[&str]) -> Run {
        let root = self.root.path().to_str().unwrap();
        ours("gybe", &[arguments, &["--root", root]].concat(), "").unwrap()
    }

    /// Runs `gybe repair --json` and returns its sandboxes.
    pub(crate) fn repair(&self) -> Vec<Value> {
        let ran = self.gybe(&["repair", "--json"]);
        let out: Value = serde_json::from_str(&ran.out).unwrap_or_else(|why| panic!("{why}: {ran:?}"));
        assert_eq!(ran.code == Some(0), out["holds"] == json!(true), "{ran:?}");
        out["sandboxes"].as_array().unwrap().clone()
    }
}

impl Pod {
    pub(crate) fn new(number: u32) -> Self {
        let pod = Self { number, netns: Namespace::new().unwrap() };
        let end = |name, addresses| {
            let name = InterfaceName::parse(name).unwrap();
            LinkEnd { namespace: &pod.netns, name, addresses }
        };
        let address = format!("{}/16", pod.address()).parse().unwrap();
        join(&end("eth0", vec![address]), &end("other", Vec::new())).unwrap();
        let gateway = NextHop::Via("10.244.255.254".parse().unwrap());
        route(&pod.netns, "0.0.0.0/0".parse().unwrap(), gateway).unwrap();
        pod
    }

    pub(crate) fn name(&self) -> String {
        format!("cart-{}", self.number)
    }

    pub(crate) fn uid(&self) -> String {
        format!("5f1d6c1e-70b7-4d3c-9a51-{:012x}", self.number)
    }

    pub(crate) fn address(&self) -> String {
        format!("10.244.{}.{}", self.number / 250 % 250, self.number % 250 + 2)
    }

    pub(crate) fn cgroup(&self) -> String {
        format!("0::/kubepods/burstable/pod{}/container", self.uid())
    }

    pub(crate) fn sh(&self, command: &str) -> String {
        self.netns.run(|| sh(command)).unwrap()
    }

    /// Reports whether a connection to another host ends at the proxy's port for outbound connections.
    pub(crate) fn is_redirected(&self) -> bool {
        // A child of another test may have a copy of the former listener until its execve(2).
        let bind = || self.netns.run(|| TcpListener::bind("127.0.0.1:15001").ok()).unwrap();
        let listener = wait_for("a free port", bind);
        let elsewhere = SocketAddr::new(IpAddr::from([203, 0, 113, 9]), 80);
        let connected =
            self.netns.run(|| TcpStream::connect_timeout(&elsewhere, Duration::from_millis(300))).unwrap();
        drop(listener);
        connected.is_ok()
    }

    /// The rules of every owner.
    pub(crate) fn rules(&self) -> String {
        let list = || run("nft", &["--stateless", "list", "ruleset"], "").unwrap().out;
        self.netns.run(list).unwrap()
    }
}
