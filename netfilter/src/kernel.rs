//! Interfaces to the kernel: netlink and its constants, network namespaces, tracked connections, routes and addresses,
//! sockets.

pub mod listeners;
pub(crate) mod netlink;
pub mod netns;
pub mod open_connections;
pub mod routes;
pub mod sockets;
pub(crate) mod uapi;
