//! The interface of the kernel: netlink, routes and addresses, namespaces, sockets, and the connections that it tracks.

pub(crate) mod netlink;
pub mod netns;
pub mod open_connections;
pub mod routes;
pub mod sockets;
pub(crate) mod uapi;
