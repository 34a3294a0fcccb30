//! Redirects a network namespace's traffic to the proxy inside it.
//!
//! ```text
//!              RedirectPolicy            a wish: names no chain
//!                    │ compile           rule order is decided there and nowhere else
//!                 Ruleset                rules: name no tool
//!       ┌─────────────┬┴───────────┬────────────┐
//!    nft batch   restore text   nft text      trace     bytes, text, an imaginary packet's way
//!       │             │
//!       └─ Backend::apply                               in the calling thread's namespace
//! ```
//!
//! What is promised, for the namespace a policy was applied to:
//!
//! - A captured connection reaches the proxy's port, and the proxy can learn its original target.
//! - The proxy's own connections leave untouched, and never meet the proxy by accident.
//! - A family that is off, an excluded port, network, group or interface meets no rule of ours.
//! - The namespace holds either all of the rules or none of them.
//! - Nothing that is not ours is read in order to be changed, changed, or removed.

#![warn(missing_docs)]

pub mod access;
pub mod apply;
pub mod backend;
mod chains;
pub mod choose;
pub mod compile;
pub mod datagrams;
pub mod ebpf;
pub mod hint;
pub mod inventory;
pub mod iptables;
pub mod live;
pub mod lock;
mod netlink;
pub mod netns;
pub mod nft;
pub mod policy;
pub mod presence;
pub mod probe;
pub mod program;
pub mod redirection;
pub mod routes;
pub mod ruleset;
pub mod show;
pub mod trace;
pub mod verdict;
mod walk;
pub mod xt;
