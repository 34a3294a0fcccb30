//! The first packet of a connection: the properties that rules can test.

use crate::model::policy::InterfaceName;
use crate::model::ruleset::{Family, Transport};
use std::net::SocketAddr;

/// The direction of a packet, as the pod sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Direction {
    /// It arrived by this interface.
    Arrives {
        /// The interface.
        by: InterfaceName,
    },
    /// A socket of the pod sends it; routing chose this interface (`lo` for the pod itself).
    Leaves {
        /// The interface.
        by: InterfaceName,
    },
}

/// The owner of a socket, in the ids of the namespace's user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
}

/// The state of a packet's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionPhase {
    /// The first packet.
    New,
    /// A later packet, or one related to a known connection.
    Established,
    /// A packet that conntrack cannot assign to a connection.
    Invalid,
}

/// The packet's connection in conntrack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// Its state.
    pub phase: ConnectionPhase,
    /// Its mark.
    pub mark: u32,
}

/// A packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Its direction.
    pub direction: Direction,
    /// TCP or UDP.
    pub protocol: Transport,
    /// Its source.
    pub source: SocketAddr,
    /// Its destination, of the same family as the source.
    pub destination: SocketAddr,
    /// The owner of the socket that sent it; `None` for packets that arrive, and those that no socket sent.
    pub owner: Option<Owner>,
    /// Its mark (`SO_MARK`); 0 without one.
    pub mark: u32,
    /// Its connection.
    pub connection: Connection,
    /// The socket that sent it is bound to the interface that it leaves by.
    pub is_bound: bool,
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
        Self { direction, protocol, source, destination, owner: None, mark: 0, connection, is_bound: false }
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
}
