//! Gybe in the cluster, installed from its image and its chart.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gybe_integration::failure::Failure;

use super::application::Name;
use crate::agent;
use crate::api::{wait_at_most, wait_until};
use crate::cluster::{Cluster, NodeProcess};
use crate::network::NODE;
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
        cluster.node.import_archive(&image(), &archive)?;
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

    /// Returns the verdict of `gybe verify --all` for each pod, by the agent's container `repair`.
    pub(super) fn verify(&self, cluster: &Cluster) -> Result<Verdicts, Failure> {
        // It exits with 1 when a pod is not redirected.
        Ok(verdicts(&on_the_node(cluster, "gybe verify --all || [ $? -le 1 ]")?))
    }

    /// Returns the same by the program of a workstation, copied to the node: without an agent.
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

    /// Returns the backend that has written a pod's rules, as `gybe inspect` names it.
    pub(super) fn backend_of(
        &self,
        cluster: &Cluster,
        (namespace, name): Name<'_>,
    ) -> Result<String, Failure> {
        let listed = on_the_node(cluster, &format!("gybe inspect --pod {namespace}/{name}"))?;
        Ok(listed.split(':').next().unwrap_or_default().to_owned())
    }

    /// Runs `gybe status` as an administrator, and returns the words of the node's line that are its state, version and
    /// backend; none while there is no agent.
    fn status(&self, cluster: &Cluster) -> Result<Vec<String>, Failure> {
        let listed = self.shell(cluster, "timeout 60 gybe status || [ $? -le 2 ]")?;
        let line = listed.lines().find(|line| line.starts_with(NODE)).unwrap_or_default();
        Ok(line.split_whitespace().skip(1).take(3).map(str::to_owned).collect())
    }

    /// Waits until the agent reports that it is ready with this backend.
    pub(super) fn wait_for_backend(&self, cluster: &Cluster, backend: &str) -> Result<(), Failure> {
        let expected = ["ready", VERSION, backend];
        wait_until(&format!("`gybe status` reports {expected:?}"), || Ok(self.status(cluster)? == expected))
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

/// The verdict for each pod, `NAMESPACE/NAME`.
pub(super) type Verdicts = Vec<(String, String)>;

fn verdicts(listed: &str) -> Verdicts {
    let rows = listed.lines().filter_map(|line| line.split_once(char::is_whitespace));
    rows.filter(|(pod, _)| pod.contains('/'))
        .map(|(pod, verdict)| (pod.to_owned(), verdict.trim().to_owned()))
        .collect()
}

/// Runs a command of gybe's in the container `repair`, as docs/TROUBLESHOOTING.md has it.
fn on_the_node(cluster: &Cluster, command: &str) -> Result<String, Failure> {
    let exec = format!("kubectl -n {NAMESPACE} exec daemonset/gybe-node -c repair -- {command}");
    cluster.run("timeout", &["60", "sh", "-c", &exec])
}
