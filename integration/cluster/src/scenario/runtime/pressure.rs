//! A kubelet that removes unused images, and one that evicts pods: Gybe's agent runs on, and the next pod is redirected.
//! Both need the sizes of the node's file systems, which the kubelet measures with `localStorageCapacityIsolation`.

use std::time::Duration;

use gybe_containerd_tests::containerd::HANDLER;
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::super::Releases;
use super::super::lost::{READY, delete, get, pods_on, reports};
use super::class::start_in_its_network;
use super::{BEFORE, SECOND};
use crate::api::{wait_at_most, wait_until};
use crate::checks::Checks;
use crate::cluster::{Cluster, has_condition};
use crate::network::NodeNumber;
use crate::release::Release;

/// A pod that starts without the image that the kubelet has removed.
const AFTER: &str = "runtime-after";
/// More than three times the five minutes between two collections (`ImageGCPeriod`, pkg/kubelet/kubelet.go, v1.36): one
/// fails when a container is removed meanwhile.
const COLLECTION: Duration = Duration::from_secs(960);

/// The agent of a node: its uid, and how often each of its containers was started again.
pub(super) fn agent(cluster: &Cluster, number: NodeNumber) -> Result<Vec<(Value, Vec<Value>)>, Failure> {
    let member = |value: &Value, pointer: &str| value.pointer(pointer).cloned().unwrap_or_default();
    let restarts = |pod: &Value| {
        let containers = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
        let counts = containers.into_iter().flatten().map(|it| member(it, "/restartCount")).collect();
        (member(pod, "/metadata/uid"), counts)
    };
    Ok(pods_on(cluster, "gybe-system", &number.to_string())?.iter().map(restarts).collect())
}

/// Starts a kubelet that removes each image that no pod uses.
pub(super) fn collect_images(
    cluster: &mut Cluster,
    checks: &mut Checks,
    number: NodeNumber,
    releases: &Releases,
) -> Result<(), Failure> {
    checks.equal("the image of another release", &has_image(cluster, number, &releases.next)?, &true);
    cluster.node_mut(number)?.restart_kubelet_with(&json!({
        "localStorageCapacityIsolation": true,
        "imageGCHighThresholdPercent": 1,
        "imageGCLowThresholdPercent": 0,
        "imageMinimumGCAge": "1s",
    }))
}

fn has_image(cluster: &Cluster, number: NodeNumber, release: &Release) -> Result<bool, Failure> {
    let name = format!("docker.io/library/gybe:{}", release.version);
    Ok(cluster.node(number)?.runtime.cri.has_image(&name)?)
}

/// Waits until it has removed the image of another release.
pub(super) fn images_collected(
    cluster: &Cluster,
    checks: &mut Checks,
    number: NodeNumber,
    releases: &Releases,
) -> Result<(), Failure> {
    checks.part("images removed");
    let is_removed = || Ok(!has_image(cluster, number, &releases.next)?);
    let removed = wait_at_most(COLLECTION, "the kubelet removes the image", is_removed);
    checks.holds("the image of another release", removed.is_ok(), &removed, "removed");
    checks.equal("the image of the agent", &has_image(cluster, number, &releases.installed)?, &true);
    start_in_its_network(cluster, checks, number, (AFTER, None))?;
    delete(cluster, AFTER)?;
    releases.next.publish(cluster)
}

/// Starts a kubelet that evicts all pods of the mesh, and then the usual one.
pub(super) fn evict(cluster: &mut Cluster, checks: &mut Checks, number: NodeNumber) -> Result<(), Failure> {
    checks.part("disk pressure");
    let node = format!("/api/v1/nodes/{number}");
    let pressure = |cluster: &Cluster| {
        Ok(cluster.api.get(&node)?.is_some_and(|node| has_condition(&node, "DiskPressure")))
    };
    // 12 kB of the 12 GB are not available. The kubelet ignores 100% (`parseThresholdStatement`, pkg/kubelet/eviction, v1.36).
    cluster.node_mut(number)?.restart_kubelet_with(&json!({
        "localStorageCapacityIsolation": true,
        "evictionHard": { "nodefs.available": "99.9999%" },
    }))?;
    for name in [BEFORE, SECOND] {
        let is_evicted = || Ok(get(cluster, name)?.pointer("/status/reason") == Some(&json!("Evicted")));
        let evicted = wait_until(&format!("{name} is evicted"), is_evicted);
        checks.holds(name, evicted.is_ok(), &evicted, "evicted");
    }
    wait_until("the node has the condition DiskPressure", || pressure(cluster))?;
    reports(cluster, checks, number, READY, 0);
    cluster.node_mut(number)?.restart_kubelet_with(&Value::Null)?;
    wait_until("the node does not have the condition DiskPressure", || Ok(!pressure(cluster)?))?;
    checks.part("no disk pressure");
    for (name, class) in [(BEFORE, None), (SECOND, Some(HANDLER))] {
        delete(cluster, name)?;
        start_in_its_network(cluster, checks, number, (name, class))?;
    }
    reports(cluster, checks, number, READY, 0);
    Ok(())
}
