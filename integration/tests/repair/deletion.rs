//! `repair: delete`: no healthy pod is deleted, whatever happens between the finding and the request.

use crate::cluster::{Cluster, redirect};
use crate::node::{Pod, WITHOUT_GYBE};
use gybe_api_server::{Fault, FaultKind, Request, Verb};
use gybe_integration::namespace::with_own_mounts;
use gybe_test_support::{wait_for_at_most, wait_until};
use serde_json::json;
use std::fs;
use std::time::Duration;

const DELETE: [(&str, &str); 2] = [("repair", "delete"), ("exclude_namespaces", "kube-system")];

/// A healthy pod that is deleted, is deleted within a second of its finding.
const LONG: Duration = Duration::from_secs(8);

fn is_deleted(cluster: &Cluster, pod: &Pod) -> bool {
    wait_for_at_most(LONG, || (!cluster.has(pod)).then_some(())).is_some()
}

#[test]
fn while_the_entry_cannot_be_written_no_pod_is_deleted_by_settings_that_are_not_in_force() {
    with_own_mounts(|| {
        let cluster = Cluster::new("full-disk");
        cluster.set(&[("repair", "off")]);
        let (broken, excluded) = (cluster.broken("shop", 1), cluster.broken("kept", 2));
        let _processes = cluster.start();
        cluster.fill_disk();
        cluster.set(&[("repair", "delete"), ("exclude_namespaces", "kube-system,kept")]);
        assert!(!is_deleted(&cluster, &excluded), "a pod of an excluded namespace was deleted");
        assert!(cluster.has(&broken), "settings that are not in force were followed");
        cluster.free_disk();
        wait_until("the broken pod is deleted", || !cluster.has(&broken));
        assert!(cluster.has(&excluded));
    });
}

#[test]
fn a_pod_that_was_redirected_after_the_finding_is_not_deleted() {
    with_own_mounts(|| {
        let cluster = Cluster::new("late");
        cluster.set(&[("repair", "off")]);
        let _processes = cluster.start();
        let pods: Vec<Pod> = (1..=6).map(|number| cluster.broken("shop", number)).collect();
        // The agent reads each pod, for 2.5 s, before it has the pod judged again.
        cluster.server.add_fault(Fault::always(FaultKind::Slow(Duration::from_millis(2500))).at(Verb::List));
        cluster.set(&DELETE);
        let is_read =
            |request: &&Request| request.is_list_of_pods() && request.query.contains("metadata.name");
        let read = || cluster.server.requests().iter().filter(is_read).count();
        wait_until("the first pod is read", || read() > 0);
        pods.iter().for_each(redirect);
        // One that is read before it is redirected may be deleted.
        let redirected: Vec<&Pod> = pods.iter().filter(|pod| cluster.has(pod)).collect();
        assert!(redirected.len() > 1);
        wait_until("each pod is read", || read() >= pods.len());
        let deleted = wait_for_at_most(LONG, || redirected.iter().any(|pod| !cluster.has(pod)).then_some(()));
        assert!(deleted.is_none(), "redirected pods were deleted: {:?} are left", cluster.names());
    });
}

#[test]
fn a_pod_with_a_second_sandbox_that_is_redirected_is_not_deleted() {
    with_own_mounts(|| {
        let cluster = Cluster::new("two-sandboxes");
        cluster.set(&DELETE);
        let old = cluster.broken("shop", 1);
        let mut new = Pod::new(1);
        new.number = 1;
        redirect(&new);
        cluster.cached("shop", &new, "cart-1-again", |_| ());
        std::os::unix::fs::symlink(new.netns.path(), cluster.node.root.join("run/netns/cart-1-again"))
            .unwrap();
        cluster.node.process(5001, &new.cgroup(), &new.netns);
        let _processes = cluster.start();
        assert!(!is_deleted(&cluster, &old));
        let control = cluster.broken("shop", 2);
        wait_until("the control is deleted", || !cluster.has(&control));
    });
}

#[test]
fn labels_and_annotations_that_changed_after_the_add_delete_no_pod() {
    with_own_mounts(|| {
        let cluster = Cluster::new("changed-facts");
        cluster.set(&DELETE);
        let pod = |number, made: &dyn Fn(&mut serde_json::Value), now: &dyn Fn(&mut serde_json::Value)| {
            let pod = Pod::new(number);
            cluster.put("shop", &pod, now);
            cluster.cached("shop", &pod, &pod.name(), made);
            cluster.node.start(&pod);
            pod
        };
        let mode_none = |pod: &mut serde_json::Value| {
            pod["metadata"]["annotations"]["sidecar.istio.io/interceptionMode"] = json!("NONE");
        };
        let not_injected = |pod: &mut serde_json::Value| {
            drop(pod["metadata"]["annotations"].as_object_mut().unwrap().remove("sidecar.istio.io/status"));
        };
        let relabelled = |pod: &mut serde_json::Value| {
            pod["metadata"]["labels"]["sidecar.istio.io/inject"] = json!("true");
            pod["metadata"]["managedFields"] = json!([{
                "manager": "kubectl-label", "operation": "Update", "time": "2026-01-02T03:14:05Z",
                "fieldsV1": { "f:metadata": { "f:labels": { "f:sidecar.istio.io/inject": {} } } },
            }]);
        };
        let opted_out = |pod: &mut serde_json::Value| {
            pod["metadata"]["annotations"]["sidecar.istio.io/inject"] = json!("false");
        };
        let healthy = [
            pod(1, &mode_none, &|_| ()),
            pod(2, &not_injected, &|_| ()),
            pod(3, &|_| (), &relabelled),
            pod(4, &opted_out, &|_| ()),
        ];
        // The runtime passed no annotations, so those of the ADD are not known.
        let unknown =
            pod(6, &|pod| drop(pod["metadata"].as_object_mut().unwrap().remove("annotations")), &|_| ());
        let control = pod(5, &|_| (), &|_| ());
        let _processes = cluster.start();
        wait_until("the control is deleted", || !cluster.has(&control));
        assert!(!is_deleted(&cluster, &healthy[0]));
        assert!(healthy.iter().chain([&unknown]).all(|pod| cluster.has(pod)), "{:?}", cluster.names());
    });
}

#[test]
fn a_pod_that_its_add_left_alone_is_not_deleted_when_its_namespace_is_included_again() {
    with_own_mounts(|| {
        let cluster = Cluster::new("included-again");
        cluster.set(&DELETE);
        // {"plugins":[{"type":"bridge"},{"type":"gybe-cni","exclude_namespaces":["shop"]}]}
        let excluding = "eyJwbHVnaW5zIjpbeyJ0eXBlIjoiYnJpZGdlIn0seyJ0eXBlIjoiZ3liZS1jbmkiLCJleGNsdWRlX25hbWVzcGFjZXMiOlsic2hvcCJdfV19";
        let excluded = cluster.broken("shop", 1);
        let result = cluster.node.root.join(format!("var/lib/cni/results/pods-{}-eth0", excluded.name()));
        let cached = fs::read_to_string(&result).unwrap();
        fs::write(&result, cached.replace(WITHOUT_GYBE, excluding)).unwrap();
        let control = cluster.broken("shop", 2);
        let _processes = cluster.start();
        wait_until("the control is deleted", || !cluster.has(&control));
        assert!(!is_deleted(&cluster, &excluded));
    });
}

#[test]
fn ten_deletions_a_minute_are_requested_however_often_the_agent_restarts() {
    with_own_mounts(|| {
        let cluster = Cluster::new("budget");
        cluster.set(&DELETE);
        let pods: Vec<Pod> = (1..=30).map(|number| cluster.broken("shop", number)).collect();
        for _ in 0..3 {
            let _processes = cluster.start();
            let _ = wait_for_at_most(LONG, || (cluster.deletions() > 10).then_some(()));
        }
        assert_eq!((cluster.deletions(), cluster.names().len()), (10, pods.len() - 10));
    });
}
