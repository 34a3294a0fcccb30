//! The sandboxes that `find` discovers on a node: by libcni's cache, named network namespaces and the pods' processes.

use gybe_installer::sandboxes::{HostPaths, Network, Sandbox, SandboxList, find};
use gybe_test_support::TestDir;
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;

/// A pod with a cached result.
const CART: &str = "863b91d4-4b68-4efa-917f-4b560e3e86aa";
/// A pod in the host's network namespace.
const HOST: &str = "11111111-4b68-4efa-917f-4b560e3e86aa";
/// A pod whose network namespace no longer exists.
const GONE: &str = "33333333-4b68-4efa-917f-4b560e3e86aa";
/// A pod with processes and without a cached result.
const LOST: &str = "22222222-4b68-4efa-917f-4b560e3e86aa";

/// A host's root directory, with plain files as its network namespaces.
struct Host(TestDir);

impl Host {
    fn new(test: &str) -> Self {
        let host = Self(TestDir::new(&format!("pods-on-node-{test}")));
        host.write("node-netns", "");
        host.add_process(1, "0::/init.scope", "node-netns");
        host
    }

    fn write(&self, path: &str, text: &str) {
        self.0.write(path, text);
    }

    fn add_process(&self, pid: u32, cgroup: &str, netns: &str) {
        let process = self.0.join(format!("proc/{pid}"));
        fs::create_dir_all(process.join("ns")).unwrap();
        fs::write(process.join("cgroup"), format!("{cgroup}\n")).unwrap();
        symlink(self.0.join(netns), process.join("ns/net")).unwrap();
    }

    /// Writes a result of the pod `shop/NAME`.
    fn cache_result(&self, file: &str, (name, uid): (&str, &str), netns: &str) {
        let arguments = [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", name], ["K8S_POD_UID", uid]];
        let info = json!({ "containerId": file, "netns": netns, "cniArgs": arguments });
        self.write(&format!("var/lib/cni/results/{file}"), &info.to_string());
    }

    fn find(&self) -> SandboxList {
        find(&HostPaths { results: self.0.join("var/lib/cni/results"), root: self.0.path().to_owned() })
    }

    fn display(&self, sandbox: &Sandbox) -> String {
        let network = match &sandbox.network {
            Network::Own(path) => path.strip_prefix(self.0.path()).unwrap().display().to_string(),
            Network::OfNode => "the node's network".to_owned(),
        };
        let root = format!("{}/", self.0.display());
        format!("{}: {network}", sandbox.to_string().replace(&root, ""))
    }
}

/// Returns the content of `/proc/PID/cgroup` for a container of this pod.
fn pod_cgroup(uid: &str) -> String {
    format!("0::/kubepods.slice/kubepods-pod{}.slice/cri-containerd-75c7.scope", uid.replace('-', "_"))
}

#[test]
fn a_namespace_found_in_several_sources_is_one_sandbox_with_the_most_precise_name() {
    let host = Host::new("sources");
    for namespace in ["cni-cart", "cni-lost", "cni-unknown"] {
        host.write(&format!("run/netns/{namespace}"), "");
    }
    // The cache also has the loopback network's result, and one of a sandbox that no longer exists.
    host.cache_result("net-cart-eth0", ("cart-0", CART), "/var/run/netns/cni-cart");
    host.cache_result("loopback-cart-lo", ("cart-0", CART), "/run/netns/cni-cart");
    host.cache_result("net-gone-eth0", ("gone-0", GONE), "/var/run/netns/cni-gone");
    host.add_process(100, &pod_cgroup(CART), "run/netns/cni-cart");
    // A network namespace that a process of the pod created.
    host.write("inner", "");
    host.add_process(101, &pod_cgroup(CART), "inner");
    host.add_process(102, &pod_cgroup(LOST), "run/netns/cni-lost");
    host.add_process(103, &pod_cgroup(LOST), "run/netns/cni-lost");
    host.add_process(104, &pod_cgroup(HOST), "node-netns");
    host.add_process(105, &pod_cgroup(HOST), "node-netns");
    host.add_process(106, "0::/system.slice/sshd.service", "node-netns");
    fs::create_dir_all(host.0.join(format!("var/log/pods/kube-system_proxy-x_{HOST}"))).unwrap();
    let SandboxList { sandboxes, unreadable } = host.find();
    assert_eq!(unreadable, [""; 0]);
    let shown: Vec<String> = sandboxes.iter().map(|sandbox| host.display(sandbox)).collect();
    assert_eq!(
        shown,
        [
            "kube-system/proxy-x: the node's network".to_owned(),
            "shop/cart-0: run/netns/cni-cart".to_owned(),
            "run/netns/cni-unknown: run/netns/cni-unknown".to_owned(),
            format!("pod uid {LOST}: run/netns/cni-lost"),
        ]
    );
}

#[test]
fn a_cached_sandbox_whose_namespace_cannot_be_opened_is_listed_once() {
    let host = Host::new("unopened");
    fs::create_dir_all(host.0.join("run/netns")).unwrap();
    symlink("cni-cart", host.0.join("run/netns/cni-cart")).unwrap();
    host.cache_result("net-cart-eth0", ("cart-0", CART), "/var/run/netns/cni-cart");
    host.write("of-the-pod", "");
    host.add_process(100, &pod_cgroup(CART), "of-the-pod");
    let found = host.find().sandboxes;
    let shown: Vec<String> = found.iter().map(|sandbox| host.display(sandbox)).collect();
    assert_eq!(shown, ["shop/cart-0: run/netns/cni-cart"]);
}

#[test]
fn without_cache_and_named_namespaces_sandboxes_are_found_by_their_processes() {
    let host = Host::new("processes");
    host.write("of-the-pod", "");
    // A node that is a container itself (kind): the pod's cgroup is below another container's.
    let nested = format!(
        "0::/system.slice/docker-8445c3ca20fac1d8e74854d84a7e6a57297ffb22809098b2816b31a428f2b777.scope/kubelet.slice/\
         kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{}.slice/cri-containerd-75c7.scope",
        CART.replace('-', "_")
    );
    host.add_process(7, &nested, "of-the-pod");
    fs::create_dir_all(host.0.join(format!("var/log/pods/shop_cart-0_{CART}"))).unwrap();
    let found = host.find();
    let shown: Vec<String> = found.sandboxes.iter().map(|sandbox| host.display(sandbox)).collect();
    assert_eq!((shown, found.unreadable), (vec!["shop/cart-0: proc/7/ns/net".to_owned()], Vec::new()));
}

#[test]
fn a_cached_result_with_the_number_of_an_ended_process_does_not_name_another_pod() {
    // The order in which a directory is read is that of the file system. cri-dockerd passes no uid.
    for (stale, own, gone_uid) in
        [("a", Some("b"), GONE), ("b", Some("a"), GONE), ("a", Some("b"), ""), ("a", None, GONE)]
    {
        let host = Host::new("number");
        host.write("of-the-pod", "");
        host.cache_result(stale, ("gone-0", gone_uid), "/proc/7/ns/net");
        own.iter().for_each(|own| host.cache_result(own, ("cart-0", CART), "/proc/7/ns/net"));
        host.add_process(7, &pod_cgroup(CART), "of-the-pod");
        fs::create_dir_all(host.0.join(format!("var/log/pods/shop_cart-0_{CART}"))).unwrap();
        let found = host.find().sandboxes;
        let shown: Vec<String> = found.iter().map(|sandbox| host.display(sandbox)).collect();
        assert_eq!(shown, ["shop/cart-0: proc/7/ns/net"]);
        assert_eq!(found[0].container.as_deref(), own);
    }
}

/// The agent's pod mounts the cache and may lack the host's `/run/netns`.
#[test]
fn cached_results_without_any_visible_namespace_are_reported_as_unreadable() {
    let host = Host::new("invisible");
    host.cache_result("net-cart-eth0", ("cart-0", CART), "/var/run/netns/cni-cart");
    let found = host.find();
    assert!(found.sandboxes.is_empty());
    assert!(
        found.unreadable[0].starts_with("none of 1 cached results has its network namespace"),
        "{found:?}"
    );
    host.write("run/netns/cni-other", "");
    assert_eq!(
        host.find().unreadable,
        [""; 0],
        "namespaces are visible, so the cached sandbox no longer exists"
    );
}

#[test]
fn unreadable_sources_are_reported() {
    let host = Host::new("unreadable");
    host.write("var/lib/cni/results", "no directory");
    host.write("run/netns", "no directory");
    let found = host.find();
    assert!(found.sandboxes.is_empty());
    assert_eq!(found.unreadable.len(), 2, "{:?}", found.unreadable);
}
