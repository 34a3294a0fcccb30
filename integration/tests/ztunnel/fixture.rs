//! A running server, pods with a namespace, and what can be seen of both.

use gybe_demo::testnet::namespace::Namespace;
use gybe_installer::agent::ztunnel::{self, AddError, AmbientPods, HandOver};
use gybe_integration::ztunnel::{Fault, Mesh, Observed, Ztunnel};
use gybe_netfilter::kernel::netns::Netns;
use gybe_plugin::facts::ambient::{AmbientPod, HandOverBy, PodUid};
use gybe_test_support::{PATIENCE, TestDir, wait_for, wait_until};
use std::io::{PipeWriter, pipe};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The server's socket, and its pods; dropping it closes all connections.
pub(crate) struct Server {
    pub(crate) pods: Arc<AmbientPods>,
    running: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) fn socket(directory: &TestDir) -> PathBuf {
    directory.join("ztunnel.sock")
}

impl Server {
    /// Starts with a timeout that no response on a busy machine reaches.
    pub(crate) fn start(directory: &TestDir) -> Self {
        Self::with_timeout(directory, PATIENCE)
    }

    pub(crate) fn with_timeout(directory: &TestDir, timeout: Duration) -> Self {
        Self::serving(AmbientPods::default(), directory, timeout)
    }

    /// Starts with pods that are known before the first connection.
    pub(crate) fn serving(pods: AmbientPods, directory: &TestDir, timeout: Duration) -> Self {
        let (path, pods) = (socket(directory), Arc::new(pods));
        let (end, running) = pipe().unwrap();
        let of_thread = Arc::clone(&pods);
        let served = path.clone();
        let thread =
            thread::spawn(move || ztunnel::serve(&served, &of_thread, timeout, end.as_fd()).unwrap());
        wait_for("the socket", || path.exists().then_some(()));
        Self { pods, running: Some(running), thread: Some(thread) }
    }

    /// Adds a pod, within the time that a test waits.
    pub(crate) fn add(&self, uid: &str, netns: &Namespace) -> Result<(), AddError> {
        self.add_within(uid, netns, PATIENCE)
    }

    pub(crate) fn add_within(&self, uid: &str, netns: &Namespace, time: Duration) -> Result<(), AddError> {
        self.pods.add(pod(uid), open(netns), HandOverBy::Add, Instant::now() + time).map(HandOver::complete)
    }

    pub(crate) fn remove(&self, uid: &str) -> bool {
        self.pods.remove(&PodUid::parse(uid).unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.running.take());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

pub(crate) fn pod(uid: &str) -> AmbientPod {
    AmbientPod::parse(uid, "shop", &format!("cart-{uid}"), "default").unwrap()
}

/// A descriptor of its own for a namespace, as the plugin sends it.
pub(crate) fn open(namespace: &Namespace) -> Netns {
    Netns::received(namespace.as_fd().try_clone_to_owned().unwrap()).unwrap()
}

pub(crate) fn namespaces<const N: usize>() -> [Namespace; N] {
    std::array::from_fn(|_| Namespace::new().unwrap())
}

/// Starts a stand-in without a fault.
pub(crate) fn ztunnel(directory: &Path) -> Ztunnel {
    faulty(directory, Fault::default())
}

pub(crate) fn faulty(directory: &Path, fault: Fault) -> Ztunnel {
    Ztunnel::start(&directory.join("ztunnel.sock"), fault, Mesh::default()).unwrap()
}

/// Waits until the stand-in is in a state.
pub(crate) fn observe(ztunnel: &Ztunnel, what: &str, holds: impl Fn(&Observed) -> bool) -> Observed {
    wait_for(what, || Some(ztunnel.observed()).filter(|observed| holds(observed)))
}

pub(crate) fn ready(ztunnel: &Ztunnel) -> Observed {
    observe(ztunnel, "ztunnel is ready", |observed| observed.is_ready)
}

/// Reports the ports at which the pod's namespace accepts IPv4 connections, and those at which it accepts IPv6
/// connections.
fn listening_by_family(namespace: &Namespace) -> [Vec<u16>; 2] {
    let accepts =
        |host: IpAddr, port: u16| TcpStream::connect_timeout(&(host, port).into(), PATIENCE).is_ok();
    let ports = |host| [15001, 15006, 15008, 15053].into_iter().filter(|port| accepts(host, *port)).collect();
    namespace.run(|| [ports(Ipv4Addr::LOCALHOST.into()), ports(Ipv6Addr::LOCALHOST.into())]).unwrap()
}

/// Reports the ports at which the pod's namespace accepts connections, in both families alike.
pub(crate) fn listening(namespace: &Namespace) -> Vec<u16> {
    let [v4, v6] = listening_by_family(namespace);
    assert_eq!(v4, v6, "the ports of IPv4 and of IPv6");
    v4
}

/// Waits until the pod's namespace accepts no connection: a proxy closes its listeners one after another.
pub(crate) fn wait_until_nothing_listens(namespace: &Namespace) {
    wait_until("nothing listens", || listening_by_family(namespace).concat().is_empty());
}
