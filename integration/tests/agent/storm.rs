//! An agent that dies and comes back without end: what an ADD meets then, and what is left when it is over.

use crate::ground::{Agent, add, add_as, inspected, pod};
use gybe_installer::testnet::namespace::Namespace;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

const RESTARTS: usize = 100;

/// Whole, or refused for now and untouched; says whether it was refused.
fn meshed(place: &Path, pod: &Namespace) -> bool {
    let ran = add_as(&["env", "-i"], place, pod, None);
    match ran.code {
        Some(0) => assert!(inspected(pod).contains("outbound-to-proxy"), "{}", inspected(pod)),
        _ => {
            let answer: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"));
            assert_eq!((ran.code, answer["code"].as_u64()), (Some(1), Some(11)), "{ran:?}");
            assert!(inspected(pod).starts_with("no rules of Gybe"), "{}", inspected(pod));
        }
    }
    ran.code != Some(0)
}

fn unmeshed(place: &Path, pod: &Namespace) {
    let ran = add_as(&["env", "-i"], place, pod, Some(json!({ "example.com/x": "y" })));
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn f27_an_agent_that_restarts_without_end_costs_a_refusal_for_now_and_nothing_else() {
    let (mut agent, over) = (Agent::start("storm"), AtomicBool::new(false));
    // Before the storm, so that both programs are where everybody can run them.
    assert_eq!(add(&agent, &pod(), None).code, Some(0));
    let (place, (tell, added)) = (agent.place.clone(), mpsc::channel());
    let (refused, whole) = thread::scope(|scope| {
        let adding = scope.spawn(|| {
            let (mut refused, mut whole, tell) = (Vec::new(), 0, tell);
            while !over.load(Ordering::Relaxed) {
                let pod = pod();
                unmeshed(&place, &pod);
                if meshed(&place, &pod) {
                    refused.push(pod);
                } else {
                    whole += 1;
                }
                let _ = tell.send(());
            }
            (refused, whole)
        });
        for n in 0..RESTARTS {
            agent.start_again(if n % 2 == 0 { Signal::SIGKILL } else { Signal::SIGTERM });
            // Some live for as long as a pod needs, most do not. Nobody adds any more: the thread says why.
            if n % 5 == 0 && (added.recv().is_err() || added.recv().is_err()) {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        adding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    println!("{RESTARTS} restarts: {whole} pods redirected, {} refused for now", refused.len());
    assert!(whole > 0 && !refused.is_empty());
    // As the kubelet does: the same again, later.
    for pod in &refused {
        assert!(!meshed(&place, pod), "the agent is back");
    }
    let left = fs::read_dir(place.join("run")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut left: Vec<_> = left.map(|name| name.into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["facts.sock", "log.sock"], "nothing piles up");
}
