//! Redirects a network namespace's traffic to the proxy inside it.
//!
//! ```text
//!       RedirectPolicy, AmbientPolicy    policy: names no chain
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
//! - Other owners' rules are neither changed nor removed, nor read in order to be changed, except by
//!   [`Redirection::take_over_ambient`](apply::redirection::Redirection::take_over_ambient).

#![warn(missing_docs)]

pub mod access;
pub mod apply;
pub mod compile;
pub mod inspect;
pub mod iptables;
pub mod kernel;
pub mod model;
pub mod nft;
pub mod probe;
pub mod xt;

#[cfg(test)]
mod tests {
    use gybe_test_support::names_after;
    use std::path::Path;

    /// The rooms that each room may use (ARCHITECTURE.md). The tests of `probe` also use the walk.
    const ROOMS: [(&str, &[&str]); 10] = [
        ("model", &[]),
        ("compile", &["model"]),
        ("kernel", &["model"]),
        ("xt", &["model", "kernel"]),
        ("nft", &["model", "kernel"]),
        ("access", &["model", "kernel", "nft"]),
        ("iptables", &["model", "kernel", "xt", "access"]),
        ("apply", &["model", "compile", "kernel", "xt", "nft", "access", "iptables"]),
        ("probe", &["model", "kernel", "xt", "nft", "iptables", "apply"]),
        ("inspect", &["model", "compile", "kernel", "xt", "nft", "access", "iptables", "apply"]),
    ];

    #[test]
    fn a_room_uses_only_rooms_below_it() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        for (room, below) in ROOMS {
            for (file, used) in names_after("crate::", &source.join(room), false) {
                let is_allowed = used == room || below.contains(&used.as_str());
                assert!(is_allowed, "{} uses {used:?}", file.display());
            }
        }
    }
}
