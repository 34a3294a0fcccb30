//! The three backends in one namespace: each replaces the others' rules completely; and the probe's findings about them
//! on this machine's kernel.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod probing;
mod replacing;

use gybe_integration::namespace::{in_new_namespace, sh};
use gybe_netfilter::apply::backend::{Backend, BackendKind};
use gybe_netfilter::iptables::{Iptables, Variant};
use gybe_netfilter::nft::Nft;
use std::time::Duration;

/// Returns a backend with a deadline that suffices on a busy machine.
fn patient(kind: BackendKind) -> Box<dyn Backend> {
    let iptables = |variant| Iptables::find(variant).unwrap().with_deadline(Duration::from_secs(120));
    match kind {
        BackendKind::Nft => Box::new(Nft),
        BackendKind::IptablesNft => Box::new(iptables(Variant::Nft)),
        BackendKind::IptablesLegacy => Box::new(iptables(Variant::Legacy)),
    }
}
