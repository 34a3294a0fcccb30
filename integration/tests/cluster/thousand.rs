//! So many ADDs while something is wrong, and how many of them fail, per kind of pod: a thousand by
//! `GYBE_ADDS`, fewer without it.

use crate::ground::{Agent, Ground, Outcome, PATIENCE, STATUS};
use gybe_api_server::{Network, Request, Validity};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A node has some hundred pods at most; sandboxes are made again and again.
const PODS: usize = 100;

/// What is wrong, and how many ADDs of each kind failed.
struct Row {
    wrong: &'static str,
    unmeshed: Vec<Outcome>,
    known: Vec<Outcome>,
    fresh: Vec<Outcome>,
}

fn adds() -> usize {
    std::env::var("GYBE_ADDS").ok().and_then(|adds| adds.parse().ok()).unwrap_or(20)
}

/// A node whose pods were known when all was well.
fn scene(test: &str) -> (Ground, Agent) {
    let ground = Ground::new(test);
    (0..PODS).for_each(|i| ground.put(&format!("cart-{i}")));
    let agent = ground.agent();
    let open = |request: &Request| request.is_watch() && request.code == Some(200);
    assert!(ground.server.requests_become(PATIENCE, |requests| requests.iter().any(open)));
    (ground, agent)
}

/// As many ADDs of pods outside the mesh, of meshed ones that were there before, and a few of such as
/// come only now: the kubelet has those from the same API server.
fn tried(wrong: &'static str, ground: &Ground, fresh: usize) -> Row {
    let failed = |outcome: &Outcome| *outcome != Outcome::Passed;
    let unmeshed = (0..adds()).map(|_| ground.add("batch-0", &json!({}), None)).filter(failed).collect();
    let meshed = json!({ STATUS: "{}" });
    let known = (0..adds()).map(|i| ground.add(&format!("cart-{}", i % PODS), &meshed, None));
    let known = known.filter(failed).collect();
    let fresh = (0..fresh).map(|i| {
        let name = format!("fresh-{}-{i}", ground.server.version());
        ground.put(&name);
        ground.add(&name, &meshed, None)
    });
    let fresh = fresh.filter(failed).collect();
    let row = Row { wrong, unmeshed, known, fresh };
    let [unmeshed, known, fresh] = [&row.unmeshed, &row.known, &row.fresh].map(Vec::len);
    println!("{wrong}: of {} ADDs failed: unmeshed {unmeshed}, meshed {known}; new ones {fresh}", adds());
    row
}

impl Row {
    fn fails_nobody_that_was_known(&self) {
        assert!(self.unmeshed.is_empty(), "{}: {:?}", self.wrong, self.unmeshed);
        assert!(self.known.is_empty(), "{}: {:?}", self.wrong, self.known);
    }

    fn fails_nobody(&self) {
        self.fails_nobody_that_was_known();
        assert!(self.fresh.is_empty(), "{}: {:?}", self.wrong, self.fresh);
    }
}

/// Each says that it is worth another try, and who did not answer.
fn told(outcomes: &[Outcome], words: &str) {
    for outcome in outcomes {
        let Outcome::Refused(code, why) = outcome else { continue };
        assert!(
            *code == 11 && why.starts_with("gybe-cni cmdAdd GYBE-ADD-0") && why.contains(words),
            "{outcome:?}"
        );
    }
}

#[test]
fn f01_with_the_api_black_holed_only_what_nobody_can_know_is_refused() {
    let (ground, _agent) = scene("hole");
    tried("nothing wrong", &ground, 5).fails_nobody();
    ground.server.network(Network::Unreachable).unwrap();
    let row = tried("API black-holed", &ground, 3);
    row.fails_nobody_that_was_known();
    assert_eq!(row.fresh.len(), 3);
    told(&row.fresh, "the node agent at");
}

#[test]
fn f02_with_every_token_revoked_nobody_fails() {
    let (ground, _agent) = scene("revoked");
    ground.server.tokens().revoke_all();
    tried("tokens revoked", &ground, 5).fails_nobody();
}

#[test]
fn f03_with_a_token_two_days_off_only_what_nobody_can_know_is_refused() {
    for (wrong, validity) in [
        ("token valid in two days", Validity::InTwoDays),
        ("token valid until two days ago", Validity::UntilTwoDaysAgo),
    ] {
        let (ground, agent) = scene("token");
        ground.token(validity);
        ground.server.cut_watches();
        agent.tells("gybe node: pods are not watched; those known are answered");
        let row = tried(wrong, &ground, 3);
        row.fails_nobody_that_was_known();
        assert_eq!(row.fresh.len(), 3);
        told(&row.fresh, "401");
    }
}

#[test]
fn f03_with_a_certificate_two_days_off_only_what_nobody_can_know_is_refused() {
    let (ground, agent) = scene("certificate");
    ground.server.present(Validity::InTwoDays).unwrap();
    ground.server.network(Network::Refusing).unwrap();
    ground.server.network(Network::Open).unwrap();
    agent.tells("gybe node: pods are not watched; those known are answered");
    let row = tried("certificate valid in two days", &ground, 3);
    row.fails_nobody_that_was_known();
    assert_eq!(row.fresh.len(), 3);
    told(&row.fresh, "the node agent at");
}

#[test]
fn f14_without_its_agent_every_meshed_pod_is_refused_for_now_and_no_other() {
    let (ground, agent) = scene("stopped");
    drop(agent);
    let row = tried("agent stopped", &ground, 0);
    assert!(row.unmeshed.is_empty(), "{:?}", row.unmeshed);
    assert_eq!(row.known.len(), adds());
    told(&row.known, "GYBE-ADD-032: the node agent at");
}

#[test]
fn f14_an_agent_that_restarts_in_a_loop_fails_no_unmeshed_pod_and_meshed_ones_only_for_now() {
    let (ground, agent) = scene("loop");
    drop(agent);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let agent = ground.agent_begun();
                agent.tells("gybe node: serving");
                thread::sleep(Duration::from_millis(300));
            }
        });
        let row = tried("agent restarting every 300 ms", &ground, 0);
        stop.store(true, Ordering::SeqCst);
        assert!(row.unmeshed.is_empty(), "{:?}", row.unmeshed);
        told(&row.known, "the node agent at");
    });
}
