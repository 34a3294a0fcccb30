//! Connections that open while a pod is repaired: none of them hangs or is reset.

use crate::connections::{BACKENDS, ChangePod, FAMILIES, Linked, POLICIES};
use crate::node::Node;
use gybe_demo::testnet::namespace::Namespace;
use gybe_installer::pod::policy_file::PolicyFile;
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::apply::redirection::{Redirection, remove_all};
use gybe_netfilter::kernel::open_connections::keep;
use gybe_netfilter::kernel::sockets;
use gybe_netfilter::model::policy::{Families, RedirectPolicy};
use gybe_netfilter::model::ruleset::Transport;
use nix::libc;
use nix::sys::socket::{Backlog, listen, setsockopt, sockopt};
use nix::unistd::{Uid, setfsuid};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A connection that takes longer hangs: the kernel repeats a lost SYN after 1 s, and again after 2 s.
const PATIENCE: Duration = Duration::from_secs(10);
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
                let _ = stream.set_read_timeout(Some(PATIENCE));
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
        sockets::bind(&fd, address).unwrap();
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
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
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
        linked.patience = Duration::from_millis(300);
        let policy = policy();
        let kept = linked.pod.netns.run(|| keep(&policy)).unwrap().unwrap();
        linked.connect_all();
        linked.pod.netns.run(|| apply(&policy)).unwrap();
        if is_entered {
            linked.pod.netns.run(|| kept.enter_later_ones()).unwrap().unwrap();
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
        let deadline = Instant::now() + PATIENCE;
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
            pod.run(|| apply(&policy)).unwrap();
            if is_entry_deleted {
                pod.run(|| kept.enter_later_ones()).unwrap().unwrap();
            }
            let loopback = if of_pod.contains(':') { "[::1]:15001" } else { "127.0.0.1:15001" };
            let _proxy = listener(pod, loopback);
            // Nothing listens at the destination any more.
            assert_eq!(from_port(pod, from, to).is_ok(), is_entry_deleted, "{from}");
            pod.run(remove_all).unwrap().unwrap();
        }
    }
}
