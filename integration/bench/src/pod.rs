//! A pod as the runtime passes it to the plugin: a new namespace with addresses, and the CNI call.

use crate::programs::{built_program, command};
use gybe_demo::testnet::namespace::{LinkEnd, Namespace, join};
use gybe_integration::failure::Failure;
use gybe_integration::namespace::{in_parallel, unshare_mounts};
use gybe_netfilter::model::policy::InterfaceName;
use gybe_test_support::Agent;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A network namespace that is mounted in the file system, as runtimes do.
#[derive(Debug)]
pub struct Pod {
    /// The namespace.
    pub namespace: Namespace,
    /// Its mount point.
    pub path: PathBuf,
}

impl Drop for Pod {
    fn drop(&mut self) {
        // The mount is private and ends with this process at the latest.
        let _unmounted = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}

/// Makes namespaces, each with `eth0` up and an address of either family.
///
/// # Errors
/// When a namespace cannot be made.
pub fn new_pods(count: usize) -> Result<Vec<Pod>, Failure> {
    in_parallel((0..count).collect(), |_: usize| mount_namespace(new_namespace()?)).into_iter().collect()
}

fn mount_namespace(namespace: Namespace) -> Result<Pod, Failure> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let directory = Path::new(RUN).join("netns");
    fs::create_dir_all(&directory)?;
    let path = directory.join(format!("cni-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    fs::write(&path, "")?;
    let nothing: Option<&str> = None;
    mount(Some(&namespace.path()), &path, nothing, MsFlags::MS_BIND, nothing)?;
    Ok(Pod { namespace, path })
}

fn new_namespace() -> Result<Namespace, Failure> {
    let namespace = Namespace::new()?;
    let addresses = ["10.244.0.10/24", "fd00:10::10/64"].map(str::parse).into_iter();
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    let end = |name, addresses| {
        Ok::<_, Failure>(LinkEnd { namespace: &namespace, name: InterfaceName::parse(name)?, addresses })
    };
    // The other end is in the same namespace and ends with it. With an IPv4 address on every interface the plugin
    // needs no list of their names.
    let other = vec!["169.254.0.1/32".parse()?];
    join(&end("eth0", addresses)?, &end("other", other)?)?;
    Ok(namespace)
}

/// The plugin's environment and stdin for the example pod without its annotations about excluded ports.
#[derive(Debug, Clone)]
pub struct CniCall {
    env: Vec<(String, String)>,
    stdin: Value,
}

impl CniCall {
    /// Writes the pod's manifest and returns an ADD that reads it.
    ///
    /// # Errors
    /// When the manifest cannot be written.
    pub fn new() -> Result<Self, Failure> {
        let mut pod: Value = serde_json::from_str(include_str!("../../../examples/pod.json"))?;
        if let Some(Value::Object(annotations)) = pod.pointer_mut("/metadata/annotations") {
            annotations.remove("traffic.sidecar.istio.io/excludeOutboundPorts");
            annotations.remove("traffic.sidecar.istio.io/excludeInboundPorts");
        }
        let shop = pods().join("shop");
        fs::create_dir_all(&shop)?;
        fs::write(shop.join("cart-0.json"), pod.to_string())?;
        let mut add: Value = serde_json::from_str(include_str!("../../../examples/add.json"))?;
        if let Some(facts) = add.pointer_mut("/stdin/facts") {
            *facts = json!({ "directory": pods() });
        }
        let env = add.get("env").and_then(Value::as_object).into_iter().flatten();
        let env = env.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()));
        let call = Self { env: env.collect(), stdin: add.get("stdin").cloned().unwrap_or_default() };
        call.cache_result_of_loopback()?;
        Ok(call)
    }

    /// Writes the result of `loopback` to libcni's cache, as containerd has it by the time Gybe runs.
    fn cache_result_of_loopback(&self) -> Result<(), Failure> {
        let id = self.env.iter().find(|(name, _)| name == "CNI_CONTAINERID").map(|(_, id)| id.as_str());
        let results = Path::new(STATE).join("cni/results");
        fs::create_dir_all(&results)?;
        Ok(fs::write(results.join(format!("cni-loopback-{}-lo", id.unwrap_or_default())), "{}")?)
    }

    /// Sets `CNI_COMMAND`.
    #[must_use]
    pub fn with_command(mut self, command: &str) -> Self {
        let variable = self.env.iter_mut().find(|(name, _)| name == "CNI_COMMAND");
        variable.into_iter().for_each(|(_, value)| command.clone_into(value));
        self
    }

    /// Adds a variable.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Removes the annotations that the runtime passes.
    #[must_use]
    pub fn without_annotations(mut self) -> Self {
        let annotations = self.stdin.pointer_mut("/runtimeConfig/io.kubernetes.cri.pod-annotations");
        annotations.into_iter().for_each(|annotations| *annotations = Value::Null);
        self
    }

    /// Replaces the directory of manifests by an agent's socket as the source of facts.
    #[must_use]
    pub fn with_agent(mut self, socket: &Path) -> Self {
        self.stdin.pointer_mut("/facts").into_iter().for_each(|facts| *facts = json!({ "socket": socket }));
        self
    }

    /// Sets the backend.
    #[must_use]
    pub fn with_backend(mut self, backend: &str) -> Self {
        self.stdin.pointer_mut("/backend").into_iter().for_each(|value| *value = json!(backend));
        self
    }

    /// Returns the call with the network configuration that Istio's installer writes. `directory` has the kubeconfig.
    #[must_use]
    pub fn for_istio(&self, directory: &Path, native_nftables: bool) -> Self {
        let member = |name: &str| self.stdin.get(name).cloned().unwrap_or_default();
        let stdin = json!({
            "cniVersion": member("cniVersion"), "name": member("name"), "type": "istio-cni",
            "plugin_log_level": "info", "cni_agent_run_dir": directory, "ambient_enabled": false,
            "exclude_namespaces": ["kube-system"], "pod_namespace": "istio-system",
            "native_nftables": native_nftables,
            "runtimeConfig": member("runtimeConfig"), "prevResult": member("prevResult"),
        });
        // It looks for iptables and nft there.
        let path = ("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
        Self { env: self.env.iter().cloned().chain([path]).collect(), stdin }
    }

    /// The directory of the manifests.
    pub fn pods(&self) -> PathBuf {
        pods()
    }

    /// Returns the environment of the call for a pod.
    pub fn env(&self, pod: &Pod) -> Vec<(String, String)> {
        let netns = pod.path.display().to_string();
        let variable = |(name, value): &(String, String)| {
            let value = if name == "CNI_NETNS" { netns.clone() } else { value.clone() };
            (name.clone(), value)
        };
        self.env.iter().map(variable).collect()
    }

    /// Returns the standard input of the call.
    pub fn stdin(&self) -> String {
        self.stdin.to_string()
    }
}

fn pods() -> PathBuf {
    Path::new(RUN).join("pods")
}

/// The directory of all files of the benchmark.
pub const RUN: &str = "/run";

/// The directory of libcni's cache, a tmpfs too.
const STATE: &str = "/var/lib";

/// The facts socket of the benchmark's agent.
pub const FACTS: &str = "/run/gybe-bench/facts.sock";

/// Mounts an empty /run and /var/lib, and raises the limit of open files: each of 250 programs needs a namespace and five pipe ends.
/// Must be called before the first thread starts.
///
/// # Errors
/// When this process may not make a mount namespace.
pub fn mount_private_run() -> Result<(), Failure> {
    let refused = |what: &str, errno| Failure::new(format!("cannot {what}: {errno}; run this as root"));
    unshare_mounts().map_err(|errno| refused("make a mount namespace", errno))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    for directory in [RUN, STATE] {
        mount(Some("tmpfs"), directory, Some("tmpfs"), flags, None::<&str>)
            .map_err(|errno| refused("mount a tmpfs", errno))?;
    }
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

/// Starts a node agent that answers for the pods of this call at [`FACTS`], until the value is dropped.
///
/// # Errors
/// When its program is missing.
pub fn start_agent(call: &CniCall) -> Result<Agent, Failure> {
    let mut command = command(&built_program("gybe")?);
    command.arg("node").arg("--pods-from").arg(call.pods()).args(["--socket", FACTS]);
    Ok(Agent::start_serving(command))
}
