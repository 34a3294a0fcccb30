//! Gybe in the cluster, installed from its image and its chart.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gybe_integration::failure::Failure;

use super::commands::{Verdicts, verdicts};
use crate::agent;
use crate::api::wait_at_most;
use crate::cluster::{Cluster, NodeProcess};
use crate::release::{Release, roll_out};

/// The namespace of the agents.
pub(super) const NAMESPACE: &str = "gybe-system";

/// The version of another release, whose programs differ.
pub(super) const NEXT: &str = "0.1.1";

/// The version of the image that `make image` writes.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// More than the agents' pods take to end (`terminationGracePeriodSeconds`): the programs stay for five minutes.
const END: Duration = Duration::from_secs(420);

/// Gybe's chart, and the directory of its programs for commands from a workstation.
pub(super) struct Gybe {
    chart: PathBuf,
    programs: PathBuf,
}

impl Gybe {
    /// Imports the image that `make image` wrote to `dist`, and that of another release.
    pub(super) fn import(cluster: &Cluster, clone: &Path) -> Result<Gybe, Failure> {
        let path = clone.join(format!("dist/gybe-{VERSION}.oci.tar"));
        let archive = fs::read(&path)
            .map_err(|error| Failure::new(format!("{}: {error}; run: make image", path.display())))?;
        cluster.import_archive(&image(), &archive)?;
        Release::new(clone, NEXT, "\nanother release\n").publish(cluster)?;
        Ok(Gybe { chart: clone.join("manifests/chart"), programs: clone.join("dist") })
    }

    /// Installs or upgrades the chart with these values, and waits until the DaemonSet is rolled out.
    pub(super) fn install(&self, cluster: &Cluster, values: &[&str]) -> Result<(), Failure> {
        let chart = self.chart.to_string_lossy();
        let install =
            ["upgrade", "--install", "gybe", &chart, "--namespace", NAMESPACE, "--create-namespace"];
        let values = values.iter().flat_map(|value| ["--set", value]).collect::<Vec<_>>();
        cluster.run("helm", &[&install[..], &values].concat())?;
        roll_out(cluster)
    }

    /// Upgrades to another version, with the values of the installation.
    pub(super) fn upgrade(&self, cluster: &Cluster, version: &str) -> Result<(), Failure> {
        self.install(cluster, &["settings.backend=nft", &format!("image.tag={version}")])
    }

    pub(super) fn roll_back(&self, cluster: &Cluster) -> Result<(), Failure> {
        cluster.run("helm", &["rollback", "gybe", "--namespace", NAMESPACE])?;
        roll_out(cluster)
    }

    /// Keeps Gybe after a `helm uninstall` that failed: `helm rollback` to the last revision of `helm history`.
    pub(super) fn roll_back_to_last(&self, cluster: &Cluster) -> Result<(), Failure> {
        let history = cluster.run("helm", &["history", "gybe", "--namespace", NAMESPACE])?;
        let last = history.lines().last().and_then(|line| line.split_whitespace().next()).unwrap_or_default();
        cluster.run("helm", &["rollback", "gybe", last, "--namespace", NAMESPACE])?;
        roll_out(cluster)
    }

    /// Starts `helm uninstall`, as docs/INSTALL.md has it.
    pub(super) fn uninstall(&self, cluster: &Cluster) -> Result<NodeProcess, Failure> {
        cluster.spawn("helm", &["uninstall", "gybe", "--namespace", NAMESPACE])
    }

    /// Reports whether helm has a release of Gybe.
    pub(super) fn is_installed(&self, cluster: &Cluster) -> Result<bool, Failure> {
        let all = ["list", "--all", "--short", "--namespace", NAMESPACE];
        Ok(cluster.run("helm", &all)?.lines().any(|name| name == "gybe"))
    }

    /// Returns the verdicts of `gybe verify --all` by the program in `dist`, without an agent.
    pub(super) fn verify_by_hand(&self, cluster: &Cluster) -> Result<Verdicts, Failure> {
        Ok(verdicts(&self.shell(cluster, "gybe verify --all || [ $? -le 1 ]")?))
    }

    /// Runs a shell's commands on the node as root, with the programs of a workstation.
    pub(super) fn shell(&self, cluster: &Cluster, commands: &str) -> Result<String, Failure> {
        let script = format!("PATH={}:$PATH; {commands}", self.programs.display());
        cluster.run("timeout", &["600", "bash", "-o", "pipefail", "-c", &script])
    }

    pub(super) fn chart(&self) -> &Path {
        &self.chart
    }
}

/// Returns the name of Gybe's image on the node.
pub(super) fn image() -> String {
    format!("docker.io/library/gybe:{VERSION}")
}

/// Waits until the agents' pods are gone.
pub(super) fn wait_until_gone(cluster: &Cluster) -> Result<(), Failure> {
    wait_at_most(END, "the agents' pods are gone", || Ok(agent::pods(cluster)?.is_empty()))
}
