//! The DaemonSet's pod on the node: its volumes, its containers, its HTTP endpoints.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use gybe_containerd_tests::cri::ContainerStatus;
use gybe_containerd_tests::sandbox::{LOGS, PodNetwork};
use gybe_containerd_tests::{Node, Sandbox};
use gybe_test_support::{wait_for_at_most, write_volume};
use k8s_openapi::api::core::v1::{Container, PodSpec, Probe, Volume};

use crate::cluster::{Cluster, NODE, config_map, daemon_set, probe_once};
use crate::kubelet::{self, PodContext};

/// Longer than any awaited event takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// The directory of the volumes on the test node.
const VOLUMES: &str = "/run/kubelet";

pub(crate) struct DaemonSetPod<'s> {
    cluster: &'s Cluster,
    pod: PodSpec,
    sandbox: Sandbox,
    /// The id of the sandbox.
    id: String,
    context: PodContext<'static>,
    containers: BTreeMap<String, StartedContainer>,
}

struct StartedContainer {
    id: String,
    /// The number of earlier starts.
    attempt: u32,
}

impl<'s> DaemonSetPod<'s> {
    /// Starts all of its containers.
    pub(crate) fn start(cluster: &'s Cluster) -> Self {
        Self::start_with(cluster, || {})
    }

    /// Starts all of its containers after `prepare`, which may change its ConfigMap.
    pub(crate) fn start_with(cluster: &'s Cluster, prepare: impl FnOnce()) -> Self {
        let mut created = Self::new(cluster);
        prepare();
        for container in created.pod.containers.clone() {
            created.start_container(&container.name);
        }
        created
    }

    /// Starts it with the component `probe-once`: the other container after the init container has ended.
    pub(crate) fn start_with_probe_once(cluster: &'s Cluster) -> Self {
        let mut created = Self::new(cluster);
        let patch = probe_once().spec.template.spec.unwrap();
        created.pod.containers.retain(|one| patch.containers.iter().all(|removed| removed.name != one.name));
        created.pod.init_containers = patch.init_containers;
        set_config(&cluster.node, &[("repair", "off")]);
        for container in created.pod.init_containers.clone().unwrap() {
            created.start_container(&container.name);
            created.wait_for("the end of the init container", || !created.status(&container.name).running);
            assert_eq!(created.status(&container.name).exit_code, 0, "{}", created.logs());
        }
        for container in created.pod.containers.clone() {
            created.start_container(&container.name);
        }
        created
    }

    /// Creates its volumes and its sandbox. No container runs.
    pub(crate) fn new(cluster: &'s Cluster) -> Self {
        let pod = daemon_set().spec.template.spec.unwrap();
        let namespace = daemon_set().metadata.namespace.unwrap();
        let host = cluster.node.host();
        fs::create_dir_all(host.path(LOGS)).unwrap();
        cluster.write_token(&host.path(VOLUMES).join("token"));
        set_config(&cluster.node, &[]);
        let sandbox = Sandbox { network: PodNetwork::Host, ..Sandbox::new(&namespace, "gybe-node-x7k2p") };
        let address = cluster.api.address();
        let context = PodContext {
            fields: [
                ("spec.nodeName", NODE),
                ("metadata.namespace", &namespace),
                ("metadata.name", &sandbox.name),
                ("status.hostIP", "127.0.0.1"),
            ]
            .map(|(field, value)| (field, value.to_owned()))
            .into(),
            service: [
                ("KUBERNETES_SERVICE_HOST", address.ip().to_string()),
                ("KUBERNETES_SERVICE_PORT", address.port().to_string()),
            ]
            .into(),
            volumes: VOLUMES,
        };
        let is_created = |volume: &&Volume| volume.host_path.is_some() || volume.empty_dir.is_some();
        for volume in pod.volumes.iter().flatten().filter(is_created) {
            let directory = host.path(kubelet::source(volume, &context));
            fs::create_dir_all(&directory).unwrap();
            if volume.empty_dir.is_some() {
                // As the kubelet does (pkg/volume/emptydir/empty_dir.go, v1.36).
                fs::set_permissions(&directory, Permissions::from_mode(0o1777)).unwrap();
            }
        }
        let id = cluster.node.cri.run(&sandbox).unwrap();
        Self { cluster, pod, sandbox, id, context, containers: BTreeMap::new() }
    }

    /// Starts a container, or starts it again.
    pub(crate) fn start_container(&mut self, name: &str) {
        let attempt = self.containers.get(name).map_or(0, |earlier| earlier.attempt + 1);
        let config = kubelet::container(&self.pod, self.container(name), &self.context, attempt);
        let id = self.cluster.node.cri.start_container(&self.id, &self.sandbox, config).unwrap();
        self.containers.insert(name.to_owned(), StartedContainer { id, attempt });
    }

    fn container(&self, name: &str) -> &Container {
        let containers = self.pod.init_containers.iter().flatten().chain(&self.pod.containers);
        containers.into_iter().find(|container| container.name == name).unwrap()
    }

    /// Runs the agent's readiness probe as the kubelet does.
    pub(crate) fn is_ready(&self) -> bool {
        self.probe(|install| &install.readiness_probe)
    }

    /// Runs the agent's liveness probe as the kubelet does.
    pub(crate) fn is_alive(&self) -> bool {
        self.probe(|install| &install.liveness_probe)
    }

    fn probe(&self, probe: impl Fn(&Container) -> &Option<Probe>) -> bool {
        let probe = probe(self.container("install"));
        let command = probe.clone().unwrap().exec.unwrap().command.unwrap();
        self.cluster.node.cri.exec(&self.containers["install"].id, &command).is_ok_and(|(code, _)| code == 0)
    }

    /// Reports whether the agent answers 200.
    pub(crate) fn is_ok(&self, port: u16, path: &str) -> bool {
        self.get(port, path).is_some_and(|response| response.starts_with("HTTP/1.1 200 "))
    }

    /// Returns the response to a request from the node.
    pub(crate) fn get(&self, port: u16, path: &str) -> Option<String> {
        let request = || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
            let mut response = String::new();
            stream.read_to_string(&mut response).ok()?;
            Some(response)
        };
        self.cluster.network.run(request).unwrap()
    }

    /// Waits until a condition holds; panics with the containers' logs when it does not in time.
    pub(crate) fn wait_for(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let held = wait_for_at_most(PATIENCE, || condition().then_some(()));
        held.unwrap_or_else(|| panic!("not within {PATIENCE:?}: {what}:\n{}", self.logs()));
    }

    pub(crate) fn status(&self, container: &str) -> ContainerStatus {
        self.cluster.node.cri.container_status(&self.containers[container].id).unwrap()
    }

    /// Returns a line of /proc/PID/status of the container's process.
    pub(crate) fn proc_status(&self, container: &str, key: &str) -> String {
        let pid = self.status(container).pid.unwrap();
        let path = self.cluster.node.host().path(format!("/proc/{pid}/status"));
        let status = fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap().trim().to_owned()
    }

    pub(crate) fn stop(&self, container: &str) {
        let (grace, before) = (self.pod.termination_grace_period_seconds.unwrap(), Instant::now());
        self.cluster.node.cri.stop_container(&self.containers[container].id, grace).unwrap();
        assert!(before.elapsed() < PATIENCE, "{container} ended after {:?}", before.elapsed());
    }

    /// Returns the containers' status and logs.
    pub(crate) fn logs(&self) -> String {
        let names = self.containers.keys();
        names.map(|name| format!("{name}: {:?}\n{}", self.status(name), self.log(name))).collect()
    }

    /// Returns the log of a container since its last start.
    pub(crate) fn log(&self, container: &str) -> String {
        let file = format!("{container}.{}.log", self.containers[container].attempt);
        fs::read_to_string(self.cluster.node.host().path(LOGS).join(file)).unwrap_or_default()
    }
}

/// Replaces the agent's mounted ConfigMap, as the kubelet does, by the one of the manifests with these settings
/// changed.
pub(crate) fn set_config(node: &Node, changed: &[(&str, &str)]) {
    let mut data = config_map().data.unwrap();
    data.extend(changed.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    write_volume(&node.host().path(VOLUMES).join("config"), data).unwrap();
}
