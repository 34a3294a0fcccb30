//! The DaemonSet's pod on its node: its volumes written, its containers started, its pages asked for.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use gybe_containerd_tests::cri::Lived;
use gybe_containerd_tests::sandbox::{LOGS, Network};
use gybe_containerd_tests::{Node, Sandbox};
use k8s_openapi::api::core::v1::{HTTPGetAction, PodSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::kubelet::{self, Placed};
use crate::site::{NODE, Site, config_map, daemon_set};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Where the kubelet writes volumes, inside the stage.
const VOLUMES: &str = "/run/kubelet";

pub(crate) struct Daemon<'s> {
    site: &'s Site,
    pod: PodSpec,
    containers: BTreeMap<String, String>,
}

impl<'s> Daemon<'s> {
    pub(crate) fn start(site: &'s Site) -> Self {
        let pod = daemon_set().spec.template.spec.unwrap();
        let namespace = daemon_set().metadata.namespace.unwrap();
        let stage = site.node.stage();
        fs::create_dir_all(stage.path(LOGS)).unwrap();
        site.write_token(&stage.path(VOLUMES).join("token"));
        write_config(&site.node, &config_map().data.unwrap());
        let sandbox =
            Sandbox { network: Network::OfTheNode, ..Sandbox::named(&namespace, "gybe-node-x7k2p") };
        let address = site.api.address();
        let placed = Placed {
            fields: [
                ("spec.nodeName", NODE),
                ("metadata.namespace", &namespace),
                ("metadata.name", &sandbox.name),
            ]
            .map(|(field, value)| (field, value.to_owned()))
            .into(),
            service: [
                ("KUBERNETES_SERVICE_HOST", address.ip().to_string()),
                ("KUBERNETES_SERVICE_PORT", address.port().to_string()),
            ]
            .into(),
            written: VOLUMES,
        };
        for volume in pod.volumes.iter().flatten().filter(|volume| volume.host_path.is_some()) {
            fs::create_dir_all(stage.path(kubelet::source(volume, &placed))).unwrap();
        }
        let id = site.node.cri.run(&sandbox).unwrap();
        let start =
            |name: &String, config| site.node.cri.start((&id, &sandbox), config).map(|id| (name.clone(), id));
        let containers = pod.containers.iter();
        let started = containers.map(|it| start(&it.name, kubelet::container(&pod, it, &placed)).unwrap());
        let containers = started.collect();
        Self { site, pod, containers }
    }

    /// As the kubelet asks: a readiness or liveness probe of the agent's, from the node.
    pub(crate) fn is_well(&self, kind: &str) -> bool {
        let install = self.pod.containers.iter().find(|container| container.name == "install").unwrap();
        let probe = if kind == "ready" { &install.readiness_probe } else { &install.liveness_probe };
        let HTTPGetAction { path, port, .. } = probe.clone().unwrap().http_get.unwrap();
        let IntOrString::String(name) = port else { panic!("{port:?}") };
        let named = install.ports.iter().flatten().find(|it| it.name.as_ref() == Some(&name)).unwrap();
        self.answers(named.container_port.try_into().unwrap(), &path.unwrap())
    }

    /// Whether a page says 200.
    pub(crate) fn answers(&self, port: u16, path: &str) -> bool {
        self.page(port, path).is_some_and(|page| page.starts_with("HTTP/1.1 200 "))
    }

    pub(crate) fn page(&self, port: u16, path: &str) -> Option<String> {
        let ask = || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
            let mut page = String::new();
            stream.read_to_string(&mut page).ok()?;
            Some(page)
        };
        self.site.network.run(ask).unwrap()
    }

    /// Waits, and shows what the containers have said when it was in vain.
    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < PATIENCE, "{what}:\n{}", self.said());
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn lived(&self, container: &str) -> Lived {
        self.site.node.cri.lived(&self.containers[container]).unwrap()
    }

    /// A line of /proc/PID/status of the container's process.
    pub(crate) fn status(&self, container: &str, key: &str) -> String {
        let pid = self.lived(container).pid.unwrap();
        let path = self.site.node.stage().path(format!("/proc/{pid}/status"));
        let status = fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap().trim().to_owned()
    }

    pub(crate) fn end(&self, container: &str) {
        self.site.node.cri.end(&self.containers[container], 10).unwrap();
    }

    pub(crate) fn said(&self) -> String {
        let logs = self.site.node.stage().path(LOGS);
        let read = |name: &String| fs::read_to_string(logs.join(format!("{name}.log"))).unwrap_or_default();
        self.containers.keys().map(|name| format!("{name}: {:?}\n{}", self.lived(name), read(name))).collect()
    }
}

/// As the kubelet writes a ConfigMap: into a directory that `..data` leads to, exchanged in one step.
pub(crate) fn write_config(node: &Node, data: &BTreeMap<String, String>) {
    let volume = node.stage().path(VOLUMES).join("config");
    fs::create_dir_all(&volume).unwrap();
    let before = fs::read_link(volume.join("..data")).ok();
    let fresh = if before.as_deref() == Some(Path::new("..one")) { "..two" } else { "..one" };
    fs::create_dir(volume.join(fresh)).unwrap();
    for (key, value) in data {
        fs::write(volume.join(fresh).join(key), value).unwrap();
        let link = volume.join(key);
        if !link.is_symlink() {
            symlink(Path::new("..data").join(key), link).unwrap();
        }
    }
    symlink(fresh, volume.join("..data_tmp")).unwrap();
    fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    if let Some(before) = before {
        fs::remove_dir_all(volume.join(before)).unwrap();
    }
}
