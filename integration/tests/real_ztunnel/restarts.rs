//! The agent and ztunnel are restarted, and ztunnel is replaced by a newer one, while clients connect all the time.

use crate::clients::{Attempt, Clients, EndOnDrop, connect, echoes};
use crate::world::{HOST, World, addresses};
use gybe_integration::namespace::with_own_mounts;
use gybe_test_support::{Agent, wait_until};
use nix::sys::signal::Signal;
use std::thread;
use std::time::Instant;

/// The connections that are made after each change.
const MORE: usize = 200;

#[test]
fn connections_while_the_agent_and_ztunnel_are_restarted() {
    with_own_mounts(restart_both);
}

/// Waits until the agent has `pods` namespaces, and ztunnel has acknowledged them.
fn wait_for_pods(agent: &Agent, pods: f64) {
    let is = |name: &str, value: f64| (agent.metric(name) - value).abs() < f64::EPSILON;
    wait_until("the agent serves ztunnel", || {
        is("gybe_ambient_pods", pods)
            && is("gybe_ambient_pods_kept", 0.0)
            && is("gybe_ambient_pods_pending", 0.0)
    });
}

/// A part of the test.
struct Phase {
    name: &'static str,
    start: Instant,
    end: Instant,
}

/// Works while clients connect, and lets them connect some more.
fn measured(name: &'static str, clients: &Clients, work: impl FnOnce()) -> Phase {
    let start = Instant::now();
    work();
    clients.wait_for_more(MORE);
    Phase { name, start, end: Instant::now() }
}

impl Phase {
    /// Prints how many connections ended, or failed, during this time; returns the failures.
    fn failures<'a>(&self, attempts: &'a [Attempt]) -> Vec<&'a str> {
        let made = attempts.iter().filter(|attempt| self.start < attempt.end && attempt.end <= self.end);
        let failures: Vec<_> = made.clone().filter_map(|attempt| attempt.failure.as_deref()).collect();
        let longest = made.clone().map(|attempt| attempt.end - attempt.start).max().unwrap_or_default();
        let (all, failed, time) = (made.count(), failures.len(), self.end - self.start);
        println!("{}: {all} connections, {failed} failed; {time:.1?}, the longest {longest:.1?}", self.name);
        failures
    }
}

fn restart_both() {
    let mut world = World::start("ztunnel-restarts", "nft");
    let (one, three) = (world.added(1), world.added(3));
    let (first, third, clients) = (addresses(1), addresses(3), Clients::new());
    let host = gybe_demo::testnet::namespace::Namespace::open(&world.host.path()).unwrap();
    let phases = thread::scope(|scope| {
        let ends = EndOnDrop(&clients);
        for server in [&one.netns, &three.netns, &host] {
            clients.serve(scope, server);
        }
        for ((first, third), of_host) in first.iter().zip(&third).zip(HOST) {
            clients.connect(scope, &one.netns, third, first);
            clients.connect(scope, &three.netns, first, third);
            clients.connect(scope, &host, first, of_host);
            clients.connect(scope, &one.netns, of_host, first);
        }
        let open = || {
            let streams = [
                connect(&one.netns, &third[0]).unwrap().0,
                connect(&host, &first[1]).unwrap().0,
                connect(&one.netns, HOST[0]).unwrap().0,
            ];
            move || assert!(streams.iter().all(echoes), "an open connection has ended")
        };
        let check = open();
        let agent = measured("the agent is killed and started again", &clients, || {
            world.node.restart_agent();
            wait_for_pods(world.node.agent.as_ref().unwrap(), 2.0);
            world.node.ztunnel().wait_until_ready();
            check();
        });
        let mut newer = None;
        let both = measured("a second ztunnel starts", &clients, || {
            newer.insert(world.start_ztunnel()).wait_until_ready();
        });
        // The kernel resets the connections in the queue of a listener that is closed, and ztunnel those that have not
        // ended 5 s before the end of its grace period.
        let replaced = measured("the first ztunnel ends by SIGTERM", &clients, || {
            let mut older = world.node.ztunnel.replace(newer.unwrap()).unwrap();
            older.signal(Signal::SIGTERM);
            clients.wait_for_more(MORE);
            check();
            drop(check);
            wait_until("the first ztunnel has ended", || older.has_ended());
        });
        let killed = measured("ztunnel is killed and started again", &clients, || {
            drop(world.node.ztunnel.take());
            world.node.ztunnel = Some(world.start_ztunnel());
            world.node.ztunnel().wait_until_ready();
        });
        let afterwards = measured("afterwards", &clients, || open()());
        drop(ends);
        [agent, both, replaced, killed, afterwards]
    });
    let attempts = clients.into_attempts();
    let [agent, both, _replaced, killed, afterwards] = phases.map(|phase| phase.failures(&attempts));
    assert_eq!([agent, both, afterwards], [[""; 0]; 3]);
    assert!(!killed.is_empty(), "without ztunnel a pod is closed");
}
