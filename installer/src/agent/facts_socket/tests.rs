//! The hand-over of an ambient pod's network namespace, by the plugin's client, through the facts socket and the server
//! of ZDS to a peer that acknowledges it. The stand-in for ztunnel is in `integration`, with the server alone.

use super::FactsSocket;
use crate::agent::ManifestPods;
use crate::agent::ztunnel::{self, AmbientPods};
use crate::agent_status::AgentStatus;
use crate::lead::process::SharedRole;
use crate::lead::socket::{SocketContext, SocketHealth};
use crate::log::Log;
use gybe_netfilter::kernel::netns::Netns;
use gybe_plugin::facts::ambient::AmbientPod;
use gybe_plugin::facts::{AgentFault, hand_over};
use gybe_test_support::{PATIENCE, TestDir, wait_until};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketType, connect, recvmsg, send, socket,
};
use std::io::{IoSliceMut, pipe};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Serves the facts socket while `work` runs.
fn serving(ambient: Option<&Arc<AmbientPods>>, work: impl FnOnce(&Path)) {
    let directory = TestDir::new("hand-over");
    let path = directory.join("agent.sock");
    let mut facts = FactsSocket::open(&path).unwrap();
    facts.ambient = ambient.map(Arc::clone);
    let (log, health, role) = (Log::default(), SocketHealth::default(), SharedRole::default());
    let (pods, status) = (ManifestPods::new(&directory), AgentStatus::default);
    let (end, running) = pipe().unwrap();
    let context = SocketContext { log: &log, health: &health, role: &role };
    thread::scope(|scope| {
        let served = scope.spawn(|| facts.serve(end.as_fd(), &pods, &status, context));
        work(&path);
        drop(running);
        served.join().unwrap().unwrap();
    });
}

fn requested(facts: &Path, descriptor: BorrowedFd<'_>, within: Duration) -> Result<(), AgentFault> {
    let pod = AmbientPod::parse("u-1", "shop", "cart-0", "default").unwrap();
    hand_over(facts, pod, descriptor, Instant::now() + within)
}

fn reported(facts: &Path, descriptor: BorrowedFd<'_>, within: Duration) -> String {
    match requested(facts, descriptor, within) {
        Err(AgentFault::Reported(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// Acknowledges all requests, and returns the namespaces that come with them.
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
        send(&peer, b"\x0a\x00", SendFlags::NOSIGNAL).unwrap();
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
        assert_eq!(why, "malformed: it comes without a network namespace");
    });
    assert_eq!(pods.status().pods, 0);
}
