//! Requests to the kernel's rtnetlink and its replies. `link` builds the requests.

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

#[derive(Debug, thiserror::Error)]
pub enum RtnetlinkError {
    #[error("the kernel refused: {errno}")]
    Refused { errno: Errno },
    #[error("the rtnetlink socket failed")]
    Socket(#[from] io::Error),
    #[error("the kernel's reply is not an expected message: {0}")]
    Unexpected(String),
}

/// A socket in the network namespace of the thread that opened it.
pub(super) struct Rtnetlink {
    socket: Socket,
    sequence: u32,
}

/// The multicast groups in which the kernel announces changes (include/uapi/linux/rtnetlink.h, enum rtnetlink_groups).
#[derive(Debug, Clone, Copy)]
pub(super) enum Group {
    Links = 1,
    Ipv6Addresses = 9,
}

/// The buffer for one reply; the longest is a link with all its attributes, under 4 KiB.
const REPLY_SIZE: usize = 32 * 1024;

impl Rtnetlink {
    pub(super) fn open() -> Result<Self, RtnetlinkError> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        Ok(Self { socket, sequence: 0 })
    }

    pub(super) fn subscribe(&self, group: Group) -> Result<(), RtnetlinkError> {
        Ok(self.socket.add_membership(group as u32)?)
    }

    /// Makes a change and waits for the kernel's acknowledgement.
    pub(super) fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> Result<(), RtnetlinkError> {
        let sequence = self.send(message, flags | NLM_F_ACK)?;
        loop {
            let answer = self.receive()?;
            match answer.payload {
                NetlinkPayload::Error(answered) if answer.header.sequence_number == sequence => {
                    return match answered.code {
                        None => Ok(()),
                        Some(code) => Err(RtnetlinkError::Refused { errno: Errno::from_raw(-code.get()) }),
                    };
                }
                _ => {}
            }
        }
    }

    /// Reads one object.
    pub(super) fn get(
        &mut self,
        message: RouteNetlinkMessage,
    ) -> Result<RouteNetlinkMessage, RtnetlinkError> {
        let sequence = self.send(message, 0)?;
        loop {
            let answer = self.receive()?;
            if answer.header.sequence_number != sequence {
                continue;
            }
            return match answer.payload {
                NetlinkPayload::InnerMessage(object) => Ok(object),
                NetlinkPayload::Error(error) => {
                    Err(RtnetlinkError::Refused { errno: Errno::from_raw(-error.raw_code()) })
                }
                other => Err(RtnetlinkError::Unexpected(format!("{other:?}"))),
            };
        }
    }

    /// Waits for an announcement until the deadline, and reports whether one arrived.
    pub(super) fn wait(&self, deadline: Instant) -> Result<bool, RtnetlinkError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut waiting = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut waiting, timeout) {
            Ok(0) | Err(Errno::EINTR) => Ok(false),
            Ok(_) => self.receive().map(|_| true),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> Result<u32, RtnetlinkError> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = flags | NLM_F_REQUEST;
        header.sequence_number = self.sequence;
        header.message_type = message.message_type();
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
        Ok(self.sequence)
    }

    fn receive(&self) -> Result<NetlinkMessage<RouteNetlinkMessage>, RtnetlinkError> {
        let mut bytes = Vec::with_capacity(REPLY_SIZE);
        self.socket.recv(&mut bytes, 0)?;
        NetlinkMessage::deserialize(&bytes).map_err(|error| RtnetlinkError::Unexpected(error.to_string()))
    }
}
