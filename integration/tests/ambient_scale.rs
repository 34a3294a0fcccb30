//! Many ambient pods, at once and one after the other, through the agent. A process of its own: other tests would wait for
//! the processor.
#![cfg(test)]

#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "ambient/fixture.rs"]
mod fixture;

use fixture::{Node, Pod, observe};
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::namespace::allow_many_sockets;
use gybe_plugin::facts::AgentFault;
use gybe_plugin::facts::ambient::{HandOverBy, HandOverCause, LeaveStep};
use gybe_test_support::{wait_for_at_most, wait_until};
use serde_json::json;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// Locked by the test that runs.
static RUNS: Mutex<()> = Mutex::new(());

/// Pods that start at once, as after a boot.
const AT_ONCE: usize = 500;
/// How long all of them may take, with repeated ADDs.
const START: Duration = Duration::from_secs(300);

/// The namespaces of the pods that come and go: as many as the agent has threads for hand-overs.
const NAMESPACES: usize = 64;
/// What the agent's memory may grow by, in KiB.
const GROWTH: u64 = 1024;
/// The agent's connections to the API server may be one more or less.
const CONNECTIONS: usize = 2;

#[test]
fn five_hundred_pods_that_start_at_once_are_all_enrolled_and_refused_only_for_the_deadline() {
    let _runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    allow_many_sockets();
    let node = Node::start("ambient-at-once");
    let ztunnel = node.ztunnel(&[]);
    let pod = |number| (Pod::new("shop", &format!("p{number}")).put(&node), Namespace::new().unwrap());
    let pods: Vec<(Pod, Namespace)> = (0..AT_ONCE).map(pod).collect();
    let started = Instant::now();
    let add = |pod: &Pod, netns: &Namespace| {
        let mut call = node.prepared("ADD", pod, netns);
        call.stdin["facts"]["deadline_ms"] = json!(60_000);
        // A thread that writes to a pipe may get no processor for the plugin's 5 s beside a thousand others.
        let stdin = node.directory.path().join(format!("{}.stdin", pod.uid));
        fs::write(&stdin, call.stdin.to_string()).unwrap();
        let from_file = format!("<{}", stdin.display());
        let mut adds = 0;
        let added = wait_for_at_most(START, || {
            let ran = call.run(&node.directory, &from_file).unwrap();
            adds += 1;
            // The kubelet adds it again. The connection of a ztunnel that is late was closed.
            let is_late = ran.out.contains("GYBE-ADD-036") && ran.out.contains("in time")
                || ran.out.contains("GYBE-ADD-034") && node.agent().metric("gybe_ztunnel_late_total") > 0.0;
            assert!(ran.code == Some(0) || is_late, "{ran:?}");
            (ran.code == Some(0)).then_some(())
        });
        assert!(added.is_some(), "{}", pod.reference());
        adds - 1
    };
    let repeated: usize = thread::scope(|scope| {
        let add = &add;
        let adding: Vec<_> = pods.iter().map(|(pod, netns)| scope.spawn(move || add(pod, netns))).collect();
        adding.into_iter().map(|adding| adding.join().unwrap()).sum()
    });
    println!("{AT_ONCE} ADDs at once: {:?}, {repeated} repeated", started.elapsed());
    node.wait_for_pods(500.0);
    assert_eq!(ztunnel.observed().proxies.len(), AT_ONCE);
    // Without the processor ztunnel may have been late, and have connected again.
    let metric = |name| node.agent().metric(name);
    wait_until("ztunnel has acknowledged all", || metric("gybe_ambient_pods_pending") < 1.0);
    assert!(metric("gybe_ztunnel_refusals_total") < 1.0);
    assert!(pods.iter().all(|(_, netns)| node.holds(netns)));
}

/// `make -C integration ambient-growth PODS=10000` runs it with more pods.
#[test]
fn pods_that_come_and_go_leave_the_agent_no_open_file_and_no_memory() {
    let pods = env::var("GYBE_PODS").ok().filter(|pods| !pods.is_empty());
    let part = pods.map_or(1_000, |pods| pods.parse::<usize>().unwrap()) / 10;
    let _runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    allow_many_sockets();
    let node = Node::start("ambient-growth");
    let namespaces: Vec<_> = (0..NAMESPACES).map(|_| Namespace::new().unwrap()).collect();
    let waiting = |slot| Pod::new("shop", &format!("w{slot}")).put(&node);
    let waiting: Vec<_> = (0..NAMESPACES).map(waiting).collect();
    // Each thread of the agent has its memory from then on.
    let ztunnel = thread::scope(|scope| {
        for (pod, netns) in waiting.iter().zip(&namespaces) {
            scope.spawn(|| node.hand_over(pod, netns, HandOverBy::Repair).unwrap());
        }
        // They wait for ztunnel.
        node.wait_for_pods(64.0);
        node.ztunnel(&[])
    });
    for pod in waiting {
        node.leave(&pod, LeaveStep::Left).unwrap();
        pod.delete(&node);
    }
    let come_and_go = |first: usize| {
        thread::scope(|scope| {
            for (slot, netns) in namespaces.iter().enumerate() {
                let node = &node;
                scope.spawn(move || {
                    for number in (first..first + part).skip(slot).step_by(NAMESPACES) {
                        let pod = Pod::new("shop", &format!("p{number}")).put(node);
                        wait_until("the pod is handed over", || {
                            match node.hand_over(&pod, netns, HandOverBy::Repair) {
                                Ok(()) => true,
                                // Without the processor.
                                Err(AgentFault::Timeout) => false,
                                Err(AgentFault::HandOver(fault))
                                    if fault.cause == HandOverCause::NoAnswer =>
                                {
                                    false
                                }
                                Err(fault) => panic!("{}: {fault}", pod.reference()),
                            }
                        });
                        node.leave(&pod, LeaveStep::Left).unwrap();
                        pod.delete(node);
                    }
                });
            }
        });
        // The ends are sent after the additions.
        observe(&ztunnel, "ztunnel has no pods", |observed| observed.proxies.is_empty());
        node.wait_for_pods(0.0);
        (node.agent().memory(), node.agent().open_files())
    };
    let started = Instant::now();
    let measured: Vec<_> = (0..10).map(|number| come_and_go(number * part)).collect();
    println!("{} pods in {:?}: KiB and open files {measured:?}", 10 * part, started.elapsed());
    // After a fifth of the pods every buffer has its size.
    let (memory, files) = measured[1];
    assert!(measured[2..].iter().all(|(now, _)| *now <= memory + GROWTH), "{measured:?}");
    wait_until("all files are closed", || node.agent().open_files() <= files + CONNECTIONS);
}
