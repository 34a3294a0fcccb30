//! The server of ZDS and the stand-in for ztunnel, with real sockets and network namespaces.
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "the stand-in runs as a process")]

mod abuse;
mod faults;
mod fixture;
mod forwarding;
mod protocol;
