//! An agent that restarts in a loop: every ADD meanwhile waits and succeeds, and no files pile up.

use crate::ground::{Agent, add, add_as, inspected, pod};
use gybe_installer::testnet::namespace::Namespace;
use nix::sys::signal::Signal;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

const RESTARTS: usize = 100;

fn meshed(place: &Path, pod: &Namespace) {
    let ran = add_as(&["env", "-i"], place, pod, None);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(inspected(pod).contains("outbound-to-proxy"), "{}", inspected(pod));
}

fn unmeshed(place: &Path, pod: &Namespace) {
    let ran = add_as(&["env", "-i"], place, pod, Some(json!({ "example.com/x": "y" })));
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn f27_while_an_agent_restarts_without_end_every_add_succeeds() {
    let (mut agent, over) = (Agent::start("storm"), AtomicBool::new(false));
    // Copies both programs, before the restarts begin, to where every user can run them.
    assert_eq!(add(&agent, &pod(), None).code, Some(0));
    let (place, (tell, added)) = (agent.place.clone(), mpsc::channel());
    let redirected = thread::scope(|scope| {
        let adding = scope.spawn(|| {
            let (mut redirected, tell) = (0, tell);
            while !over.load(Ordering::Relaxed) {
                let pod = pod();
                unmeshed(&place, &pod);
                meshed(&place, &pod);
                redirected += 1;
                let _ = tell.send(());
            }
            redirected
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
    println!("{RESTARTS} restarts: {redirected} pods redirected");
    assert!(redirected >= RESTARTS / 5, "{redirected}");
    let left = fs::read_dir(place.join("run")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut left: Vec<_> = left.map(|name| name.into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["facts.sock", "log.sock"], "nothing piles up");
}
