//! A ztunnel that refuses, is slow, hung or killed, answers twice, or connects in a loop.

use crate::fixture::{
    Server, faulty, listening, namespaces, observe, open, pod, ready, socket, wait_until_nothing_listens,
    ztunnel,
};
use gybe_installer::agent::ztunnel::{AddError, HandOver};
use gybe_integration::programs::path_of_ours;
use gybe_integration::ztunnel::Fault;
use gybe_plugin::facts::ambient::HandOverBy;
use gybe_test_support::{PATIENCE, TestDir, wait_until};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A timeout of the server that a test waits for, and that an answer without a fault does not reach.
const SHORT: Duration = Duration::from_secs(2);

/// For how long after an acknowledgement the agent refuses to have a proxy started again.
const RETRY: Duration = Duration::from_secs(5);

#[test]
fn a_refused_pod_is_withdrawn_with_the_reason_and_may_come_again() {
    let directory = TestDir::new("zds-refused");
    let (server, [a]) = (Server::start(&directory), namespaces());
    let ztunnel = faulty(&directory, Fault { refuse: Some("no room".to_owned()), ..Fault::default() });
    ready(&ztunnel);
    match server.add("a", &a) {
        Err(AddError::Refused(why)) => assert_eq!(why, "failure to start proxy : no room"),
        other => panic!("{other:?}"),
    }
    assert_eq!((server.pods.status().pods, server.pods.status().counts.refused), (0, 1));
    let observed = observe(&ztunnel, "the pod is forgotten", |observed| observed.requests.len() == 3);
    assert_eq!(observed.requests, ["snapshot-sent", "add a", "del a"]);
    observe(&ztunnel, "nothing is pending", |observed| observed.is_ready && observed.pending.is_empty());
    let (_, why) = server.pods.status().failing.unwrap();
    assert!(why.contains("failure to start proxy : no room"), "{why}");
    ztunnel.set_fault(Fault::default());
    server.add("a", &a).unwrap();
    assert_eq!(server.pods.status().failing, None);
    assert_eq!(listening(&a).len(), 4);
    assert_eq!(ztunnel.observed().connections, 1, "a refusal leaves the connection open");
}

#[test]
fn a_late_answer_closes_the_connection_and_is_never_the_next_requests() {
    let directory = TestDir::new("zds-late");
    let (server, [a, b]) = (Server::with_timeout(&directory, SHORT), namespaces());
    let ztunnel = ztunnel(&directory);
    ready(&ztunnel);
    // Its refusal of a comes when b is added.
    let refuse = Some("not a".to_owned());
    ztunnel.set_fault(Fault { answer_after: 2 * SHORT, refuse, ..Fault::default() });
    let refused = server.add_within("a", &a, SHORT / 2).unwrap_err();
    assert!(matches!(refused, AddError::NoAnswer), "{refused}");
    wait_until("the connection is closed", || server.pods.status().counts.late == 1);
    ztunnel.set_fault(Fault::default());
    server.add("b", &b).unwrap();
    let observed = ready(&ztunnel);
    assert!(observed.proxies.contains("b") && !observed.proxies.contains("a"), "{observed:?}");
    assert_eq!((observed.connections, observed.exit), (2, None));
    assert_eq!([listening(&a).len(), listening(&b).len()], [0, 4]);
}

#[test]
fn a_slow_ztunnel_within_the_timeout_stays_connected() {
    let directory = TestDir::new("zds-slow");
    let (server, [a, b]) = (Server::start(&directory), namespaces());
    let ztunnel = faulty(&directory, Fault { answer_after: SHORT, ..Fault::default() });
    // The first caller does not wait for the answer, which nevertheless is that of its request.
    let refused = server.add_within("a", &a, SHORT / 2).unwrap_err();
    assert!(matches!(refused, AddError::NoAnswer | AddError::NotConnected), "{refused}");
    server.add("b", &b).unwrap();
    assert_eq!(ztunnel.observed().connections, 1);
    let status = server.pods.status();
    assert_eq!((status.counts.late, status.counts.connections, status.pods), (0, 1, 1));
    observe(&ztunnel, "a is not served", |observed| !observed.proxies.contains("a"));
}

#[test]
fn a_hung_ztunnel_is_disconnected_and_another_one_takes_its_pods() {
    let directory = TestDir::new("zds-hung");
    let (server, [a]) = (Server::with_timeout(&directory, SHORT), namespaces());
    let hung = faulty(&directory, Fault { hung: true, ..Fault::default() });
    wait_until("it has connected", || server.pods.status().counts.connections == 1);
    std::thread::scope(|scope| {
        let added = scope.spawn(|| server.add("a", &a));
        wait_until("it is disconnected", || server.pods.status().counts.late == 1);
        let works = ztunnel(&directory);
        added.join().unwrap().unwrap();
        assert!(works.observed().proxies.contains("a"));
    });
    drop(hung);
}

#[test]
fn two_answers_to_one_request_close_the_connection() {
    let directory = TestDir::new("zds-twice");
    let (server, [a]) = (Server::start(&directory), namespaces());
    let ztunnel = faulty(&directory, Fault { twice: true, ..Fault::default() });
    observe(&ztunnel, "it has connected again", |observed| observed.connections > 1);
    ztunnel.set_fault(Fault::default());
    server.add("a", &a).unwrap();
    assert_eq!(server.pods.status().counts.late, 0);
}

#[test]
fn a_killed_ztunnel_is_noticed_at_once() {
    let directory = TestDir::new("zds-killed");
    let (server, [a, b]) = (Server::start(&directory), namespaces());
    let mut process = Command::new(path_of_ours("gybe-ztunnel").unwrap());
    let mut process = process.arg(socket(&directory)).stdout(Stdio::null()).spawn().unwrap();
    wait_until("it has its snapshot", || server.pods.status().is_snapshot_acknowledged);
    server.add("a", &a).unwrap();
    assert_eq!(listening(&a).len(), 4);
    process.kill().unwrap();
    process.wait().unwrap();
    let before = Instant::now();
    wait_until("it is gone", || server.pods.status().connected == 0);
    assert!(before.elapsed() < PATIENCE / 3, "{:?}", before.elapsed());
    assert_eq!(listening(&a).len(), 0);
    let refused = server.add_within("b", &b, SHORT).unwrap_err();
    assert!(matches!(refused, AddError::NotConnected), "{refused}");
    let status = server.pods.status();
    assert_eq!((status.pods, status.pending, status.is_snapshot_acknowledged), (1, 1, false));
    let another = ztunnel(&directory);
    assert_eq!(ready(&another).requests, ["add a", "snapshot-sent"]);
}

#[test]
fn a_ztunnel_that_connects_in_a_loop_neither_costs_much_nor_stops_another() {
    let directory = TestDir::new("zds-loop");
    let (server, [a]) = (Server::start(&directory), namespaces());
    let before = Instant::now();
    let looping = faulty(&directory, Fault { reconnect_in_a_loop: true, ..Fault::default() });
    observe(&looping, "it has connected often", |observed| observed.connections > 100);
    let works = ztunnel(&directory);
    server.add("a", &a).unwrap();
    assert!(works.observed().proxies.contains("a"));
    let (connections, seconds) = (server.pods.status().counts.connections, before.elapsed().as_secs() + 2);
    assert!(connections <= 5 * seconds, "{connections} within {seconds} s");
}

#[test]
fn a_caller_that_gives_up_leaves_the_pod_to_another_caller() {
    let directory = TestDir::new("zds-callers");
    let (server, [a]) = (Server::start(&directory), namespaces());
    let ztunnel = faulty(&directory, Fault { answer_after: 2 * SHORT, ..Fault::default() });
    std::thread::scope(|scope| {
        let first = scope.spawn(|| server.add_within("a", &a, SHORT));
        wait_until("the pod is pending", || server.pods.status().pending == 1);
        let second = scope.spawn(|| server.add("a", &a));
        first.join().unwrap().unwrap_err();
        second.join().unwrap().unwrap();
    });
    assert!(ztunnel.observed().proxies.contains("a"));
    // The last caller of a pod that nothing acknowledges withdraws it.
    drop(ztunnel);
    wait_until("it is gone", || server.pods.status().connected == 0);
    server.remove("a");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| server.add_within("a", &a, SHORT));
        wait_until("the pod is pending", || server.pods.status().pending == 1);
        server.add_within("a", &a, 2 * SHORT).unwrap_err();
        first.join().unwrap().unwrap_err();
    });
    assert_eq!(server.pods.status().pods, 0);
}

#[test]
fn a_hand_over_that_is_not_completed_is_withdrawn() {
    let directory = TestDir::new("zds-incomplete");
    let (server, [a]) = (Server::start(&directory), namespaces());
    let ztunnel = ztunnel(&directory);
    let added = || server.pods.add(pod("a"), open(&a), HandOverBy::Add, Instant::now() + PATIENCE).unwrap();
    drop(added());
    observe(&ztunnel, "the proxy is ended", |observed| observed.requests.ends_with(&["del a".to_owned()]));
    assert_eq!(server.pods.status().pods, 0);
    let (gone, complete) = (added(), added());
    drop(gone);
    complete.complete();
    assert!(server.pods.status().pods == 1 && server.remove("a"));
}

#[test]
fn a_refused_pod_that_is_removed_is_ended_before_it_is_sent_again() {
    let directory = TestDir::new("zds-refused-removed");
    let (server, [a, b]) = (Server::start(&directory), namespaces());
    let ztunnel = faulty(&directory, Fault { refuse: Some("no room".to_owned()), ..Fault::default() });
    ready(&ztunnel);
    server.pods.adopt(pod("a"), Some(open(&a)));
    observe(&ztunnel, "a is refused", |observed| observed.pending.contains("a"));
    wait_until("the answer is recorded", || server.pods.status().counts.refused == 1);
    // The connection is busy with b while a is due again, and removed.
    ztunnel.set_fault(Fault { hung: true, refuse: Some("no room".to_owned()), ..Fault::default() });
    server.pods.adopt(pod("b"), Some(open(&b)));
    observe(&ztunnel, "b is sent", |observed| observed.requests.ends_with(&["add b".to_owned()]));
    server.pods.adopt(pod("a"), None);
    server.remove("a");
    ztunnel.set_fault(Fault::default());
    observe(&ztunnel, "a is ended", |observed| observed.requests.contains(&"del a".to_owned()));
}

#[test]
fn a_refused_pod_that_the_kernel_shows_as_enrolled_is_sent_again() {
    let directory = TestDir::new("zds-refused-again");
    let (server, [a]) = (Server::start(&directory), namespaces());
    let ztunnel = faulty(&directory, Fault { refuse: Some("no room".to_owned()), ..Fault::default() });
    ready(&ztunnel);
    server.pods.adopt(pod("a"), Some(open(&a)));
    observe(&ztunnel, "a is refused", |observed| observed.pending.contains("a"));
    ztunnel.set_fault(Fault::default());
    wait_until("it is acknowledged", || server.pods.status().pending == 0);
    assert_eq!(ztunnel.observed().requests, ["snapshot-sent", "add a", "add a"]);
    assert_eq!(listening(&a).len(), 4);
}

#[test]
fn a_proxy_that_does_not_listen_is_started_again_only_after_ztunnel_has_acknowledged_it_for_some_time() {
    let directory = TestDir::new("zds-restart");
    let (server, [a, b]) = (Server::start(&directory), namespaces());
    let restart = |netns| {
        let until = Instant::now() + PATIENCE;
        server.pods.add(pod("a"), open(netns), HandOverBy::Restart, until).map(HandOver::complete)
    };
    assert!(matches!(restart(&a), Err(AddError::NotConnected)));
    let ztunnel = ztunnel(&directory);
    ready(&ztunnel);
    assert!(matches!(restart(&a), Err(AddError::Pending)), "it was never sent");
    // Of a call that a busy machine delays the outcome is another one.
    let is_early = |added: Instant| {
        let restarted = restart(&a);
        matches!(restarted, Err(AddError::Pending)) || restarted.is_ok() && added.elapsed() > RETRY
    };
    let adding = Instant::now();
    server.add("a", &a).unwrap();
    let added = Instant::now();
    assert!(is_early(adding), "its listeners may be new");
    ztunnel.stop_listening("a");
    wait_until_nothing_listens(&a);
    // ztunnel acknowledges a pod that it has without doing anything.
    server.pods.adopt(pod("a"), Some(open(&a)));
    let before = ztunnel.observed().requests;
    wait_until("the acknowledgement is old", || {
        let is_old = added.elapsed() > RETRY;
        assert!(matches!(restart(&b), Err(AddError::Pending)), "another namespace");
        is_old
    });
    assert_eq!(ztunnel.observed().requests, before);
    let mut restarting = Instant::now();
    wait_until("it is started again", || {
        restarting = Instant::now();
        restart(&a).is_ok()
    });
    assert_eq!(ztunnel.observed().requests[before.len()..], ["del a", "add a"]);
    assert_eq!(listening(&a).len(), 4);
    let status = server.pods.status();
    assert_eq!((status.pods, status.pending, status.failing), (1, 0, None));
    assert!(is_early(restarting));
}

#[test]
fn an_agent_that_leads_again_sends_no_namespace_of_its_former_term() {
    let (directory, [netns]) = (TestDir::new("zds-terms"), namespaces());
    let server = Server::start(&directory);
    let first = ztunnel(&directory);
    ready(&first);
    server.add("a", &netns).unwrap();
    server.pods.end_hand_overs();
    assert!(matches!(server.add("b", &netns), Err(AddError::NotServed)));
    assert_eq!(server.pods.status().pods, 0, "the namespaces are closed");
    drop(first);
    server.pods.accept_hand_overs();
    server.pods.adopt(pod("a"), None);
    let second = ztunnel(&directory);
    assert_eq!(ready(&second).requests, ["keep a", "snapshot-sent"]);
}
