//! The CNI plugin `gybe-cni`, and the decisions that the command line shares with it.
//!
//! ```text
//! env + stdin ─► request ─┬─ conf ─────────────────────────────┐
//!                         └─ args ─► facts ─► pod              │
//!                                              ▼               ▼
//!               gates + annotations + families = decide ─► leave alone ──► prevResult, exit 0
//!                                              ├─────────► refuse ───────► CNI error, exit 1
//!                                              └─────────► redirect ─► netfilter, in the pod's
//!                                                                      namespace ─► prevResult
//! ```
//!
//! `dispatch` performs a call. ADD is in `add` and CHECK in `check`, both through `target`; the other verbs
//! are in `dispatch`. The modules that parse, decide or render are pure. These have effects: `bounded_read`
//! and `reply` (the runtime's pipes), `facts` (files, sockets, a program), `target` (the pod's namespace),
//! `loopback` (waits for another plugin), `backend` and `probe_cache` (what works on this node), and `log`.
//! The rules are made and written by `gybe_netfilter`. `arena` has the memory of a call.

mod add;
pub mod annotations;
pub mod arena;
pub mod args;
pub mod backend;
pub mod bounded_read;
mod check;
pub mod conf;
pub mod decide;
pub mod dispatch;
pub mod error;
pub mod facts;
pub mod families;
pub mod gates;
mod log;
mod loopback;
pub mod names;
pub mod network_conf;
pub mod pod;
pub mod probe_cache;
pub mod reply;
pub mod request;
pub mod result;
mod target;
pub mod version;

pub use log::timestamp;

#[cfg(test)]
mod tests {
    use gybe_test_support::names_after;
    use std::path::Path;

    /// An ADD evaluates no rules: it writes them.
    #[test]
    fn the_plugin_imports_nothing_of_the_diagnosis() {
        const ROOMS: [&str; 6] = ["access", "apply", "iptables", "kernel", "model", "probe"];
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        for (file, used) in names_after(concat!("gybe_netfilter", "::"), &source, true) {
            assert!(ROOMS.contains(&used.as_str()), "{} uses {used:?}", file.display());
        }
    }
}
