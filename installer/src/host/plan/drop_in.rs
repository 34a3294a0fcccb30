//! `shape: dropin`: our plugin in the directory that libcni reads for the primary's network. The primary's file
//! stays unchanged.

use std::ffi::OsStr;

use super::{Kept, Plan};
use crate::host::change::Change;
use crate::host::conflist::entry::Layout;
use crate::host::desired::Install;
use crate::host::judge::{self, JudgeInput};
use crate::host::observe::{DROP_IN, FileName, ObservedState};
use crate::host::problem::Problem;
use crate::host::runtimes::DropIns;

pub(super) fn put(observed: &ObservedState, install: &Install, plan: &mut Plan) -> Option<Kept> {
    let primary = judge::primary(&observed.conf, install.entry.plugin(), &observed.runtimes)?;
    let name = Some(&primary.network.name).filter(|name| is_network_name(name));
    let network = name.and_then(|name| FileName::new(name.as_str()).ok());
    let Some(network) = network.filter(|_| primary.network.drop_ins == DropIns::Loaded) else {
        plan.problems.push(Problem::NoDropIns(primary.file));
        return None;
    };
    let is_unconfirmed = judge::unconfirmed(&JudgeInput::new(install, observed), &primary).is_some();
    let there = observed.conf.networks.get(&network).and_then(|files| files.get(OsStr::new(DROP_IN)));
    if there.is_none() && is_unconfirmed {
        return None;
    }
    let right = there
        .and_then(|file| file.content.as_ref().ok())
        .is_some_and(|text| install.entry.has_same_value(text));
    if !right {
        let mut bytes = install.entry.print(&Layout::plain());
        bytes.push(b'\n');
        plan.changes.push(Change::WriteDropIn { network: network.clone(), bytes, mode: install.mode });
    }
    Some(Kept { files: Vec::new(), network: Some(network) })
}

/// Removes our file from every network's directory except that of `kept`.
pub(super) fn remove(observed: &ObservedState, kept: Option<&FileName>, plan: &mut Plan) {
    for (network, files) in &observed.conf.networks {
        if Some(network) != kept && files.contains_key(OsStr::new(DROP_IN)) {
            plan.changes.push(Change::RemoveDropIn { network: network.clone() });
        }
    }
}

/// libcni's rule for network names: a letter or digit, then those and `_`, `.`, `-`.
fn is_network_name(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_.-".contains(letter))
}
