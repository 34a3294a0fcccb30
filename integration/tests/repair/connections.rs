//! Connections of a pod that is repaired: those that are open keep their path in both directions, and none that
//! opens meanwhile hangs or is reset.

use crate::clients::linked;
use crate::node::{Node, Pod};
use gybe_demo::testnet::namespace::Namespace;
use gybe_installer::pod::policy_file::PolicyFile;
use gybe_integration::programs::ours;
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::apply::redirection::{Redirection, remove_all};
use gybe_netfilter::kernel::open_connections::keep;
use gybe_netfilter::kernel::sockets;
use gybe_netfilter::model::policy::{Families, RedirectPolicy};
use gybe_netfilter::model::ruleset::Transport;
use gybe_test_support::PATIENCE;
use nix::libc;
use nix::sys::socket::{Backlog, listen, setsockopt, sockopt};
use nix::unistd::{Uid, setfsuid};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const BACKENDS: [&str; 3] = ["nft", "iptables-nft", "iptables-legacy"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traffic {
    /// Each side has sent data.
    Busy,
    /// No side has sent anything.
    Idle,
}

/// A connection between the pod and another host.
pub(crate) struct Open {
    pub(crate) what: String,
    of_pod: TcpStream,
    of_peer: TcpStream,
}

/// A pod with a link to another host, and connections in both directions and families.
pub(crate) struct Linked {
    pub(crate) pod: Pod,
    pub(crate) peer: Namespace,
    pub(crate) open: Vec<Open>,
}

pub(crate) const FAMILIES: [(&str, &str); 2] = [("10.244.0.3", "10.244.0.77"), ("fd00:10::3", "fd00:10::77")];

impl Linked {
    pub(crate) fn without_connections() -> Self {
        let (pod, peer) = linked();
        Self { pod, peer, open: Vec::new() }
    }

    fn new() -> Self {
        let mut linked = Self::without_connections();
        linked.connect_all();
        linked
    }

    /// Limits how long [`Open::works`] waits for a byte, for connections that are expected to be lost.
    fn wait_at_most(&self, time: Duration) {
        for end in self.open.iter().flat_map(|open| [&open.of_pod, &open.of_peer]) {
            end.set_read_timeout(Some(time)).unwrap();
        }
    }

    /// Opens connections of every kind.
    pub(crate) fn connect_all(&mut self) {
        for (of_pod, of_peer) in FAMILIES {
            for traffic in [Traffic::Busy, Traffic::Idle] {
                self.connect(of_pod, of_peer, traffic);
            }
        }
    }

    fn connect(&mut self, of_pod: &str, of_peer: &str, traffic: Traffic) {
        let (of_pod, of_peer): (IpAddr, IpAddr) = (of_pod.parse().unwrap(), of_peer.parse().unwrap());
        let (inward, server) = connection(&self.peer, &self.pod.netns, of_pod);
        let (outward, other) = connection(&self.pod.netns, &self.peer, of_peer);
        for (what, of_pod, of_peer) in [("inbound", server, inward), ("outbound", outward, other)] {
            let mut open =
                Open { what: format!("{traffic:?} {what} {}", of_pod.peer_addr().unwrap()), of_pod, of_peer };
            for end in [&open.of_pod, &open.of_peer] {
                end.set_read_timeout(Some(PATIENCE)).unwrap();
            }
            if traffic == Traffic::Busy {
                assert!(open.works());
            }
            self.open.push(open);
        }
    }
}

/// Connects from one namespace to this address in the other; returns both ends.
fn connection(from: &Namespace, to: &Namespace, address: IpAddr) -> (TcpStream, TcpStream) {
    let listener = to.run(|| TcpListener::bind(SocketAddr::new(address, 0)).unwrap()).unwrap();
    let target = listener.local_addr().unwrap();
    let client = from.run(|| TcpStream::connect_timeout(&target, Duration::from_secs(5)).unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, server)
}

impl Open {
    /// Reports whether bytes arrive in both directions.
    pub(crate) fn works(&mut self) -> bool {
        passes(&mut self.of_peer, &mut self.of_pod) && passes(&mut self.of_pod, &mut self.of_peer)
    }
}

fn passes(from: &mut TcpStream, to: &mut TcpStream) -> bool {
    let mut byte = [0];
    from.write_all(b"x").is_ok() && to.read_exact(&mut byte).is_ok()
}

pub(crate) type ChangePod = fn(&mut Value);

/// Policies that treat packets of unknown connections differently.
pub(crate) const POLICIES: [(&str, ChangePod); 3] = [
    ("redirect", |_| ()),
    ("tproxy", |pod| {
        pod["metadata"]["annotations"]["sidecar.istio.io/interceptionMode"] = json!("TPROXY");
    }),
    ("invalid packets dropped", |pod| {
        let variables = pod["spec"]["initContainers"][1]["env"].as_array_mut().unwrap();
        variables.push(json!({ "name": "INVALID_DROP", "value": "true" }));
    }),
];

#[test]
fn open_connections_keep_their_path_with_every_backend_family_and_policy() {
    for backend in BACKENDS {
        for (policy, change) in POLICIES {
            let node = Node::new(&format!("open-{backend}"), backend);
            let mut linked = Linked::new();
            node.manifest("shop", &linked.pod, change);
            node.cached("shop", &linked.pod, "eth0");
            node.start(&linked.pod);
            let sandboxes = node.repair();
            let of_pod = &sandboxes[0];
            let expected = (&json!(true), &json!(backend), &json!(8));
            let found = (&of_pod["repaired"], &of_pod["backend"], &of_pod["open_connections"]);
            assert_eq!(found, expected, "{backend}, {policy}: {of_pod}");
            for open in &mut linked.open {
                assert!(open.works(), "{backend}, {policy}: {}", open.what);
            }
            assert!(new_connections_reach_the_proxy(&linked), "{backend}, {policy}");
        }
    }
}

/// Reports whether a new connection in each family ends at the proxy's port: nothing listens at its own destination.
fn new_connections_reach_the_proxy(linked: &Linked) -> bool {
    FAMILIES.iter().all(|(of_pod, of_peer)| {
        let loopback = if of_pod.contains(':') { "[::1]:15001" } else { "127.0.0.1:15001" };
        let proxy = linked.pod.netns.run(|| TcpListener::bind(loopback).unwrap()).unwrap();
        let to = SocketAddr::new(of_peer.parse().unwrap(), 9999);
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(2)).is_ok();
        let is_connected = linked.pod.netns.run(connect).unwrap();
        drop(proxy);
        is_connected
    })
}

/// The control: rules that are written without precaution reset the same connections.
#[test]
fn rules_that_are_written_without_precaution_reset_open_connections() {
    for backend in BACKENDS {
        let mut linked = Linked::new();
        linked.wait_at_most(Duration::from_millis(200));
        let path = linked.pod.netns.path().display().to_string();
        let policy = r#"{"enable_ipv6":true}"#;
        let words = ["apply", "--netns", &path, "--backend", backend, "--policy", "-"];
        assert_eq!(ours("gybe", &words, policy).unwrap().code, Some(0));
        for open in &mut linked.open {
            assert!(!open.works(), "{backend}: {}", open.what);
        }
    }
}

/// A connection that takes longer hangs: the kernel repeats a lost SYN after 1 s, and again after 2 s.
const HANGS: Duration = Duration::from_secs(10);
/// The time between two bytes of a connection.
const PACE: Duration = Duration::from_millis(5);
/// Bytes that a client sends, one after the answer to the other.
const EXCHANGES: usize = 4;
/// The clients on each side, for each family.
const CLIENTS: usize = 40;

/// Answers each byte of every connection until `is_over`.
fn echo(listener: &TcpListener, is_over: &AtomicBool) {
    thread::scope(|scope| {
        while let Ok((mut stream, _)) = listener.accept() {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            scope.spawn(move || {
                let mut byte = [0];
                let _ = stream.set_read_timeout(Some(HANGS));
                while matches!(stream.read(&mut byte), Ok(1)) && stream.write_all(&byte).is_ok() {}
            });
        }
    });
}

fn listener(namespace: &Namespace, address: &str) -> TcpListener {
    let address: SocketAddr = address.parse().unwrap();
    let open = || {
        let fd = sockets::open(Transport::Tcp, address).unwrap();
        setsockopt(&fd, sockopt::IpTransparent, &true).unwrap();
        sockets::bind_until(&fd, address, Instant::now() + HANGS).unwrap();
        listen(&fd, Backlog::new(1024).unwrap()).unwrap();
        nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
        TcpListener::from(fd)
    };
    namespace.run(open).unwrap()
}

/// Opens connections until `is_over`; returns how many, and why some failed.
fn connect(to: SocketAddr, is_over: &AtomicBool) -> (usize, Vec<String>) {
    // Not the proxy's user.
    setfsuid(Uid::from_raw(1000));
    let (mut made, mut failed) = (0, Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        made += 1;
        if let Err(why) = exchange(to) {
            failed.push(format!("{to}: {why}"));
        }
    }
    (made, failed)
}

fn exchange(to: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, HANGS)?;
    stream.set_read_timeout(Some(HANGS))?;
    let mut byte = [0];
    for _ in 0..EXCHANGES {
        stream.write_all(b"x")?;
        stream.read_exact(&mut byte)?;
        thread::sleep(PACE);
    }
    Ok(())
}

/// Repairs a pod while both sides open connections; returns how many opened, and why some failed.
fn repaired_under_load(backend: &str, change: ChangePod) -> (usize, Vec<String>) {
    let node = Node::new(&format!("load-{backend}"), backend);
    let linked = Linked::without_connections();
    node.manifest("shop", &linked.pod, change);
    node.cached("shop", &linked.pod, "eth0");
    node.start(&linked.pod);
    let (pod, peer) = (&linked.pod.netns, &linked.peer);
    let (is_over, is_closed) = (AtomicBool::new(false), AtomicBool::new(false));
    let servers = FAMILIES.iter().flat_map(|(of_pod, _)| {
        let any = if of_pod.contains(':') { "[::]" } else { "0.0.0.0" };
        [(pod, 8080), (pod, 15001), (pod, 15006), (peer, 9000)]
            .map(|(at, port)| (at, format!("{any}:{port}")))
    });
    thread::scope(|scope| {
        let mut addresses = Vec::new();
        for (at, address) in servers {
            let listener = listener(at, &address);
            addresses.push((at, listener.local_addr().unwrap()));
            let is_closed = &is_closed;
            scope.spawn(move || echo(&listener, is_closed));
        }
        let mut clients = Vec::new();
        for (of_pod, of_peer) in FAMILIES {
            for (from, to, port) in [(peer, of_pod, 8080), (pod, of_peer, 9000)] {
                let to = SocketAddr::new(to.parse::<IpAddr>().unwrap(), port);
                for _ in 0..CLIENTS {
                    let is_over = &is_over;
                    clients.push(scope.spawn(move || from.run(|| connect(to, is_over)).unwrap()));
                }
            }
        }
        thread::sleep(Duration::from_millis(100));
        let sandboxes = node.repair();
        assert_eq!(sandboxes[0]["repaired"], true, "{sandboxes:?}");
        thread::sleep(Duration::from_millis(100));
        is_over.store(true, Ordering::Relaxed);
        let results: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        is_closed.store(true, Ordering::Relaxed);
        for (at, address) in addresses {
            // accept(2) returns.
            let loopback: IpAddr =
                if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() };
            let _ = at.run(|| {
                TcpStream::connect_timeout(&SocketAddr::new(loopback, address.port()), Duration::from_secs(1))
            });
        }
        let made = results.iter().map(|(made, _)| made).sum();
        (made, results.into_iter().flat_map(|(_, failed)| failed).collect())
    })
}

#[test]
fn connections_that_open_during_a_repair_are_not_lost() {
    for backend in BACKENDS {
        for (policy, change) in POLICIES {
            let (made, failed) = repaired_under_load(backend, change);
            assert!(made > 100 && failed.is_empty(), "{backend}, {policy}: of {made} {failed:?}");
        }
    }
}

fn policy() -> RedirectPolicy {
    let file = PolicyFile::parse(r#"{"enable_ipv6":true,"drop_invalid":true}"#).unwrap();
    file.with_families(Families::V4AndV6)
}

fn apply(policy: &RedirectPolicy) {
    Redirection::of(policy).apply(&*BackendKind::Nft.find().unwrap()).unwrap();
}

#[test]
fn a_connection_that_opens_between_the_list_and_the_rules_is_entered_after_them() {
    for is_entered in [true, false] {
        let mut linked = Linked::without_connections();
        let policy = policy();
        let kept = linked.pod.netns.run(|| keep(&policy)).unwrap().unwrap();
        linked.connect_all();
        linked.pod.netns.run(|| apply(&policy)).unwrap();
        if is_entered {
            linked.pod.netns.run(|| kept.enter_later_ones()).unwrap().unwrap();
        } else {
            linked.wait_at_most(Duration::from_millis(300));
        }
        for open in &mut linked.open {
            assert_eq!(open.works(), is_entered, "{}", open.what);
        }
    }
}

/// A connection from this address of the pod, whose socket disappears at once when it is dropped.
fn from_port(pod: &Namespace, from: SocketAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let connect = || {
        let fd = sockets::open(Transport::Tcp, to)?;
        setsockopt(&fd, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
        let deadline = Instant::now() + HANGS;
        sockets::bind_until(&fd, from, deadline)?;
        sockets::connect_until(&fd, to, deadline)?;
        Ok(TcpStream::from(fd))
    };
    pod.run(connect).unwrap()
}

#[test]
fn a_connection_that_closes_before_the_rules_leaves_no_entry_that_exempts_the_next_one() {
    for is_entry_deleted in [true, false] {
        let linked = Linked::without_connections();
        let (pod, policy) = (&linked.pod.netns, policy());
        for (of_pod, of_peer) in FAMILIES {
            let from = SocketAddr::new(of_pod.parse().unwrap(), 45_000);
            let to = SocketAddr::new(of_peer.parse().unwrap(), 9000);
            let destination = listener(&linked.peer, &to.to_string());
            let first = from_port(pod, from, to).unwrap();
            let kept = pod.run(|| keep(&policy)).unwrap().unwrap();
            drop((first, destination));
            // A process that another thread starts has copies of the sockets until execve(2).
            for (netns, closed) in [(pod, from), (&linked.peer, to)] {
                let bind = || {
                    sockets::bind_until(
                        &sockets::open(Transport::Tcp, closed)?,
                        closed,
                        Instant::now() + HANGS,
                    )
                };
                netns.run(bind).unwrap().unwrap();
            }
            pod.run(|| apply(&policy)).unwrap();
            if is_entry_deleted {
                pod.run(|| kept.enter_later_ones()).unwrap().unwrap();
            }
            let loopback = if of_pod.contains(':') { "[::1]:15001" } else { "127.0.0.1:15001" };
            let _proxy = listener(pod, loopback);
            // Nothing listens at the destination any more.
            let second = from_port(pod, from, to);
            assert_eq!(second.is_ok(), is_entry_deleted, "{from} {second:?}");
            pod.run(remove_all).unwrap().unwrap();
        }
    }
}
