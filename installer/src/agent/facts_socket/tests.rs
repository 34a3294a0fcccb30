//! The hand-over of an ambient pod's network namespace, by the plugin's client, through the facts socket and the server
//! of ZDS to a peer that acknowledges it. The stand-in for ztunnel is in `integration`, with the server alone.

use super::{ClientRequest, FactsConnection, FactsSocket, ReceivedBytes, RequestError};
use crate::agent::ManifestPods;
use crate::agent::pods::{PodLookup, PodsState};
use crate::agent::ztunnel::{self, AmbientPods};
use crate::agent_status::AgentStatus;
use crate::error::chain;
use crate::lead::process::Shared;
use crate::lead::socket::{SocketContext, SocketHealth};
use crate::log::Log;
use gybe_netfilter::kernel::netns::Netns;
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::ambient::{self, AmbientPod, HandOverBy};
use gybe_plugin::facts::wire::{self, FactsRequest, FactsResponse};
use gybe_plugin::facts::{AgentFault, hand_over};
use gybe_plugin::pod::{Ambient, PodFacts, Selectable};
use gybe_test_support::{PATIENCE, TestDir, wait_until};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType, connect, recvmsg, send, sendmsg, socket,
};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write, pipe};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Serves the facts socket while `work` runs.
fn serving(ambient: Option<&Arc<AmbientPods>>, work: impl FnOnce(&Path)) {
    let directory = TestDir::new("hand-over-manifests");
    serving_pods(&ManifestPods::new(&directory), ambient, work);
}

fn serving_pods(pods: &dyn PodLookup, ambient: Option<&Arc<AmbientPods>>, work: impl FnOnce(&Path)) {
    let directory = TestDir::new("hand-over");
    let path = directory.join("agent.sock");
    let mut facts = FactsSocket::open(&path, ambient.map(Arc::clone)).unwrap();
    let (log, health, role) = (Log::default(), SocketHealth::default(), Shared::default());
    let status = AgentStatus::default;
    let (end, running) = pipe().unwrap();
    let context = SocketContext { log: &log, health: &health, role: &role };
    thread::scope(|scope| {
        let served = scope.spawn(|| facts.serve(end.as_fd(), pods, &status, context));
        work(&path);
        drop(running);
        served.join().unwrap().unwrap();
    });
}

fn requested(facts: &Path, descriptor: BorrowedFd<'_>, within: Duration) -> Result<(), AgentFault> {
    let pod = AmbientPod::parse("u-1", "shop", "cart-0", "default").unwrap();
    hand_over(facts, &pod, descriptor, HandOverBy::Add, Instant::now() + within)
}

/// Requests again while the deadline passes during an exchange, as it may on a busy machine.
fn requested_in_time(facts: &Path, descriptor: BorrowedFd<'_>, within: Duration) -> Result<(), AgentFault> {
    let mut results = (0..10).map(|_| requested(facts, descriptor, within));
    results.find(|result| !matches!(result, Err(AgentFault::Timeout))).unwrap_or(Err(AgentFault::Timeout))
}

/// Returns the cause that the plugin reports.
fn reported(facts: &Path, descriptor: BorrowedFd<'_>, within: Duration) -> String {
    match requested_in_time(facts, descriptor, within) {
        Err(AgentFault::HandOver(fault)) => fault.text,
        other => panic!("{other:?}"),
    }
}

/// Acknowledges all requests until the server ends, and returns the namespaces that come with them.
fn acknowledge(zds: &Path) -> Vec<Netns> {
    let peer = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&peer, &SocketAddrUnix::new(zds).unwrap()).unwrap();
    send(&peer, b"\x08\x01", SendFlags::empty()).unwrap();
    let mut received = Vec::new();
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let (mut control, mut packet) = (RecvAncillaryBuffer::new(&mut space), [0; 1024]);
        let mut parts = [IoSliceMut::new(&mut packet)];
        match recvmsg(&peer, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(read) if read.bytes > 0 => {}
            _ => return received,
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                received.extend(descriptors.map(|descriptor| Netns::received(descriptor).unwrap()));
            }
        }
        // The server may end before it has read the response to the last request.
        if send(&peer, b"\x0a\x00", SendFlags::NOSIGNAL).is_err() {
            return received;
        }
    }
}

#[test]
fn a_namespace_passes_from_the_plugin_to_ztunnel() {
    let (pods, netns) = (Arc::<AmbientPods>::default(), Netns::of_this_thread().unwrap());
    let directory = TestDir::new("hand-over-zds");
    let zds = directory.join("ztunnel.sock");
    let (end, running) = pipe().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| ztunnel::serve(&zds, &pods, PATIENCE, end.as_fd()).unwrap());
        wait_until("the socket", || zds.exists());
        let peer = scope.spawn(|| acknowledge(&zds));
        serving(Some(&pods), |facts| requested(facts, netns.as_fd(), Duration::from_secs(5)).unwrap());
        let status = pods.status();
        assert_eq!((status.pods, status.pending, status.connected), (1, 0, 1));
        drop(running);
        let received = peer.join().unwrap();
        assert!(received.len() == 1 && received[0].is_same_as(&netns), "{received:?}");
    });
}

#[test]
fn a_hand_over_that_fails_reports_the_cause_and_leaves_nothing() {
    let netns = Netns::of_this_thread().unwrap();
    serving(None, |facts| {
        assert_eq!(reported(facts, netns.as_fd(), PATIENCE), "ambient mode is off on this node");
    });
    let pods = Arc::<AmbientPods>::default();
    serving(Some(&pods), |facts| {
        let why = reported(facts, netns.as_fd(), Duration::from_millis(300));
        assert!(why.starts_with("no ztunnel is connected"), "{why}");
        let why = reported(facts, std::io::stderr().as_fd(), PATIENCE);
        assert!(why.contains("is not a network namespace but"), "{why}");
    });
    assert_eq!(pods.status().pods, 0);
}

/// A request line for a pod, with a deadline.
fn request(timeout: Duration) -> String {
    let pod = AmbientPod::parse("u-1", "shop", "cart-0", "default").unwrap();
    ambient::encode_request(&pod, HandOverBy::Add, timeout)
}

fn send_with(stream: &UnixStream, line: &str, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
    sendmsg(stream, &[IoSlice::new(line.as_bytes())], &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// Sends a request with descriptors; returns what the agent parses, and the time that it has.
fn parsed(descriptors: &[BorrowedFd<'_>]) -> (Result<ClientRequest, RequestError>, Duration) {
    let (client, agent) = UnixStream::pair().unwrap();
    let mut connection = FactsConnection::new(agent, Instant::now());
    send_with(&client, &request(Duration::from_secs(60)), descriptors);
    match connection.receive() {
        ReceivedBytes::Request(request) => (request, connection.left()),
        _ => panic!("no request"),
    }
}

#[test]
fn a_request_has_exactly_one_network_namespace() {
    let netns = Netns::of_this_thread().unwrap();
    let mnt = File::open("/proc/self/ns/mnt").unwrap();
    let netns = netns.as_fd();
    let cases: [(&[BorrowedFd<'_>], &str); 5] = [
        (&[], "the request comes without a network namespace"),
        (&[netns, netns], "the request comes with more than one descriptor"),
        (&[netns; 8], "the kernel closed descriptors of the request: it comes with more than one"),
        (&[mnt.as_fd()], "the descriptor of the request cannot be used: "),
        (&[mnt.as_fd()], "is a mnt namespace, not a network namespace"),
    ];
    for (descriptors, expected) in cases {
        let why = chain(&parsed(descriptors).0.err().unwrap());
        assert!(why.contains(expected), "{why}");
    }
    assert!(matches!(parsed(&[netns]).0, Ok(ClientRequest::Ambient(..))));
}

#[test]
fn a_hand_over_may_take_longer_than_a_ztunnel_that_hangs() {
    let netns = Netns::of_this_thread().unwrap();
    let left = parsed(&[netns.as_fd()]).1;
    assert!(left > ztunnel::TIMEOUT && left <= Duration::from_secs(10), "{left:?}");
}

#[test]
fn a_pod_whose_client_is_gone_is_withdrawn() {
    let (pods, netns) = (Arc::<AmbientPods>::default(), Netns::of_this_thread().unwrap());
    let directory = TestDir::new("hand-over-gone");
    let zds = directory.join("ztunnel.sock");
    let (end, running) = pipe().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| ztunnel::serve(&zds, &pods, PATIENCE, end.as_fd()).unwrap());
        wait_until("the socket", || zds.exists());
        serving(Some(&pods), |facts| {
            let client = UnixStream::connect(facts).unwrap();
            send_with(&client, &request(PATIENCE), &[netns.as_fd()]);
            wait_until("the pod is pending", || pods.status().pending == 1);
            drop(client);
            let peer = scope.spawn(|| acknowledge(&zds));
            wait_until("ztunnel has acknowledged it", || pods.status().counts.acknowledged.count > 0);
            wait_until("the pod is withdrawn", || pods.status().pods == 0);
            drop(running);
            peer.join().unwrap();
        });
    });
}

#[test]
fn when_ztunnel_is_no_longer_served_a_hand_over_is_closed_and_goes_to_the_next_agent() {
    let (pods, netns) = (Arc::<AmbientPods>::default(), Netns::of_this_thread().unwrap());
    // What the plugin reports when no agent takes the place of this one before its deadline.
    let is_away =
        |requested| matches!(requested, Err(AgentFault::Away(why)) if matches!(*why, AgentFault::Closed));
    serving(Some(&pods), |facts| {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| requested(facts, netns.as_fd(), Duration::from_secs(2)));
            wait_until("the pod is pending", || pods.status().pending == 1);
            let mut client = UnixStream::connect(facts).unwrap();
            send_with(&client, &request(PATIENCE), &[netns.as_fd()]);
            let before = Instant::now();
            pods.end_hand_overs();
            let mut response = Vec::new();
            client.read_to_end(&mut response).unwrap();
            assert!(response.is_empty() && before.elapsed() < PATIENCE / 2, "{response:?}");
            let ended = waiting.join().unwrap();
            assert!(matches!(ended, Err(AgentFault::Timeout)) || is_away(ended), "it is not taken over");
        });
        assert!(is_away(requested_in_time(facts, netns.as_fd(), Duration::from_millis(300))), "a later one");
        assert_eq!((pods.status().pods, pods.status().failing), (0, None));
        pods.accept_hand_overs();
        let why = reported(facts, netns.as_fd(), Duration::from_millis(300));
        assert!(why.starts_with("no ztunnel is connected"), "{why}");
        assert!(pods.status().failing.is_some());
    });
}

/// The pods of a node.
struct Pods(Vec<PodFacts>);

impl PodLookup for Pods {
    fn find(&self, _: &PodRef) -> Option<FactsResponse> {
        None
    }

    fn wait_for(&self, _: &PodRef, _: Instant) -> FactsResponse {
        FactsResponse::Unknown
    }

    fn state(&self) -> PodsState {
        PodsState { missing: None, unwatched: None, pods: self.0.len(), watch: None }
    }

    fn has_pod(&self, is_such: &dyn Fn(&PodFacts) -> bool) -> Option<bool> {
        Some(self.0.iter().any(is_such))
    }
}

#[test]
fn a_pod_that_ended_before_its_hand_over_is_removed_after_a_while() {
    let netns = Netns::of_this_thread().unwrap();
    let pod = |has_ended| {
        let ambient = Ambient::Undecided(Box::new(Selectable { has_ended, ..Selectable::default() }));
        PodFacts { uid: "u-1".to_owned(), ambient, ..PodFacts::default() }
    };
    for (listed, is_kept) in [(vec![], false), (vec![pod(true)], false), (vec![pod(false)], true)] {
        let pods = Arc::<AmbientPods>::default();
        let directory = TestDir::new("hand-over-ended");
        let zds = directory.join("ztunnel.sock");
        let (end, running) = pipe().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| ztunnel::serve(&zds, &pods, PATIENCE, end.as_fd()).unwrap());
            wait_until("the socket", || zds.exists());
            let peer = scope.spawn(|| acknowledge(&zds));
            serving_pods(&Pods(listed), Some(&pods), |facts| {
                requested(facts, netns.as_fd(), PATIENCE).unwrap();
            });
            assert_eq!(pods.status().pods, 1, "the watch may be late");
            pods.remove_unlisted(Duration::ZERO);
            assert_eq!(pods.status().pods, usize::from(is_kept));
            drop(running);
            peer.join().unwrap();
        });
    }
}

/// Waits for each pod until the deadline.
struct UnknownPods;

impl PodLookup for UnknownPods {
    fn find(&self, _: &PodRef) -> Option<FactsResponse> {
        None
    }

    fn wait_for(&self, _: &PodRef, until: Instant) -> FactsResponse {
        thread::sleep(until.saturating_duration_since(Instant::now()));
        FactsResponse::Unknown
    }

    fn state(&self) -> PodsState {
        PodsState { missing: None, unwatched: None, pods: 0, watch: None }
    }

    fn has_pod(&self, _: &dyn Fn(&PodFacts) -> bool) -> Option<bool> {
        None
    }
}

/// More requests than a queue has threads.
const MANY: usize = 80;

/// Sends many requests whose responses wait, while `work` runs.
fn while_waiting(facts: &Path, line: &str, descriptors: &[BorrowedFd<'_>], work: impl FnOnce()) {
    let waiting: Vec<_> = (0..MANY)
        .map(|_| {
            let client = UnixStream::connect(facts).unwrap();
            send_with(&client, line, descriptors);
            client
        })
        .collect();
    let before = Instant::now();
    work();
    assert!(before.elapsed() < Duration::from_secs(3), "{:?}", before.elapsed());
    drop(waiting);
}

fn lookup(timeout: Duration) -> String {
    let pod = PodRef::from_args("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0").unwrap().unwrap();
    wire::encode_request(&FactsRequest { pod, timeout: Some(timeout), knows_ambient: false })
}

#[test]
fn hand_overs_and_queries_do_not_delay_each_other() {
    let (pods, netns) = (Arc::<AmbientPods>::default(), Netns::of_this_thread().unwrap());
    let (long, short) = (Duration::from_secs(4), Duration::from_millis(300));
    serving_pods(&UnknownPods, Some(&pods), |facts| {
        while_waiting(facts, &request(long), &[netns.as_fd()], || {
            let mut client = UnixStream::connect(facts).unwrap();
            client.write_all(lookup(short).as_bytes()).unwrap();
            let mut response = Vec::new();
            client.read_to_end(&mut response).unwrap();
            assert_eq!(wire::decode_response(&response), Ok(FactsResponse::Unknown));
        });
    });
    serving_pods(&UnknownPods, None, |facts| {
        while_waiting(facts, &lookup(long), &[], || {
            assert_eq!(reported(facts, netns.as_fd(), PATIENCE), "ambient mode is off on this node");
        });
    });
}
