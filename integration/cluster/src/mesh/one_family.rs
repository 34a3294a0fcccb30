//! Pods with addresses of one family, on a node whose primary plugin gives out no others.

use std::fs;
use std::path::PathBuf;

use gybe_bench::report::Report;
use gybe_containerd_tests::containerd::CONF_DIR;
use gybe_containerd_tests::node::CONFLIST;
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::Mesh;
use super::application::{
    self, MESHED, PLAIN, VALIDATION, create, exit_code_of_first_run, pod, wait_until_ready,
};
use super::checks::Checks;
use super::commands;
use super::family::Family;
use super::modes::{CLIENT, DNS_CLIENT, SERVER, TPROXY, dns, requests, with_dns_capture, with_tproxy};
use super::node_files::NodeFiles;
use crate::api::wait_until;
use crate::cluster::Cluster;
use crate::network::NODE_ADDRESS_6;

pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let cluster = &mesh.cluster;
    let mut checks = Checks::default();
    mesh.ensure_gybe()?;
    let files = NodeFiles::read(cluster)?;
    let outcome = [Family::Ipv4, Family::Ipv6].into_iter().try_for_each(|family| {
        give_out_only(cluster, family)?;
        pods_of(mesh, &mut checks, family)
    });
    files.restore_conf_files(cluster)?;
    wait_until_loaded(cluster)?;
    outcome.map(|()| checks.report("Pods with addresses of one family"))
}

/// Changes the primary plugin's configuration, and waits until containerd has loaded it.
fn give_out_only(cluster: &Cluster, family: Family) -> Result<(), Failure> {
    let mut conflist = written(cluster)?;
    let ranges = match family {
        Family::Ipv4 => json!([[{ "subnet": "10.88.0.0/16" }]]),
        Family::Ipv6 => json!([[{ "subnet": "fd00:88::/64" }]]),
    };
    let changed = conflist.pointer_mut("/plugins/0/ipam/ranges").map(|value| *value = ranges);
    changed.ok_or_else(|| Failure::new(format!("the primary plugin of {CONFLIST} has no ranges")))?;
    fs::write(path(cluster), format!("{conflist:#}\n"))?;
    wait_until_loaded(cluster)
}

fn wait_until_loaded(cluster: &Cluster) -> Result<(), Failure> {
    let containerd = cluster.node.connect()?;
    wait_until("containerd has loaded the conf file as it is", || {
        Ok(containerd.loaded_network()?.conflist == Some(written(cluster)?))
    })
}

fn written(cluster: &Cluster) -> Result<Value, Failure> {
    Ok(serde_json::from_str(&fs::read_to_string(path(cluster))?)?)
}

fn path(cluster: &Cluster) -> PathBuf {
    cluster.node.host().path(CONF_DIR).join(CONFLIST)
}

fn pods_of(mesh: &Mesh, checks: &mut Checks, family: Family) -> Result<(), Failure> {
    let workstation = &mesh.workstation;
    let meshed = [pod(SERVER), pod(CLIENT), with_tproxy(pod(TPROXY)), with_dns_capture(pod(DNS_CLIENT))];
    for pod in meshed {
        create(workstation, MESHED, &with_dns_server(pod, family))?;
    }
    for name in [SERVER, CLIENT] {
        create(workstation, PLAIN, &with_dns_server(pod(name), family))?;
    }
    let meshed = [SERVER, CLIENT, TPROXY, DNS_CLIENT];
    let all: Vec<_> =
        meshed.map(|name| (MESHED, name)).into_iter().chain([(PLAIN, SERVER), (PLAIN, CLIENT)]).collect();
    for (namespace, name) in &all {
        let pod = wait_until_ready(workstation, (namespace, name))?;
        let what = format!("{namespace}/{name} has addresses of {family} alone");
        checks.equal(&what, &family.is_only_one_of(&pod), &true);
        if *namespace == MESHED {
            let what = format!("exit code of {name}'s istio-validation, {family}");
            checks.equal(&what, &exit_code_of_first_run(&pod, VALIDATION), &Some(0));
        }
    }
    requests(workstation, checks, family)?;
    dns(workstation, checks, family)?;
    checks.redirected(&format!("{family} alone"), &commands::verify(workstation, &all)?, &meshed);
    application::delete(workstation, &all)
}

/// Returns the pod with a DNS server that it can reach: the kubelet's default has an IPv4 address.
fn with_dns_server(mut pod: Value, family: Family) -> Value {
    if family == Family::Ipv6
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
