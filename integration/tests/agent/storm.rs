//! An agent that restarts in a loop: the outcomes of ADDs meanwhile, and the files that remain afterwards.

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

/// Makes an ADD of a meshed pod; asserts that it is redirected completely, or refused with code 11 and unchanged.
/// Returns whether it was refused.
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
    // Copies both programs, before the restarts begin, to where every user can run them.
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
            // Every fifth agent lives for two ADDs. On an error the adding thread has ended; `join` shows its panic.
            if n % 5 == 0 && (added.recv().is_err() || added.recv().is_err()) {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        adding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    println!("{RESTARTS} restarts: {whole} pods redirected, {} refused for now", refused.len());
    assert!(whole > 0 && !refused.is_empty());
    // The kubelet repeats a refused ADD later.
    for pod in &refused {
        assert!(!meshed(&place, pod), "the agent is back");
    }
    let left = fs::read_dir(place.join("run")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut left: Vec<_> = left.map(|name| name.into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["facts.sock", "log.sock"], "nothing piles up");
}
