//! One packet of ZDS and the descriptor that comes with it.

use super::messages::{self, Payload};
use gybe_netfilter::kernel::netns::Netns;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixAddr, recvmsg};
use std::fmt;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// ztunnel reads no more of a packet.
const MAX_MESSAGE: usize = 1024;

pub(super) enum Received {
    /// A request, or why it cannot be read.
    Packet(Result<Request, String>),
    /// Nothing came in time.
    Nothing,
    Stop,
    /// The agent has closed the connection.
    End,
}

/// A request with what belongs to it.
#[derive(Debug)]
pub(super) enum Request {
    Add { uid: String, has_workload: bool, netns: Netns },
    Keep(String),
    Del(String),
    SnapshotSent,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add { uid, .. } => write!(f, "add {uid}"),
            Self::Keep(uid) => write!(f, "keep {uid}"),
            Self::Del(uid) => write!(f, "del {uid}"),
            Self::SnapshotSent => f.write_str("snapshot-sent"),
        }
    }
}

/// The first packet: version 1.
#[must_use]
pub fn hello() -> Vec<u8> {
    vec![0x08, 0x01]
}

pub(super) fn send(connection: &OwnedFd, packet: &[u8]) -> nix::Result<()> {
    nix::sys::socket::send(connection.as_raw_fd(), packet, MsgFlags::MSG_NOSIGNAL).map(drop)
}

/// Waits for a packet, the end, or the time.
pub(super) fn receive(connection: &OwnedFd, stop: &EventFd, timeout: Option<Duration>) -> Received {
    let mut fds =
        [PollFd::new(stop.as_fd(), PollFlags::POLLIN), PollFd::new(connection.as_fd(), PollFlags::POLLIN)];
    let timeout =
        timeout.and_then(|timeout| PollTimeout::try_from(timeout).ok()).unwrap_or(PollTimeout::NONE);
    match poll(&mut fds, timeout) {
        Ok(0) | Err(Errno::EINTR) => return Received::Nothing,
        Ok(_) => {}
        Err(_) => return Received::End,
    }
    if fds.first().and_then(PollFd::any).unwrap_or(true) {
        return Received::Stop;
    }
    let mut packet = vec![0; MAX_MESSAGE];
    let mut parts = [IoSliceMut::new(&mut packet)];
    let mut control = cmsg_space!([i32; 4]);
    let (descriptors, length, is_truncated) = {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let Ok(read) = recvmsg::<UnixAddr>(connection.as_raw_fd(), &mut parts, Some(&mut control), flags)
        else {
            return Received::End;
        };
        let is_truncated = read.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
        let messages = read.cmsgs().into_iter().flatten();
        let descriptors: Vec<_> = messages.flat_map(descriptors).collect();
        (descriptors, read.bytes, is_truncated)
    };
    packet.truncate(length);
    match (length, is_truncated) {
        (0, _) => Received::End,
        (_, true) => Received::Packet(Err("the packet is truncated".to_owned())),
        _ => Received::Packet(parse(&packet, descriptors)),
    }
}

#[expect(unsafe_code, reason = "nix returns received descriptors as numbers")]
fn descriptors(message: ControlMessageOwned) -> Vec<OwnedFd> {
    let ControlMessageOwned::ScmRights(numbers) = message else { return Vec::new() };
    // SAFETY: the kernel has just made these descriptors for this process, and nothing else knows their numbers.
    numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect()
}

/// The rules of ztunnel: an add has one descriptor, and no other request has any.
fn parse(packet: &[u8], descriptors: Vec<OwnedFd>) -> Result<Request, String> {
    let payload = messages::decode(packet).map_err(|why| why.to_string())?.payload;
    let payload = payload.ok_or("a request without a payload")?;
    let (count, descriptor) = (descriptors.len(), descriptors.into_iter().next());
    match (payload, descriptor) {
        (Payload::Add(add), Some(netns)) if count == 1 => {
            let netns = Netns::received(netns).map_err(|why| why.to_string())?;
            Ok(Request::Add { uid: add.uid, has_workload: add.workload_info.is_some(), netns })
        }
        (Payload::Keep(keep), None) => Ok(Request::Keep(keep.uid)),
        (Payload::Del(del), None) => Ok(Request::Del(del.uid)),
        (Payload::SnapshotSent(_), None) => Ok(Request::SnapshotSent),
        _ => Err(format!("{count} descriptors")),
    }
}

/// Waits until the descriptor is readable; reports whether it is.
pub(super) fn is_readable(descriptor: &EventFd, timeout: Duration) -> bool {
    let mut fds = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut fds, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX)), Ok(1..))
}
