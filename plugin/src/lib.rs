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
    use std::fs;
    use std::path::Path;

    fn assert_without_diagnosis(directory: &Path) {
        for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => assert_without_diagnosis(&path),
                false => {
                    let imports = concat!("gybe_netfilter::", "inspect");
                    assert!(!fs::read_to_string(&path).unwrap().contains(imports), "{}", path.display());
                }
            }
        }
    }

    /// An ADD evaluates no rules: it writes them.
    #[test]
    fn the_plugin_imports_nothing_of_the_diagnosis() {
        assert_without_diagnosis(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    }
}
