//! A mesh in the cluster: istiod, sidecars with Envoy, and Gybe from its image and chart. Each scenario shows by
//! requests that connections pass through the sidecars: pods with a sidecar require mutual TLS, so that a connection that
//! misses a sidecar is refused.

mod ambient;
mod application;
mod checks;
mod commands;
mod early;
mod existing;
mod family;
mod gybe;
mod images;
mod init_container;
mod istio;
mod istio_cni;
mod life;
mod load;
mod migrate;
mod modes;
mod namespaces;
mod node_files;
mod one_family;
mod pools;
mod reboot;
mod remove;
mod rights;
mod sidecars;
mod versions;
mod workstation;

use std::env;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use gybe_bench::report::{self, Report};
use gybe_containerd_tests::Generation;
use gybe_integration::failure::Failure;

use crate::api::wait_until;
use crate::cluster::{Cluster, ClusterNode, HOME};
use crate::components::{self, ProxyMode};
use crate::credentials::{file, kubeconfig};
use crate::network::NodeNumber;
use crate::scenario::{Chosen, Scenario};

use application::Nodes;
use gybe::Gybe;
use images::APPLICATION;
use node_files::NodeFiles;
use versions::Versions;
use workstation::Workstation;

pub(crate) use existing::{ExistingCluster, run as run_existing};
pub(crate) use images::application as application_image;
pub(crate) use workstation::machine_command;

/// A scenario of the mesh. They run in this order in one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeshScenario {
    /// A tainted node with a meshed pod gets Gybe
    Early,
    /// Native and plain sidecars, with each backend
    Sidecars,
    /// TPROXY, IPv6, DNS capture, exclusions, waiting applications, Jobs, probes
    Modes,
    /// Pods with IPv4 or IPv6 addresses alone
    OneFamily,
    /// `gybe-cluster existing` in this cluster, and interrupted
    Existing,
    /// An upgrade, its rollback, and failures, while pods make requests
    Life,
    /// `helm uninstall` while pods make requests, and another installation
    Remove,
    /// docs/MIGRATE.md: from istio-cni to Gybe, and back
    Migrate,
    /// Gybe's image instead of Istio's in the init container of pods
    InitContainer,
    /// What the agents request from the API server, and what they are allowed to
    Rights,
    /// A node's processes are killed, its `/run` is wiped, and it starts again
    Reboot,
    /// A pool of nodes gets a version first
    Pools,
    /// Ambient pods with the real ztunnel
    Ambient,
}

impl Scenario for MeshScenario {
    fn nodes(self) -> RangeInclusive<u8> {
        match self {
            MeshScenario::Sidecars
            | MeshScenario::Modes
            | MeshScenario::Existing
            | MeshScenario::Life
            | MeshScenario::Ambient
            | MeshScenario::Reboot => 1..=NodeNumber::MAX,
            MeshScenario::Early
            | MeshScenario::OneFamily
            | MeshScenario::Remove
            | MeshScenario::Migrate
            | MeshScenario::InitContainer
            | MeshScenario::Rights => 1..=1,
            MeshScenario::Pools => 2..=NodeNumber::MAX,
        }
    }
}

/// The paths of what runs in the mesh.
pub(crate) struct MeshDirectories {
    /// Those of the cluster, Envoy and helm.
    pub(crate) cluster: PathBuf,
    /// Istio's, with a link to its module.
    pub(crate) istio: PathBuf,
    /// The clone of Gybe, with its image in `dist`.
    pub(crate) clone: PathBuf,
    /// The program ztunnel.
    pub(crate) ztunnel: Option<PathBuf>,
}

impl MeshDirectories {
    /// Programs on the node are started by absolute paths.
    pub(crate) fn new(
        cluster: &Path,
        istio: &Path,
        clone: &Path,
        ztunnel: Option<&Path>,
    ) -> Result<MeshDirectories, Failure> {
        Ok(MeshDirectories {
            ztunnel: ztunnel.map(Path::canonicalize).transpose()?,
            cluster: cluster.canonicalize()?,
            istio: istio.canonicalize()?,
            clone: clone.canonicalize()?,
        })
    }
}

/// A running mesh, and Gybe's image and chart.
struct Mesh {
    cluster: Cluster,
    workstation: Workstation,
    gybe: Gybe,
    /// The first node's files before Gybe was installed for the first time.
    before: NodeFiles,
    /// The names of the nodes.
    nodes: Vec<String>,
    /// Istio's charts.
    charts: PathBuf,
    ztunnel: Option<PathBuf>,
    versions: Versions,
    proxy_mode: ProxyMode,
}

impl Mesh {
    /// Starts the cluster with istiod, without Gybe.
    fn start(
        directories: &MeshDirectories,
        containerd: Generation,
        proxy_mode: Option<ProxyMode>,
        nodes: u8,
    ) -> Result<Mesh, Failure> {
        let (programs, logs) = (&directories.cluster, directories.cluster.join("mesh-logs"));
        let runc = Some(programs.join("runc"));
        let mut cluster = Cluster::start(programs.clone(), logs, containerd, runc, nodes)?;
        let versions = Versions::of(&cluster, containerd)?;
        let proxy_mode = proxy_mode.unwrap_or(versions.proxy_mode());
        report::tables(&versions.table(&cluster, directories, proxy_mode)?);
        for number in NodeNumber::up_to(nodes) {
            start_services(cluster.node_mut(number)?, proxy_mode)?;
        }
        images::import(&cluster, programs, &directories.istio)?;
        let gybe = Gybe::import(&cluster, &directories.clone)?;
        let charts = directories.istio.join("istio/manifests/charts");
        istio::install(&cluster, &charts)?;
        let workstation = workstation(&cluster, directories)?;
        namespaces::create(&workstation, None)?;
        namespaces::wait_until_injected(&workstation)?;
        let before = NodeFiles::read(cluster.host())?;
        let nodes = NodeNumber::up_to(nodes).map(|number| number.to_string()).collect();
        let ztunnel = directories.ztunnel.clone();
        Ok(Mesh { cluster, workstation, gybe, before, nodes, charts, ztunnel, versions, proxy_mode })
    }

    /// The last node, which has the control plane only if it is the first.
    fn last(&self) -> NodeNumber {
        self.cluster.nodes().last().map_or(NodeNumber::FIRST, |node| node.number)
    }

    /// Where clients and servers run: on each node with servers on the next; with one node, there.
    fn between_nodes(&self) -> Vec<Nodes<'_>> {
        match self.nodes.as_slice() {
            [_] => vec![Nodes::Any],
            nodes => {
                let next = nodes.iter().cycle().skip(1);
                nodes.iter().zip(next).map(|(clients, servers)| Nodes::On { clients, servers }).collect()
            }
        }
    }

    /// Clients on the first node and servers on the last; with one node, there.
    fn apart(&self) -> Nodes<'_> {
        match self.nodes.as_slice() {
            [clients, .., servers] => Nodes::On { clients, servers },
            _ => Nodes::Any,
        }
    }

    /// Installs Gybe with the backend nft, or upgrades it to that.
    fn ensure_gybe(&self) -> Result<(), Failure> {
        self.gybe.install(&self.cluster, &["settings.backend=nft"])?;
        self.wait_for_backend("nft")
    }

    /// Waits until `gybe status` reports that the agents are ready with this backend.
    fn wait_for_backend(&self, backend: &str) -> Result<(), Failure> {
        wait_until(&format!("`gybe status` reports that {:?} are ready with {backend}", self.nodes), || {
            // It fails while there is no agent.
            let nodes = commands::status(&self.workstation).unwrap_or_default();
            Ok(self.nodes.iter().all(|name| {
                nodes.iter().any(|node| {
                    node.node == *name
                        && node.state == "ready"
                        && node.version.as_deref() == Some(env!("CARGO_PKG_VERSION"))
                        && node.backend.as_deref() == Some(backend)
                })
            }))
        })
    }

    /// Removes Gybe, if helm has a release of it, and waits until the last agent has ended.
    fn remove_gybe(&self) -> Result<(), Failure> {
        if self.gybe.is_installed(&self.cluster)? {
            self.gybe.uninstall(&self.cluster)?.output()?;
        }
        gybe::wait_until_gone(&self.cluster)
    }
}

/// Starts what translates the addresses and names of services on a node.
fn start_services(node: &mut ClusterNode, proxy_mode: ProxyMode) -> Result<(), Failure> {
    let corefile = file("Corefile");
    fs::write(node.host().path(&corefile), components::corefile(node.number))?;
    node.start_component("kube-proxy", &components::proxy(proxy_mode, node.number))?;
    node.start_component("coredns", &components::dns(&corefile))
}

/// Connects as the administrator, with the programs of the cluster and of the clone.
fn workstation(cluster: &Cluster, directories: &MeshDirectories) -> Result<Workstation, Failure> {
    let own = [directories.clone.join("dist"), directories.cluster.clone()];
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(own.into_iter().chain(env::split_paths(&path)))?;
    let host = cluster.host();
    // kubectl keeps a cache in the home directory.
    let variables = [("PATH", path), ("HOME", host.path(HOME).into())];
    Workstation::connect(&host.path(kubeconfig("admin")), APPLICATION, &variables)
}

/// Returns the outcome, with the error of the cleanup that followed it.
fn with_cleanup<T>(outcome: Result<T, Failure>, cleanup: Result<(), Failure>) -> Result<T, Failure> {
    match (outcome, cleanup) {
        (outcome, Ok(())) => outcome,
        (Ok(_), Err(error)) => Err(error),
        (Err(error), Err(and)) => Err(Failure::new(format!("{error:?}\n{and:?}"))),
    }
}

impl MeshScenario {
    fn run(self, mesh: &mut Mesh) -> Result<Report, Failure> {
        match self {
            MeshScenario::Early => early::run(mesh),
            MeshScenario::Sidecars => sidecars::run(mesh),
            MeshScenario::Modes => modes::run(mesh),
            MeshScenario::OneFamily => one_family::run(mesh),
            MeshScenario::Existing => existing::scenario::run(mesh),
            MeshScenario::Life => life::run(mesh),
            MeshScenario::Remove => remove::run(mesh),
            MeshScenario::Migrate => migrate::run(mesh),
            MeshScenario::InitContainer => init_container::run(mesh),
            MeshScenario::Rights => rights::run(mesh),
            MeshScenario::Reboot => reboot::run(mesh),
            MeshScenario::Pools => pools::run(mesh),
            MeshScenario::Ambient => ambient::run(mesh),
        }
    }
}

/// Starts the mesh and runs the scenarios in it. One that fails does not stop the next. With `shell`, starts a shell on
/// the first node instead.
pub(crate) fn run(
    directories: &MeshDirectories,
    containerd: Generation,
    proxy_mode: Option<ProxyMode>,
    chosen: &Chosen<MeshScenario>,
    shell: bool,
) -> Result<Vec<Report>, Failure> {
    let mut mesh = Mesh::start(directories, containerd, proxy_mode, chosen.nodes)?;
    if shell {
        mesh.gybe.install(&mesh.cluster, &[])?;
        mesh.cluster.shell(&directories.clone)?;
        return Ok(Vec::new());
    }
    let mut reports = Vec::new();
    for scenario in &chosen.scenarios {
        // Those that a failed scenario has left.
        namespaces::delete_pods(&mesh.workstation)?;
        let report = scenario.run(&mut mesh).unwrap_or_else(|error| {
            report::failure(&error);
            crate::checks::failed(&format!("{scenario:?}"), &error)
        });
        report::tables(&report);
        reports.push(report);
    }
    Ok(reports)
}
