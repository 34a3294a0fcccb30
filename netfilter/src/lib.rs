//! Redirects a network namespace's traffic to the proxy inside it.
//!
//! ```text
//!              RedirectPolicy            policy: names no chain
//!                    │ compile           the only place that decides rule order
//!                 Ruleset                rules: name no tool
//!       ┌─────────────┬┴───────────┐
//!    nft batch   restore text   nft text                bytes, text
//!     │ │             │
//!     │ └─ apply (through a Backend)                    in the calling thread's namespace
//!     └─► live rules ─► walk                            the outcome for a packet: the batch is read as the kernel's lists are
//! ```
//!
//! Promises for a namespace with an applied policy:
//!
//! - A captured connection reaches the proxy's port, and the proxy can learn its original target.
//! - The proxy's own connections leave untouched and are never redirected to the proxy by accident.
//! - Packets of a disabled family, or of an excluded port, network, group or interface, match no rule of Gybe.
//! - The namespace has either all of the rules or none of them.
//! - Other owners' rules are neither changed nor removed, nor read in order to be changed.

#![warn(missing_docs)]

pub mod access;
pub mod apply;
pub mod backend;
pub mod choose;
pub mod compile;
pub mod datagrams;
pub mod ebpf;
pub mod effect;
pub mod hint;
pub mod inventory;
pub mod iptables;
pub mod live;
pub mod lock;
mod netlink;
pub mod netns;
pub mod nft;
pub mod open_connections;
pub mod packet;
pub mod policy;
pub mod presence;
pub mod probe;
pub mod program;
pub mod redirection;
pub mod routes;
pub mod ruleset;
pub mod show;
pub mod sockets;
pub mod verdict;
mod walk;
pub mod xt;
