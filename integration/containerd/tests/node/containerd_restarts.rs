//! containerd is killed and started again while pods start: running pods stay redirected, and so is each pod that the
//! kubelet starts again.

use std::thread;
use std::time::Instant;

use gybe_containerd_tests::{Generation, Node, Sandbox};

use crate::conflist_state::{ConflistState, wait_until_loaded};
use crate::fixture::{Image, assert_no_sandbox_is_left, install, node, wait_for};
use crate::load::{inspect_pod, meshed_pod};

const RUNNING: usize = 5;
const STARTING: usize = 20;
const RESTARTS: usize = 4;

fn delete_all(node: &Node, ids: &[String]) {
    node.cri.stop_concurrently(ids).into_iter().for_each(Result::unwrap);
    ids.iter().for_each(|id| node.cri.remove(id).unwrap());
}

/// Starts all pods at the same time, kills containerd when `some` of them have a link, and starts it again.
fn kill_containerd_while_pods_start(node: Node, pods: &[Sandbox], some: usize) -> Node {
    let kubelet = node.connect().unwrap();
    let links = node.host().pod_links().unwrap().len();
    let killed = thread::scope(|scope| {
        let starting = scope.spawn(|| kubelet.run_concurrently(pods));
        wait_for("links of the pods", || {
            (node.host().pod_links().unwrap().len() >= links + some).then_some(())
        });
        let killed = node.kill_containerd().unwrap();
        // The kubelet lists the sandboxes instead of using these results.
        drop(starting.join().unwrap());
        killed
    });
    killed.restart_containerd().unwrap()
}

#[test]
fn f27_after_each_of_several_containerd_crashes_every_pod_is_redirected_and_can_be_deleted() {
    let mut node = node(Generation::V2);
    let _agent = install(&node, Image::One);
    wait_until_loaded(&node, ConflistState { revision: 0, has_gybe: true });
    let running: Vec<Sandbox> =
        (0..RUNNING).map(|number| meshed_pod(&node, &format!("old-{number}"))).collect();
    let start = Instant::now();
    let running_ids = node.cri.run_all(&running).unwrap();
    for restart in 0..RESTARTS {
        let mut pods: Vec<Sandbox> =
            (0..STARTING).map(|number| meshed_pod(&node, &format!("cart-{restart}-{number}"))).collect();
        node = kill_containerd_while_pods_start(node, &pods, restart * 3 + 1);
        for id in node.cri.list().unwrap().iter().filter(|id| !running_ids.contains(id)) {
            // A plugin of the killed containerd may still run, and hold what the first attempt deletes.
            wait_for("the deletion", || node.cri.delete(id).inspect_err(|why| println!("{why}")).ok());
        }
        pods.iter_mut().for_each(|pod| pod.attempt = 1);
        let ids: Vec<String> = node.cri.run_concurrently(&pods).into_iter().map(Result::unwrap).collect();
        for (pod, id) in pods.iter().zip(&ids).chain(running.iter().zip(&running_ids)) {
            let started = inspect_pod(&node, &node.cri, pod, id, start);
            assert!(started.is_redirected, "{started:?}");
        }
        delete_all(&node, &ids);
    }
    delete_all(&node, &running_ids);
    println!("containerd killed {RESTARTS} times while {STARTING} pods start: all redirected, all deleted");
    assert_no_sandbox_is_left(&node);
}
