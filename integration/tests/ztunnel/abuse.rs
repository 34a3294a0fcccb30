//! Peers that do not speak the protocol, or may not.

use crate::fixture::{Server, listening, namespaces, ready, socket, ztunnel};
use gybe_integration::programs::path_of_ours;
use gybe_integration::ztunnel::hello;
use gybe_test_support::{TestDir, install, wait_until};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, sendmsg,
    socket as open_socket,
};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest message.
const MAX: usize = 1024;

struct Peer(OwnedFd);

impl Peer {
    fn connect(path: &Path) -> Self {
        let fd = open_socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        connect(fd.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        Self(fd)
    }

    fn send(&self, packet: &[u8], descriptors: &[i32]) {
        let rights = [ControlMessage::ScmRights(descriptors)];
        let control = if descriptors.is_empty() { &[][..] } else { &rights };
        let parts = [IoSlice::new(packet)];
        sendmsg::<UnixAddr>(self.0.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None).unwrap();
    }

    /// Receives a packet; none when the connection is closed.
    fn receive(&self) -> Option<Vec<u8>> {
        let mut packet = vec![0; MAX];
        let length = recv(self.0.as_raw_fd(), &mut packet, MsgFlags::empty()).unwrap_or(0);
        packet.truncate(length);
        (length > 0).then_some(packet)
    }
}

#[test]
fn invalid_packets_close_the_connection() {
    let directory = TestDir::new("zds-invalid");
    let (server, [a]) = (Server::start(&directory), namespaces());
    let path = socket(&directory);
    let descriptor = [std::io::stderr().as_raw_fd()];
    let oversized = [&hello()[..], &[0x12, 0xff, 0x07], &[0; MAX]].concat();
    let hellos: [(&str, &[u8], &[i32]); 5] = [
        ("no version", b"\x12\x01x", &[]),
        ("version 2", b"\x08\x02", &[]),
        ("malformed", b"\xff\xff", &[]),
        ("oversized", &oversized, &[]),
        ("with a descriptor", b"\x08\x01", &descriptor),
    ];
    for (what, packet, descriptors) in hellos {
        let peer = Peer::connect(&path);
        peer.send(packet, descriptors);
        assert_eq!(peer.receive(), None, "a hello: {what}");
    }
    assert_eq!(server.pods.status().counts.connections, 0);

    let oversized = [&b"\x0a\xff\x07\x0a\xfc\x07"[..], &[b'x'; MAX]].concat();
    let responses: [(&str, &[u8], &[i32]); 5] = [
        ("not an acknowledgement", b"\x12\x00", &[]),
        ("malformed", b"\x0a\x05", &[]),
        ("not UTF-8", b"\x0a\x03\x0a\x01\xff", &[]),
        ("oversized", &oversized, &[]),
        ("with a descriptor", b"\x0a\x00", &descriptor),
    ];
    for (what, packet, descriptors) in responses {
        let peer = Peer::connect(&path);
        peer.send(&hello(), &[]);
        assert_eq!(peer.receive().unwrap(), b"\x1a\x00", "{what}");
        peer.send(packet, descriptors);
        assert_eq!(peer.receive(), None, "a response: {what}");
    }

    let peer = Peer::connect(&path);
    peer.send(&hello(), &[]);
    peer.receive().unwrap();
    peer.send(b"\x0a\x00", &[]);
    wait_until("the snapshot is acknowledged", || server.pods.status().is_snapshot_acknowledged);
    peer.send(b"\x0a\x00", &[]);
    assert_eq!(peer.receive(), None, "a response without a request");
    wait_until("no peer is connected", || server.pods.status().connected == 0);

    // The server still serves.
    let ztunnel = ztunnel(&directory);
    server.add("a", &a).unwrap();
    assert_eq!((ready(&ztunnel).connections, listening(&a).len()), (1, 4));
}

#[test]
fn a_peer_that_is_silent_is_disconnected_after_the_timeout() {
    let directory = TestDir::new("zds-silent");
    let server = Server::with_timeout(&directory, Duration::from_millis(100));
    let peer = Peer::connect(&socket(&directory));
    assert_eq!(peer.receive(), None);
    assert_eq!((server.pods.status().counts.late, server.pods.status().counts.connections), (1, 0));
}

#[test]
fn a_peer_that_is_not_root_is_refused() {
    let directory = TestDir::new("zds-user");
    let (server, [a]) = (Server::start(&directory), namespaces());
    // Modes alone do not protect the pods.
    fs::set_permissions(socket(&directory), Permissions::from_mode(0o666)).unwrap();
    let program = directory.join("gybe-ztunnel");
    install(&path_of_ours("gybe-ztunnel").unwrap(), &program);
    server.add_within("a", &a, Duration::ZERO).unwrap_err();
    server.pods.adopt(crate::fixture::pod("a"), Some(crate::fixture::open(&a)));
    let mut process = Command::new(&program);
    let process = process.arg(socket(&directory)).uid(1000).gid(1000).stdout(Stdio::piped());
    let mut process = process.spawn().unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    let number = |line: String| line.strip_prefix("connection ").and_then(|number| number.parse().ok());
    let before = Instant::now();
    // It connects again because the server has closed its connection, and uses up nothing of the five connections that
    // the server accepts in a second.
    let last: Option<u32> = lines.map(|line| number(line).unwrap()).find(|number| *number > 60);
    let took = before.elapsed();
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(last.is_some() && took < Duration::from_secs(8), "{last:?} after {took:?}");
    assert_eq!(server.pods.status().counts.connections, 0);
}
