//! A pod as a runtime hands it to the plugin: a fresh namespace with addresses, and the call.

use crate::seclusion::PLACE;
use gybe_installer::testnet::link::{LinkEnd, join};
use gybe_installer::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::parallel::in_parallel;
use gybe_netfilter::policy::InterfaceName;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A namespace that has a name in the file system, as runtimes give it one.
#[derive(Debug)]
pub struct Pod {
    /// The namespace.
    pub namespace: Namespace,
    /// Where it is mounted.
    pub path: PathBuf,
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Nobody else sees the mount, and it goes with this process at the latest.
        let _gone = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}

/// Makes that many namespaces, each with `eth0` up and an address of either family.
///
/// # Errors
/// When one of them cannot be made.
pub fn fresh(count: usize) -> Result<Vec<Pod>, Failure> {
    in_parallel((0..count).collect(), |_: usize| named(one()?)).into_iter().collect()
}

fn named(namespace: Namespace) -> Result<Pod, Failure> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let directory = Path::new(PLACE).join("netns");
    fs::create_dir_all(&directory)?;
    let path = directory.join(format!("cni-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    fs::write(&path, "")?;
    let nothing: Option<&str> = None;
    mount(Some(&namespace.path()), &path, nothing, MsFlags::MS_BIND, nothing)?;
    Ok(Pod { namespace, path })
}

fn one() -> Result<Namespace, Failure> {
    let namespace = Namespace::new()?;
    let addresses = ["10.244.0.10/24", "fd00:10::10/64"].map(str::parse).into_iter();
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    let end = |name, addresses| {
        Ok::<_, Failure>(LinkEnd { namespace: &namespace, name: InterfaceName::parse(name)?, addresses })
    };
    // The other end stays inside, too: nothing but the namespace has to go. An address of IPv4 on
    // every interface is what spares the plugin a list of their names.
    let other = vec!["169.254.0.1/32".parse()?];
    join(&end("eth0", addresses)?, &end("other", other)?)?;
    Ok(namespace)
}

/// The plugin's environment and stdin for the example pod, without what its owner asks of its own.
#[derive(Debug, Clone)]
pub struct Call {
    env: Vec<(String, String)>,
    stdin: Value,
}

impl Call {
    /// Writes the pod's manifest to where the call says it is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn prepared() -> Result<Self, Failure> {
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
        Ok(Self { env: env.collect(), stdin: add.get("stdin").cloned().unwrap_or_default() })
    }

    /// The same for another verb.
    #[must_use]
    pub fn of(mut self, verb: &str) -> Self {
        let own = self.env.iter_mut().find(|(name, _)| name == "CNI_COMMAND");
        own.into_iter().for_each(|(_, own)| verb.clone_into(own));
        self
    }

    /// The same for a pod of which the runtime says that it has no annotations.
    #[must_use]
    pub fn unannotated(mut self) -> Self {
        let handed = self.stdin.pointer_mut("/runtimeConfig/io.kubernetes.cri.pod-annotations");
        handed.into_iter().for_each(|handed| *handed = Value::Null);
        self
    }

    /// The same, with an agent at this socket to ask instead of a directory.
    #[must_use]
    pub fn asking(mut self, socket: &Path) -> Self {
        self.stdin.pointer_mut("/facts").into_iter().for_each(|facts| *facts = json!({ "socket": socket }));
        self
    }

    /// Where the manifests are.
    pub fn pods(&self) -> PathBuf {
        pods()
    }

    /// The environment of the call for this namespace.
    pub fn env(&self, pod: &Pod) -> Vec<(String, String)> {
        let netns = pod.path.display().to_string();
        let own = |(name, value): &(String, String)| {
            let value = if name == "CNI_NETNS" { netns.clone() } else { value.clone() };
            (name.clone(), value)
        };
        self.env.iter().map(own).collect()
    }

    /// What the runtime writes to stdin.
    pub fn stdin(&self) -> String {
        self.stdin.to_string()
    }
}

fn pods() -> PathBuf {
    Path::new(PLACE).join("pods")
}
