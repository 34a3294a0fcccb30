//! A release in a cluster that reaches no other network: a registry on the first node gets its image and chart, whose
//! signatures are verified; helm installs the chart from there, and each node's containerd pulls the image.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use gybe_bench::report::Report;
use gybe_containerd_tests::HostProcess;
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::lost::{meshed, redirected, start};
use crate::agent::{self, GYBE};
use crate::checks::Checks;
use crate::cluster::{Cluster, ClusterNode};
use crate::credentials::file;
use crate::mesh::machine_command;
use crate::network::NODE_ADDRESS;
use crate::pods::on;
use crate::release::roll_out;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Publishes and installs the release that `make release` has built in a clone.
pub(crate) fn run(cluster: &Cluster, clone: &Path) -> Result<Report, Failure> {
    let mut checks = Checks::default();
    let registry = format!("{NODE_ADDRESS}:5000");
    let image = format!("{registry}/mesh/gybe");
    let _registry = start_registry(cluster.first(), &registry)?;
    for node in cluster.nodes() {
        trust(node, &registry)?;
    }
    publish(cluster, clone, &image)?;
    let published = fs::read_to_string(clone.join("dist/published"))?;
    let published = |key| published.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    install(cluster, published("chart="))?;
    let pulled = format!("{image}@{}", published("image_digest="));
    checks.equal("the agents' image", &agents_images(cluster)?, &BTreeSet::from([pulled]));
    for node in cluster.nodes() {
        let (number, name) = (node.number.to_string(), format!("published-{}", node.number));
        checks.part(&number);
        start(cluster, &on(&number, meshed(&name)))?;
        redirected(cluster, &mut checks, &name)?;
        let verified = node.host().run(Path::new(GYBE), &["verify", "--pod", &format!("default/{name}")])?;
        checks.equal("`gybe verify`", &verified.lines().last(), &Some("1 sandbox: 1 redirected"));
    }
    Ok(checks.report("A release from a registry that only the nodes reach"))
}

/// Starts a registry with the certificate of the node's API server.
fn start_registry(node: &ClusterNode, address: &str) -> Result<HostProcess, Failure> {
    let configuration = file("registry.json");
    let tls = json!({ "certificate": file("apiserver.crt"), "key": file("apiserver.key") });
    let settings = json!({
        "version": "0.1",
        "log": { "accesslog": { "disabled": true } },
        "storage": { "filesystem": { "rootdirectory": file("registry") } },
        "http": { "addr": address, "tls": tls },
    });
    fs::write(node.host().path(&configuration), settings.to_string())?;
    Ok(node.start_program("registry", vec!["serve".to_owned(), configuration], "listening on")?)
}

/// Gives containerd the CA of the registry, as docs/INSTALL.md has it.
fn trust(node: &ClusterNode, registry: &str) -> Result<(), Failure> {
    let directory = node.host().path(format!("/etc/containerd/certs.d/{registry}"));
    fs::create_dir_all(&directory)?;
    let hosts = format!(
        "server = \"https://{registry}\"\n[host.\"https://{registry}\"]\n  ca = \"{}\"\n",
        file("ca.crt")
    );
    Ok(fs::write(directory.join("hosts.toml"), hosts)?)
}

/// Publishes the release from a workstation in the nodes' network, signed with a key that is thrown away, and verifies
/// it.
fn publish(cluster: &Cluster, clone: &Path, image: &str) -> Result<(), Failure> {
    let mut command = machine_command(clone.join("manifests/publish-check.sh"));
    command.args([VERSION, image]).env("SSL_CERT_FILE", cluster.host().path(file("ca.crt")));
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("publish-check.sh: {status}"))) }
}

fn install(cluster: &Cluster, chart: &str) -> Result<(), Failure> {
    let (chart, authority) = (format!("oci://{chart}"), file("ca.crt"));
    let from = ["install", "gybe", &chart, "--version", VERSION, "--ca-file", &authority];
    cluster.run("helm", &[&from[..], &["--namespace", "gybe-system", "--create-namespace"]].concat())?;
    roll_out(cluster)
}

/// Returns the images that the agents' containers run, by their digests.
fn agents_images(cluster: &Cluster) -> Result<BTreeSet<String>, Failure> {
    let statuses =
        agent::pods(cluster)?.into_iter().filter_map(|pod| pod.pointer("/status/containerStatuses").cloned());
    let images = statuses.flat_map(|containers| containers.as_array().cloned().unwrap_or_default());
    Ok(images.filter_map(|it| it.get("imageID").and_then(Value::as_str).map(str::to_owned)).collect())
}
