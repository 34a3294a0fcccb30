//! The packet that is traced: what a rule can ask about it, and no more.

use crate::policy::InterfaceName;
use crate::ruleset::Family;
use std::net::SocketAddr;

/// Which way a packet goes, seen from inside the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Direction {
    /// It came in by this interface.
    Arrives {
        /// Where it came in.
        by: InterfaceName,
    },
    /// A socket of the pod sends it; routing chose this interface (`lo` for the pod itself).
    Leaves {
        /// Where it goes out.
        by: InterfaceName,
    },
}

/// TCP or UDP: nothing else is ever redirected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Whose socket sent the packet, in the ids of the namespace's user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
}

/// Where in its connection's life a packet stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionPhase {
    /// The first packet.
    New,
    /// A later one, or one related to a known connection.
    Established,
    /// One that conntrack cannot place.
    Invalid,
}

/// What conntrack knows of the packet's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// How far it has come.
    pub phase: ConnectionPhase,
    /// Its mark.
    pub mark: u32,
}

/// An imaginary packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Which way it goes.
    pub direction: Direction,
    /// TCP or UDP.
    pub protocol: Transport,
    /// Where it comes from.
    pub source: SocketAddr,
    /// Where it is going; same family as the source.
    pub destination: SocketAddr,
    /// Whose socket sent it; `None` for packets that arrive or that no socket sent.
    pub owner: Option<Owner>,
    /// Its mark (`SO_MARK`), 0 if nobody set one.
    pub mark: u32,
    /// What conntrack knows.
    pub connection: Connection,
}

impl Packet {
    /// The first packet of a connection, unmarked.
    pub fn first(
        direction: Direction,
        protocol: Transport,
        source: SocketAddr,
        destination: SocketAddr,
    ) -> Self {
        let connection = Connection { phase: ConnectionPhase::New, mark: 0 };
        Self { direction, protocol, source, destination, owner: None, mark: 0, connection }
    }

    /// The same packet, sent by a socket of `owner`.
    #[must_use]
    pub fn owned_by(self, owner: Owner) -> Self {
        Self { owner: Some(owner), ..self }
    }

    /// The same packet with a mark.
    #[must_use]
    pub fn marked(self, mark: u32) -> Self {
        Self { mark, ..self }
    }

    /// Its family, by its destination.
    pub fn family(&self) -> Family {
        match self.destination {
            SocketAddr::V4(_) => Family::V4,
            SocketAddr::V6(_) => Family::V6,
        }
    }

    pub(super) fn leaves_by_loopback(&self) -> bool {
        matches!(&self.direction, Direction::Leaves { by } if *by == InterfaceName::loopback())
    }
}
