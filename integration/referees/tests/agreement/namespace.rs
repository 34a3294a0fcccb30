//! A network namespace for one rule set, and how bytes of a batch get into its kernel.

use gybe_netfilter::netns::Netns;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket,
    sockopt,
};
use std::os::fd::AsRawFd;
use std::process::Command;

/// Runs `work` in a network namespace of its own.
pub(crate) fn in_new_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let netns = Netns::create().unwrap_or_else(|error| {
        panic!("{error}; as root, or:\n  integration/as-root.sh cargo test -p gybe-referees")
    });
    netns.run(work).unwrap()
}

/// Commits a batch in this namespace, or says what the kernel said to which message.
///
/// One `sendto` for all of it: neither mnl's nor rustables' own way of sending always commits (mnl cuts
/// at 128 KiB, and half a batch is none; rustables lets its answers overflow).
pub(crate) fn commit(batch: &[u8]) -> Result<(), String> {
    let family = SockProtocol::NetlinkNetFilter;
    let kernel = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, family).unwrap();
    // Long lists make long batches, and every message of theirs asks for an answer. What may not be
    // forced (in a user namespace) is asked for; what then is too long fails below.
    const ROOM: usize = 4 << 20;
    let forced = setsockopt(&kernel, sockopt::SndBufForce, &ROOM)
        .and_then(|()| setsockopt(&kernel, sockopt::RcvBufForce, &ROOM));
    let asked = || {
        setsockopt(&kernel, sockopt::SndBuf, &ROOM).and_then(|()| setsockopt(&kernel, sockopt::RcvBuf, &ROOM))
    };
    forced.or_else(|_| asked()).unwrap();
    let sent = sendto(kernel.as_raw_fd(), batch, &NetlinkAddr::new(0, 0), MsgFlags::empty());
    assert_eq!(sent, Ok(batch.len()), "a batch goes whole or not at all");
    // All answers are queued when the sending is done.
    let mut refused = Vec::new();
    let mut room = vec![0_u8; 1 << 16];
    loop {
        match recv(kernel.as_raw_fd(), &mut room, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => refused.extend(errors(&room[..length])),
            Err(nix::Error::EAGAIN) => break,
            Err(errno) => refused.push(format!("no answer: {errno}")),
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(refused.join("; ")) }
}

/// What the answers in `room` refuse.
fn errors(room: &[u8]) -> Vec<String> {
    const NLMSG_ERROR: u16 = 2;
    let number = |at: usize| i32::from_ne_bytes(room[at..at + 4].try_into().unwrap());
    let mut refused = Vec::new();
    let mut at = 0;
    while at + 20 <= room.len() {
        let kind = u16::from_ne_bytes([room[at + 4], room[at + 5]]);
        let error = number(at + 16);
        if kind == NLMSG_ERROR && error != 0 {
            refused.push(format!("message {}: {}", number(at + 8), nix::Error::from_raw(-error)));
        }
        at += (usize::try_from(number(at)).unwrap() + 3) & !3;
    }
    refused
}

/// What the `nft` program lists of the table, in numbers.
#[expect(clippy::disallowed_methods, reason = "the nft program is one of the readers")]
pub(crate) fn nft_list() -> String {
    let nft = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists());
    let nft = nft.expect("no nft program: integration/setup.sh installs it");
    let output = Command::new(nft).args(["--numeric", "list", "table", "inet", "gybe"]).output().unwrap();
    assert!(output.status.success(), "nft list: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
