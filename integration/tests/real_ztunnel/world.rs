//! A node with a bridge, its pods, and a host outside of the mesh, which is also the resolver of ztunnel.

use crate::ambient_node::{AmbientNode, wait_for_rules};
use crate::node::Pod;
use crate::resolver::Resolver;
use crate::ztunnel::Ztunnel;
use gybe_demo::testnet::namespace::{LinkEnd, Namespace, NextHop, join, route};
use gybe_integration::namespace::sh;
use gybe_integration::plugin_call::PluginCall;
use gybe_integration::programs::{path_of_ours, run};
use gybe_netfilter::model::policy::InterfaceName;
use gybe_test_support::wait_for;
use serde_json::{Value, json};
use std::fs;

/// The addresses of the node, the pods' gateway.
pub(crate) const NODE: [&str; 2] = ["10.244.255.254", "fd00:10::ffff"];
/// The addresses of the host outside of the mesh.
pub(crate) const HOST: [&str; 2] = ["10.244.0.77", "fd00:10::77"];

/// Its mounts are those of the calling thread, as `Cluster`'s.
pub(crate) struct World {
    pub(crate) node: AmbientNode<Ztunnel>,
    pub(crate) host: Namespace,
    _resolver: Resolver,
}

/// The addresses of a pod.
pub(crate) fn addresses(number: u32) -> [String; 2] {
    ["10.244.0.", "fd00:10::"].map(|network| format!("{network}{}", number + 2))
}

impl World {
    pub(crate) fn start(test: &str, backend: &str) -> Self {
        let host = Namespace::new().unwrap();
        let resolver = Resolver::start(&host);
        let node = AmbientNode::with_ztunnel(test, "repair", backend, |root| {
            let of_ztunnel = root.write("resolv.conf", format!("nameserver {}\n", HOST[0]));
            sh(&format!("mount --bind {} /etc/resolv.conf", of_ztunnel.display()));
            Ztunnel::start(root)
        });
        let world = Self { node, host, _resolver: resolver };
        let [v4, v6] = NODE;
        let bridge = format!(
            "ip link add cni0 type bridge; ip address add {v4}/16 dev cni0; ip link set cni0 up; \
             ip address add {v6}/64 dev cni0 nodad"
        );
        world.node.cluster.node.own.run(|| sh(&bridge)).unwrap();
        world.link("host", &world.host, HOST.map(str::to_owned));
        world
    }

    pub(crate) fn start_ztunnel(&self) -> Ztunnel {
        Ztunnel::start(&self.node.cluster.node.root)
    }

    /// Links a namespace to the node's bridge.
    fn link(&self, name: &str, namespace: &Namespace, [v4, v6]: [String; 2]) {
        let own = &self.node.cluster.node.own;
        let end = |namespace, name, addresses: &[String]| LinkEnd {
            namespace,
            name: InterfaceName::parse(name).unwrap(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        };
        join(&end(own, name, &[]), &end(namespace, "eth0", &[format!("{v4}/16"), format!("{v6}/64")]))
            .unwrap();
        own.run(|| sh(&format!("ip link set {name} master cni0"))).unwrap();
        for (network, gateway) in ["0.0.0.0/0", "::/0"].into_iter().zip(NODE) {
            route(namespace, network.parse().unwrap(), NextHop::Via(gateway.parse().unwrap())).unwrap();
        }
    }

    /// A pod with its link, that neither the API nor any plugin knows.
    fn pod(&self, number: u32) -> Pod {
        let pod = Pod::new(number);
        pod.sh("ip link delete eth0; ip route flush table main");
        self.link(&pod.name(), &pod.netns, addresses(number));
        pod
    }

    /// A pod that runs without Gybe.
    pub(crate) fn running(&self, namespace: &str, number: u32) -> Pod {
        let pod = self.pod(number);
        self.node.run(namespace, &pod);
        pod
    }

    /// An ambient pod, by an ADD with the entry that the agent has written.
    pub(crate) fn added(&self, number: u32) -> Pod {
        let pod = self.pod(number);
        self.node.label("shop", &pod, &json!({}));
        let mut call: PluginCall = serde_json::from_str(include_str!("../../../examples/add.json")).unwrap();
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID=x;K8S_POD_UID={}",
            pod.name(),
            pod.uid()
        );
        call.env.insert("CNI_ARGS".to_owned(), args);
        call.env.insert("CNI_NETNS".to_owned(), pod.netns.path().display().to_string());
        let mut stdin = wait_for("the agent's entry", || self.entry());
        stdin["cniVersion"] = call.stdin["cniVersion"].clone();
        stdin["name"] = json!("pods");
        stdin["prevResult"] = call.stdin["prevResult"].clone();
        for (ip, address) in
            stdin["prevResult"]["ips"].as_array_mut().unwrap().iter_mut().zip(addresses(number))
        {
            let length = if address.contains(':') { 64 } else { 16 };
            ip["address"] = json!(format!("{address}/{length}"));
        }
        let program = path_of_ours("gybe-cni").unwrap().display().to_string();
        let set: Vec<String> = call.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let words: Vec<&str> =
            ["-i"].into_iter().chain(set.iter().map(String::as_str)).chain([&*program]).collect();
        let ran = run("env", &words, &stdin.to_string()).unwrap();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        wait_for_rules(&pod);
        // Its cached result and its first process.
        self.node.run("shop", &pod);
        pod
    }

    fn entry(&self) -> Option<Value> {
        let path = self.node.cluster.node.root.join("etc/cni/net.d/10-pods.conflist");
        let list: Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
        let entry = list["plugins"].as_array()?.iter().find(|it| it["type"] == "gybe-cni")?;
        entry["ambient"].is_object().then(|| entry.clone())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = nix::mount::umount2("/etc/resolv.conf", nix::mount::MntFlags::MNT_DETACH);
    }
}
