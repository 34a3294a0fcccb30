//! The ways to leave: `mode: leave` as docs/INSTALL.md has it, with each command of the documentation before it.

use std::time::{Duration, Instant};

use gybe_bench::report::{Report, Table, cells};
use gybe_integration::documented::{IN_A_CLUSTER, commands, elsewhere};
use gybe_integration::failure::Failure;

use super::{Releases, none};
use crate::agent;
use crate::api::{wait_at_most, wait_until};
use crate::cluster::{Cluster, has_condition};
use crate::network::NODE;
use crate::pods::{Kind, on, pod};
use crate::storm::NAMESPACE;

/// The pages with commands for a cluster, in an order in which all of them work: INSTALL ends with the removal.
const PAGES: [&str; 3] = ["README.md", "docs/TROUBLESHOOTING.md", "docs/INSTALL.md"];
/// The pod of the mesh that docs/TROUBLESHOOTING.md names: `shop/cart-0`.
const MESHED: &str = "cart-0";
/// How long what is left after the last command may stay.
const GRACE: Duration = Duration::from_secs(30);

pub(super) fn run(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    releases.installed.install(cluster)?;
    let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let path = format!("{pods}/{MESHED}");
    cluster.api.create(&pods, &on(NODE, pod(Kind::Meshed, NAMESPACE, MESHED, MESHED)))?;
    wait_until("the pod is ready", || {
        Ok(cluster.api.get(&path)?.is_some_and(|pod| has_condition(&pod, "Ready")))
    })?;
    let agent = agent::first_pod(cluster)?;
    let mut rows = Vec::new();
    let mut failed = 0;
    for (page, command) in documented(cluster, releases)? {
        // The programs stay while a pod's cached result names the plugin: an operator restarts such pods before.
        if command.starts_with("gybe leave") {
            cluster.api.delete(&path)?;
            wait_until("the pod is deleted", || Ok(cluster.api.get(&path)?.is_none()))?;
        }
        // POD is the agent's in the pages, NAME a pod of the mesh.
        let line = command.replace("POD", &agent).replace("NODE", NODE);
        let line = line.replace(" NAME ", &format!(" -n {NAMESPACE} {MESHED} "));
        let start = Instant::now();
        let script =
            format!("cd {} && export PATH=\"$PWD/dist:$PATH\" && {line}", releases.installed.clone_path());
        let outcome = match cluster.run("timeout", &["600", "sh", "-c", &script]) {
            Ok(_) => "0".to_owned(),
            Err(error) => {
                failed += 1;
                format!("{error:?}").lines().last().unwrap_or_default().to_owned()
            }
        };
        rows.push(vec![
            page,
            format!("`{command}`"),
            format!("{:.1}", start.elapsed().as_secs_f64()),
            outcome,
        ]);
    }
    let gone = wait_at_most(GRACE, "gone", || Ok(agent::installed(cluster)?.is_empty()));
    let stays = if gone.is_ok() { Vec::new() } else { agent::installed(cluster)? };
    Ok(Report {
        tables: vec![Table {
            title: "The documented commands of a cluster; the last of them remove Gybe".into(),
            head: cells(["Page", "Command", "Seconds", "Exit code"]),
            rows,
        }],
        targets: vec![
            none("documented commands that fail", failed),
            none(&format!("left on the node after the removal: {}", stays.join(", ")), stays.len()),
        ],
    })
}

/// The commands that need a cluster, with their pages.
fn documented(cluster: &Cluster, releases: &Releases) -> Result<Vec<(String, String)>, Failure> {
    let clone = cluster.host().path(releases.installed.clone_path());
    let mut found = Vec::new();
    for page in PAGES {
        for command in commands(&std::fs::read_to_string(clone.join(page))?) {
            if elsewhere(&command) == Some(IN_A_CLUSTER) {
                found.push((page.to_owned(), command));
            }
        }
    }
    Ok(found)
}
