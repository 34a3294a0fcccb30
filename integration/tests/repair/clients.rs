//! Servers that send each client its address, and clients that connect to them all the time.

use crate::node::Pod;
use gybe_demo::testnet::namespace::{LinkEnd, Namespace, join};
use gybe_netfilter::model::policy::InterfaceName;
use gybe_test_support::{PATIENCE, wait_until};
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

pub(crate) const PORT: u16 = 8080;

/// The addresses of [`linked`].
pub(crate) const POD: &str = "10.244.0.3";
pub(crate) const PEER: &str = "10.244.0.77";

/// A pod, and another host, joined by a link with addresses of both families.
pub(crate) fn linked() -> (Pod, Namespace) {
    let (pod, peer) = (Pod::new(1), Namespace::new().unwrap());
    pod.sh("ip link delete eth0; ip route flush table main");
    let end = |namespace, addresses: [&str; 2]| LinkEnd {
        namespace,
        name: InterfaceName::parse("eth0").unwrap(),
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
    };
    join(
        &end(&pod.netns, ["10.244.0.3/24", "fd00:10::3/64"]),
        &end(&peer, ["10.244.0.77/24", "fd00:10::77/64"]),
    )
    .unwrap();
    (pod, peer)
}

/// Connects from a namespace; returns the connection and the address that the server sees.
pub(crate) fn connect(from: &Namespace, to: &str) -> io::Result<(TcpStream, String)> {
    from.run(|| connect_here(SocketAddr::new(to.parse().unwrap(), PORT))).unwrap()
}

/// The same from the calling thread's namespace, and as its user.
pub(crate) fn connect_here(to: SocketAddr) -> io::Result<(TcpStream, String)> {
    with_address_seen(TcpStream::connect_timeout(&to, PATIENCE)?)
}

/// Reads the address that the server sees.
pub(crate) fn with_address_seen(mut stream: TcpStream) -> io::Result<(TcpStream, String)> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut line, mut byte) = (Vec::new(), [0]);
    while byte != *b"\n" {
        stream.read_exact(&mut byte)?;
        line.extend(byte);
    }
    Ok((stream, String::from_utf8(line).unwrap().trim().to_owned()))
}

pub(crate) fn echoes(mut stream: &TcpStream) -> bool {
    let mut byte = [0];
    stream.write_all(b"x").and_then(|()| stream.read_exact(&mut byte)).is_ok_and(|()| byte == *b"x")
}

/// Clients that connect all the time, and the servers' end.
pub(crate) struct Clients {
    end: AtomicBool,
    running: AtomicUsize,
    attempts: Mutex<Vec<Attempt>>,
}

/// A connection of a client.
pub(crate) struct Attempt {
    pub(crate) start: Instant,
    pub(crate) end: Instant,
    /// Why it failed, with its source.
    pub(crate) failure: Option<String>,
}

impl Clients {
    pub(crate) fn new() -> Self {
        Self { end: AtomicBool::new(false), running: AtomicUsize::new(0), attempts: Mutex::default() }
    }

    /// Sends each client its own address, and then what the client sends. Ends after the clients that connect all the
    /// time.
    pub(crate) fn serve<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, at: &'scope Namespace) {
        let listener = at.run(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap()).unwrap();
        listener.set_nonblocking(true).unwrap();
        scope.spawn(move || {
            while !self.end.load(Ordering::Acquire) || self.running.load(Ordering::Acquire) > 0 {
                let Ok((mut client, from)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                };
                client.set_nonblocking(false).unwrap();
                scope.spawn(move || {
                    let _closed = client.write_all(format!("{}\n", from.ip().to_canonical()).as_bytes());
                    let _closed = io::copy(&mut client.try_clone().unwrap(), &mut client);
                });
            }
        });
    }

    /// Connects all the time; the server has to see the address `source`.
    pub(crate) fn connect<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        from: &'scope Namespace,
        to: &'scope str,
        source: &'scope str,
    ) {
        self.repeat(scope, source, move || connect(from, to));
    }

    /// The same with connections that `connect` makes.
    pub(crate) fn repeat<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        source: &'scope str,
        connect: impl Fn() -> io::Result<(TcpStream, String)> + Send + 'scope,
    ) {
        self.running.fetch_add(1, Ordering::AcqRel);
        scope.spawn(move || {
            while !self.end.load(Ordering::Acquire) {
                let start = Instant::now();
                let failure = match connect() {
                    Ok((_, seen)) if seen == source => None,
                    other => Some(format!("from {source}: {other:?}")),
                };
                let attempt = Attempt { start, end: Instant::now(), failure };
                self.attempts.lock().unwrap().push(attempt);
                thread::sleep(Duration::from_millis(2));
            }
            self.running.fetch_sub(1, Ordering::AcqRel);
        });
    }

    /// Connects all the time to the pod of [`linked`], and from it.
    pub(crate) fn connect_both_ways<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        pod: &'scope Namespace,
        peer: &'scope Namespace,
    ) {
        for (server, client, to, source) in [(pod, peer, POD, PEER), (peer, pod, PEER, POD)] {
            self.serve(scope, server);
            self.connect(scope, client, to, source);
        }
    }

    /// Waits until the clients have connected that many times more.
    pub(crate) fn wait_for_more(&self, count: usize) {
        let made = || self.attempts.lock().unwrap().len();
        let before = made();
        wait_until("connections of the clients", || made() >= before + count);
    }

    /// Returns the number of connections that were as they should be, and why others failed.
    pub(crate) fn into_failures(self) -> (usize, Vec<String>) {
        let attempts = self.into_attempts();
        let all = attempts.len();
        let failures: Vec<String> = attempts.into_iter().filter_map(|attempt| attempt.failure).collect();
        (all - failures.len(), failures)
    }

    pub(crate) fn into_attempts(self) -> Vec<Attempt> {
        self.attempts.into_inner().unwrap()
    }
}

/// Ends the clients also when a test fails: otherwise its scope waits for them.
pub(crate) struct EndOnDrop<'a>(pub(crate) &'a Clients);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end.store(true, Ordering::Release);
    }
}
