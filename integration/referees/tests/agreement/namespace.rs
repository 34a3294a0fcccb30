//! A network namespace for one rule set, sending a batch to its kernel, and listing it with nft.

pub(crate) use gybe_integration::namespace::in_new_namespace;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket,
    sockopt,
};
use std::os::fd::AsRawFd;
use std::process::Command;

/// Commits a batch in this namespace, or returns the kernel's error for each refused message.
///
/// It sends the batch with one `sendto`. mnl splits it at 128 KiB, and the kernel discards half a batch; rustables loses
/// responses when its buffer overflows.
pub(crate) fn commit(batch: &[u8]) -> Result<(), String> {
    let family = SockProtocol::NetlinkNetFilter;
    let kernel = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, family).unwrap();
    // Long lists need long batches, and every message requests a response. A user namespace may not force the size of
    // the buffers; a batch that is too long then fails below.
    const BUFFER_SIZE: usize = 4 << 20;
    let forced = setsockopt(&kernel, sockopt::SndBufForce, &BUFFER_SIZE)
        .and_then(|()| setsockopt(&kernel, sockopt::RcvBufForce, &BUFFER_SIZE));
    let unforced = || {
        setsockopt(&kernel, sockopt::SndBuf, &BUFFER_SIZE)
            .and_then(|()| setsockopt(&kernel, sockopt::RcvBuf, &BUFFER_SIZE))
    };
    forced.or_else(|_| unforced()).unwrap();
    let sent = sendto(kernel.as_raw_fd(), batch, &NetlinkAddr::new(0, 0), MsgFlags::empty());
    assert_eq!(sent, Ok(batch.len()), "the whole batch is sent");
    // All responses are queued when sendto returns.
    let mut refused = Vec::new();
    let mut buffer = vec![0_u8; 1 << 16];
    loop {
        match recv(kernel.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => refused.extend(errors(&buffer[..length])),
            Err(nix::Error::EAGAIN) => break,
            Err(errno) => refused.push(format!("no response: {errno}")),
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(refused.join("; ")) }
}

/// Returns the errors in the received messages.
fn errors(buffer: &[u8]) -> Vec<String> {
    const NLMSG_ERROR: u16 = 2;
    let number = |at: usize| i32::from_ne_bytes(buffer[at..at + 4].try_into().unwrap());
    let mut refused = Vec::new();
    let mut at = 0;
    while at + 20 <= buffer.len() {
        let kind = u16::from_ne_bytes([buffer[at + 4], buffer[at + 5]]);
        let error = number(at + 16);
        if kind == NLMSG_ERROR && error != 0 {
            refused.push(format!("message {}: {}", number(at + 8), nix::Error::from_raw(-error)));
        }
        at += (usize::try_from(number(at)).unwrap() + 3) & !3;
    }
    refused
}

/// Returns the table as the `nft` program lists it, with numbers instead of names.
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
