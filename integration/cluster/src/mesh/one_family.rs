//! Pods with addresses of one family, on a node whose primary plugin gives out no others.

use std::fs;
use std::path::PathBuf;

use gybe_bench::report::Report;
use gybe_containerd_tests::containerd::CONF_DIR;
use gybe_containerd_tests::node::CONFLIST;
use gybe_integration::failure::Failure;
use gybe_netfilter::model::ruleset::Family;
use serde_json::{Value, json};

use super::Mesh;
use super::application::{self, VALIDATION};
use super::commands;
use super::family::{FAMILIES, family_of, is_only_one_of};
use super::modes::{MESHED_PODS, PODS, dns, requests, start_pods};
use super::node_files::NodeFiles;
use super::with_cleanup;
use crate::api::wait_until;
use crate::checks::Checks;
use crate::cluster::Cluster;
use crate::network::NODE_ADDRESS_6;

pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let cluster = &mesh.cluster;
    let mut checks = Checks::default();
    mesh.ensure_gybe()?;
    let files = NodeFiles::read(cluster.host())?;
    let outcome = FAMILIES.into_iter().try_for_each(|family| {
        files.restore_conf_files(cluster.host())?;
        give_out_only(cluster, family)?;
        pods_of(mesh, &mut checks, family)
    });
    let restored = files.restore_conf_files(cluster.host()).and_then(|()| wait_until_loaded(cluster));
    with_cleanup(outcome, restored).map(|()| checks.report("Pods with addresses of one family"))
}

/// Removes the ranges of the other family from the primary plugin's configuration, and waits until containerd has
/// loaded it.
fn give_out_only(cluster: &Cluster, family: Family) -> Result<(), Failure> {
    let mut conflist = written(cluster)?;
    let ranges = conflist.pointer_mut("/plugins/0/ipam/ranges").and_then(Value::as_array_mut);
    let ranges =
        ranges.ok_or_else(|| Failure::new(format!("the primary plugin of {CONFLIST} has no ranges")))?;
    let subnet = |set: &Value| set.pointer("/0/subnet").and_then(Value::as_str).map(family_of);
    ranges.retain(|set| subnet(set) == Some(family));
    fs::write(path(cluster), format!("{conflist:#}\n"))?;
    wait_until_loaded(cluster)
}

fn wait_until_loaded(cluster: &Cluster) -> Result<(), Failure> {
    let containerd = cluster.first().runtime.connect()?;
    wait_until("containerd has loaded the conf file as it is", || {
        Ok(containerd.loaded_network()?.conflist == Some(written(cluster)?))
    })
}

fn written(cluster: &Cluster) -> Result<Value, Failure> {
    Ok(serde_json::from_str(&fs::read_to_string(path(cluster))?)?)
}

fn path(cluster: &Cluster) -> PathBuf {
    cluster.host().path(CONF_DIR).join(CONFLIST)
}

fn pods_of(mesh: &Mesh, checks: &mut Checks, family: Family) -> Result<(), Failure> {
    let workstation = &mesh.workstation;
    let what = format!("{family} alone");
    let started = start_pods(workstation, checks, &what, VALIDATION, |_, pod| with_dns_server(pod, family))?;
    for ((namespace, name), pod) in PODS.iter().zip(&started) {
        let has_no_other = is_only_one_of(family, pod);
        checks.equal(&format!("{what}: {namespace}/{name} has no other address"), &has_no_other, &true);
    }
    requests(workstation, checks, family)?;
    dns(workstation, checks, family)?;
    checks.redirected(&what, &commands::verify(workstation, &PODS)?, &MESHED_PODS);
    application::delete(workstation, &PODS)
}

/// Returns the pod with a DNS server that it can reach: the kubelet's default has an IPv4 address.
fn with_dns_server(mut pod: Value, family: Family) -> Value {
    if family == Family::V6
        && let Some(spec) = pod.pointer_mut("/spec").and_then(Value::as_object_mut)
    {
        let searches = ["svc.cluster.local", "cluster.local"];
        spec.insert("dnsPolicy".to_owned(), json!("None"));
        // As the kubelet writes it.
        let options = [json!({ "name": "ndots", "value": "5" })];
        let config = json!({ "nameservers": [NODE_ADDRESS_6], "searches": searches, "options": options });
        spec.insert("dnsConfig".to_owned(), config);
    }
    pod
}
