//! `shape: dropin`: our plugin in the directory that libcni reads for the primary's network. The primary's file
//! stays unchanged.

use std::ffi::OsStr;

use super::{Kept, Plan};
use crate::host::install::change::{Change, Problem};
use crate::host::install::entry::Layout;
use crate::host::install::judge;
use crate::host::install::loads::DropIns;
use crate::host::install::seen::{DROP_IN, FileName, Snapshot};
use crate::host::install::wanted::Install;

pub(super) fn put(seen: &Snapshot, install: &Install, plan: &mut Plan) -> Option<Kept> {
    let primary = judge::primary(&seen.conf, install.entry.plugin(), &seen.runtimes)?;
    let name = Some(&primary.network.name).filter(|name| is_network_name(name));
    let network = name.and_then(|name| FileName::new(name.as_str()).ok());
    let Some(network) = network.filter(|_| primary.network.drop_ins == DropIns::Loaded) else {
        plan.problems.push(Problem::NoDropIns(primary.file));
        return None;
    };
    let is_unconfirmed = judge::unconfirmed(&install.question(seen), &primary).is_some();
    let there = seen.conf.networks.get(&network).and_then(|files| files.get(OsStr::new(DROP_IN)));
    if there.is_none() && is_unconfirmed {
        return None;
    }
    let right = there
        .and_then(|file| file.content.as_ref().ok())
        .is_some_and(|text| install.entry.says_the_same(text));
    if !right {
        let mut bytes = install.entry.print(&Layout::plain());
        bytes.push(b'\n');
        plan.changes.push(Change::DropIn { network: network.clone(), bytes, mode: install.mode });
    }
    Some(Kept { files: Vec::new(), network: Some(network) })
}

/// Removes our file from every network's directory except that of `kept`.
pub(super) fn take_out(seen: &Snapshot, kept: Option<&FileName>, plan: &mut Plan) {
    for (network, files) in &seen.conf.networks {
        if Some(network) != kept && files.contains_key(OsStr::new(DROP_IN)) {
            plan.changes.push(Change::TakeOut { network: network.clone() });
        }
    }
}

/// libcni's rule for network names: a letter or digit, then those and `_`, `.`, `-`.
fn is_network_name(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_.-".contains(letter))
}
