//! Three backends, one namespace: what each leaves of the others, and what a probe finds out about
//! them on this machine's kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]

mod concurrent_removal;
mod probing;
mod replacing;

use gybe_installer::testnet::namespace::Namespace;
use gybe_netfilter::backend::{Backend, BackendKind};
use gybe_netfilter::iptables::{Iptables, Variant};
use gybe_netfilter::nft::Nft;
use std::time::Duration;

fn in_new_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    Namespace::new().unwrap().run(work).unwrap()
}

/// Each backend, with time for a busy machine.
fn patient(kind: BackendKind) -> Box<dyn Backend> {
    let iptables = |variant| Iptables::find(variant).unwrap().with_deadline(Duration::from_secs(120));
    match kind {
        BackendKind::Nft => Box::new(Nft),
        BackendKind::IptablesNft => Box::new(iptables(Variant::Nft)),
        BackendKind::IptablesLegacy => Box::new(iptables(Variant::Legacy)),
    }
}

/// Runs a shell command in the namespace of this thread and gives what it printed.
fn sh(command: &str) -> String {
    // The lock that all legacy programs would share is not everybody's to open.
    let command = format!("export XTABLES_LOCKFILE=/proc/self/ns/net; {command}");
    let run = gybe_integration::programs::run("sh", &["-c", &command], "").unwrap();
    assert_eq!(run.code, Some(0), "{command}: {}", run.err);
    run.out
}
