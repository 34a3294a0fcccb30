//! `gybe-cluster`: runs scenarios with Gybe in a Kubernetes cluster, which it starts, or in an existing cluster, prints the results, and fails when a target is missed. It also writes the image of the pods for the latter.

mod agent;
mod api;
mod checks;
mod cluster;
mod components;
mod credentials;
mod mesh;
mod network;
mod pods;
mod release;
mod scenario;
mod storm;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::RangedI64ValueParser;
use clap::{Parser, Subcommand};
use gybe_bench::report::{self, Report};
use gybe_containerd_tests::Generation;
use gybe_integration::failure::Failure;
use serde_json::json;

use crate::api::wait_until;
use crate::cluster::Cluster;
use crate::components::ProxyMode;
use crate::mesh::{ExistingCluster, MeshDirectories, MeshScenario};
use crate::network::NodeNumber;
use crate::release::Release;
use crate::scenario::{AgentScenario, Chosen, Releases};
use crate::storm::NAMESPACE;

/// Parses how many nodes a cluster has.
fn node_count() -> RangedI64ValueParser<u8> {
    RangedI64ValueParser::new().range(1..=i64::from(NodeNumber::MAX))
}

/// Runs scenarios with Gybe in a Kubernetes cluster, and fails when a target is missed. Without a command, starts a
/// cluster for them.
#[derive(Debug, Parser)]
#[command(
    name = "gybe-cluster",
    args_conflicts_with_subcommands = true,
    subcommand_precedence_over_arg = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The scenarios to run; by default all for this number of nodes
    scenarios: Vec<AgentScenario>,
    /// The nodes of the cluster; by default as many as the scenarios need
    #[arg(long, value_parser = node_count())]
    nodes: Option<u8>,
    /// Starts a shell on the first node, with Gybe installed, instead of running scenarios
    #[arg(long, conflicts_with = "scenarios")]
    shell: bool,
    /// The directory of Kubernetes' programs and etcd
    #[arg(long, default_value = "target/cluster")]
    programs: PathBuf,
    /// The clone whose programs (in dist) and manifests are installed
    #[arg(long, default_value = ".")]
    release: PathBuf,
    /// The clone to which they are upgraded; by default the same, as another version
    #[arg(long)]
    next: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs scenarios of a mesh: istiod, sidecars with Envoy, and Gybe from its image and chart
    Mesh {
        /// The scenarios to run; by default all for this number of nodes
        scenarios: Vec<MeshScenario>,
        /// The nodes of the cluster; by default as many as the scenarios need
        #[arg(long, value_parser = node_count())]
        nodes: Option<u8>,
        /// Starts a shell on the first node, with Gybe installed, instead of running scenarios
        #[arg(long, conflicts_with = "scenarios")]
        shell: bool,
        /// How kube-proxy writes its rules; nftables by default, or iptables where that is not for general use
        #[arg(long, value_enum)]
        proxy_mode: Option<ProxyMode>,
        /// The generation of containerd
        #[arg(long, value_enum, default_value_t = Generation::V2)]
        containerd: Generation,
        /// The directory of Kubernetes' programs, Envoy and helm
        #[arg(long, default_value = "target/cluster")]
        programs: PathBuf,
        /// The directory of Istio's programs and of a link to its module
        #[arg(long, default_value = "target/incumbent")]
        istio: PathBuf,
        /// The clone whose image (in dist) and chart are installed
        #[arg(long, default_value = ".")]
        release: PathBuf,
        /// The program ztunnel, for ambient pods
        #[arg(long)]
        ztunnel: Option<PathBuf>,
    },
    /// Publishes a release to a registry that only the nodes of a cluster reach, verifies it, and installs it
    Published {
        /// The nodes of the cluster
        #[arg(long, default_value_t = 2, value_parser = node_count())]
        nodes: u8,
        /// The directory of Kubernetes' programs, helm and the registry
        #[arg(long, default_value = "target/cluster")]
        programs: PathBuf,
        /// The clone with the release (in dist/release)
        #[arg(long)]
        release: PathBuf,
    },
    /// Runs the scenarios that any cluster with Istio's injector and Gybe allows
    Existing(ExistingCluster),
    /// Writes the image of the application in the pods as an OCI archive
    Application {
        /// The image's name, with the registry to which the archive is pushed
        #[arg(long)]
        name: String,
        /// The file
        #[arg(long)]
        archive: PathBuf,
    },
}

fn main() -> ExitCode {
    run(&Arguments::parse()).unwrap_or_else(|error| report::failure(&error))
}

fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        None => run_agent_scenarios(arguments),
        Some(Command::Mesh {
            scenarios,
            nodes,
            shell,
            proxy_mode,
            containerd,
            programs,
            istio,
            release,
            ztunnel,
        }) => {
            report::preface();
            let directories = MeshDirectories::new(programs, istio, release, ztunnel.as_deref())?;
            let chosen = Chosen::new(scenarios, *nodes)?;
            let reports = mesh::run(&directories, *containerd, *proxy_mode, &chosen, *shell)?;
            Ok(report::verdict(&reports))
        }
        Some(Command::Published { nodes, programs, release }) => {
            report::preface();
            let (programs, release) = (programs.canonicalize()?, release.canonicalize()?);
            let logs = programs.join("published-logs");
            let cluster = Cluster::start(programs, logs, Generation::V2, None, *nodes)?;
            pods::listen_outside()?;
            let report = scenario::published::run(&cluster, &release)?;
            report::tables(&report);
            Ok(report::verdict(&[report]))
        }
        Some(Command::Existing(existing)) => Ok(report::verdict(&mesh::run_existing(existing)?)),
        Some(Command::Application { name, archive }) => {
            fs::write(archive, mesh::application_image(name)?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn run_agent_scenarios(arguments: &Arguments) -> Result<ExitCode, Failure> {
    report::preface();
    let chosen = Chosen::new(&arguments.scenarios, arguments.nodes)?;
    let programs = arguments.programs.canonicalize()?;
    let release = arguments.release.canonicalize()?;
    let next = arguments.next.clone().unwrap_or(release.clone()).canonicalize()?;
    let releases = Releases {
        installed: Release::new(&release, "0.1.0", ""),
        // A program ends where its ELF header says.
        next: Release::new(&next, "0.1.1", "\nanother release\n"),
    };
    let mut cluster =
        Cluster::start(programs.clone(), programs.join("logs"), Generation::V2, None, chosen.nodes)?;
    pods::listen_outside()?;
    cluster.api.create("/api/v1/namespaces", &json!({ "metadata": { "name": NAMESPACE } }))?;
    let account = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default");
    wait_until("the namespace has a service account", || Ok(cluster.api.get(&account)?.is_some()))?;
    releases.installed.publish(&cluster)?;
    releases.next.publish(&cluster)?;
    if arguments.shell {
        releases.installed.install(&cluster)?;
        cluster.shell(&release)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut reports: Vec<Report> = Vec::new();
    for scenario in chosen.scenarios {
        let report = scenario.run(&mut cluster, &releases)?;
        report::tables(&report);
        reports.push(report);
    }
    Ok(report::verdict(&reports))
}
