//! Plans our entry for each shape: in the primary's chain, in a network of our own, or as a drop-in.

use std::ffi::OsStr;

use super::Plan;
use super::entry_removal::{Kept, NETWORK, has_original, is_network_of, is_of_istio, set_aside};
use crate::host::change::{Change, NewAccess};
use crate::host::conflist::entry::{Entry, Layout};
use crate::host::conflist::{self, ConflistError, ISTIO, IstioEntry, PluginChain, as_list};
use crate::host::desired::{Install, Shape, TakeOver};
use crate::host::json::{self, JsonKind};
use crate::host::judge::{self, JudgeInput};
use crate::host::libcni::choice::ChosenNetwork;
use crate::host::libcni::network;
use crate::host::observe::runtimes::DropIns;
use crate::host::observe::{ConfFile, DROP_IN, FileFormat, FileKind, FileName, ORIGINAL, ObservedState};
use crate::host::problem::Problem;

/// Plans the entry, and returns where it then is; none while the right file for it is unknown.
pub(super) fn put(observed: &ObservedState, install: &Install, plan: &mut Plan) -> Option<Kept> {
    match &install.shape {
        Shape::Chained { pinned } => put_in_chain(observed, install, pinned.as_ref(), plan),
        Shape::Standalone { file } => put_network(observed, install, file, plan),
        Shape::DropIn => put_drop_in(observed, install, plan),
    }
}

/// `shape: chained`: our entry as the last one of the primary plugin's chain. Returns none if there is no file for the
/// entry, or if it may not be written now: a chain that names a program which the runtime does not find fails every pod.
fn put_in_chain(
    observed: &ObservedState,
    install: &Install,
    pinned: Option<&FileName>,
    plan: &mut Plan,
) -> Option<Kept> {
    let target = target(observed, install, pinned, plan)?;
    let chaining = Chaining { observed, install, pinned, target };
    if !chaining.has(install.entry.plugin()) && chaining.is_unconfirmed() {
        return None;
    }
    match chaining.steps() {
        Ok((list, steps)) => {
            plan.changes.extend(steps);
            Some(Kept { files: vec![list, chaining.target.name], network: None })
        }
        Err(problem) => {
            plan.problems.push(problem);
            None
        }
    }
}

/// A conf file and the entry to be added to it.
struct Chaining<'a> {
    observed: &'a ObservedState,
    install: &'a Install,
    pinned: Option<&'a FileName>,
    target: EntryFile<'a>,
}

impl Chaining<'_> {
    fn steps(&self) -> Result<(FileName, Vec<Change>), Problem> {
        let name = &self.target.name;
        let bytes = self.bytes().map_err(|why| Problem::Unchangeable { file: name.clone(), why })?;
        if self.has(ISTIO) && self.install.take_over == TakeOver::Waits {
            return Err(Problem::IstioAgentRuns(name.clone()));
        }
        let lists = as_list(name);
        if lists.is_empty() {
            return Ok((name.clone(), self.in_place(bytes)));
        }
        let usable =
            |list: &FileName| self.is_free(list) && (self.pinned.is_some() || !self.is_overtaken(list));
        match lists.into_iter().find(usable) {
            Some(list) => Ok((list.clone(), self.converted(list, bytes))),
            None => Err(Problem::NoNameLeft(name.clone())),
        }
    }

    fn bytes(&self) -> Result<Vec<u8>, ConflistError> {
        match self.target.form {
            FileFormat::List => {
                PluginChain::read(self.target.bytes)?.with(&self.install.entry, IstioEntry::Replace)
            }
            FileFormat::Single => conflist::listed(self.target.bytes, &self.install.entry),
        }
    }

    fn has(&self, plugin: &str) -> bool {
        PluginChain::read(self.target.bytes).is_ok_and(|chain| chain.entry(plugin).is_some())
    }

    fn is_unconfirmed(&self) -> bool {
        let file = self.target.name.clone();
        let loaded = network(self.target.form, self.target.bytes, &[]).ok();
        let choice = loaded.map(|network| ChosenNetwork { file, network });
        choice.is_some_and(|choice| {
            judge::unconfirmed(&JudgeInput::new(self.install, self.observed), &choice).is_some()
        })
    }

    fn in_place(&self, bytes: Vec<u8>) -> Vec<Change> {
        let mut steps = Vec::new();
        if bytes == self.target.bytes {
            return steps;
        }
        if self.has(ISTIO) {
            // A copy of the file allows uninstall to restore istio-cni's entry.
            steps.extend(set_aside(self.observed, &self.target.name));
        }
        steps.extend(self.write(self.target.name.clone(), bytes));
        steps
    }

    /// First writes the list, then renames the single file: at every moment one of them loads.
    fn converted(&self, list: FileName, bytes: Vec<u8>) -> Vec<Change> {
        let mut steps: Vec<_> = self.write(list, bytes).into_iter().collect();
        let (from, to) = (self.target.name.clone(), self.target.name.with(ORIGINAL));
        steps.push(Change::Move { from, to, bytes: self.target.bytes.to_vec() });
        steps
    }

    fn write(&self, file: FileName, bytes: Vec<u8>) -> Option<Change> {
        let instead_of = self.observed.conf.files.get(&file).and_then(|file| file.content.clone().ok());
        let access = NewAccess::Like(self.target.name.clone(), self.target.file.access);
        (instead_of.as_ref() != Some(&bytes)).then_some(Change::Write { file, bytes, access, instead_of })
    }

    /// Reports whether the name is free, or is that of a list made from this very file, which the primary may
    /// have written again.
    fn is_free(&self, list: &FileName) -> bool {
        let plugin = self.install.entry.plugin();
        match self.observed.conf.files.get(list) {
            None => true,
            Some(ConfFile { content: Ok(bytes), .. }) => {
                let names_us = PluginChain::read(bytes).is_ok_and(|chain| chain.entry(plugin).is_some());
                let set_aside = has_original(self.observed, &self.target.name);
                conflist::unlisted(bytes, plugin).is_some() || (names_us && set_aside)
            }
            Some(_) => false,
        }
    }

    /// Reports whether another file, valid or broken, would sort before the list but after the present file.
    fn is_overtaken(&self, list: &FileName) -> bool {
        let mut others =
            self.observed.conf.files.keys().filter(|other| FileFormat::of(other.as_os_str()).is_some());
        others.any(|other| self.target.name < *other && other < list)
    }
}

/// The file for our entry.
#[derive(Debug, Clone)]
struct EntryFile<'a> {
    name: FileName,
    file: &'a ConfFile,
    bytes: &'a [u8],
    form: FileFormat,
}

/// The pinned file, or the one that the runtime uses.
fn target<'a>(
    observed: &'a ObservedState,
    install: &Install,
    pinned: Option<&FileName>,
    plan: &mut Plan,
) -> Option<EntryFile<'a>> {
    let name = match pinned {
        None => judge::primary(&observed.conf, install.entry.plugin(), &observed.runtimes)?.file,
        Some(pinned) => match judge::pinned_file(&observed.conf, pinned) {
            Some(name) => name,
            None => {
                plan.problems.push(Problem::WaitingFor { file: pinned.clone(), by: install.pinned_by });
                return None;
            }
        },
    };
    let file = observed.conf.files.get(&name)?;
    if file.kind == FileKind::Link {
        plan.problems.push(Problem::Link(name));
        return None;
    }
    match file.content.as_ref().map(|bytes| (bytes, judge::format_of(&name, bytes))) {
        Ok((bytes, Some(form))) => Some(EntryFile { name, file, bytes, form }),
        _ => {
            plan.problems.push(Problem::WaitingFor { file: name, by: install.pinned_by });
            None
        }
    }
}

/// `shape: dropin`: our plugin in the directory that libcni reads for the primary's network. The primary's file stays
/// unchanged.
fn put_drop_in(observed: &ObservedState, install: &Install, plan: &mut Plan) -> Option<Kept> {
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

/// libcni's rule for network names: a letter or digit, then those and `_`, `.`, `-`.
fn is_network_name(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_.-".contains(letter))
}

/// The version that istio-cni's standalone network has; such a plugin receives no prevResult.
const VERSION: &str = "0.3.1";

/// `shape: standalone`: a network of our own, which Multus selects by name.
fn put_network(
    observed: &ObservedState,
    install: &Install,
    file: &FileName,
    plan: &mut Plan,
) -> Option<Kept> {
    let mut bytes = install.entry.print_network(VERSION, NETWORK, &Layout::plain());
    bytes.push(b'\n');
    let kept = Some(Kept { files: vec![file.clone()], network: None });
    let (access, instead_of) = match observed.conf.files.get(file) {
        None => (NewAccess::Ours(install.mode), None),
        Some(there) if there.kind == FileKind::Link => {
            plan.problems.push(Problem::Link(file.clone()));
            return None;
        }
        Some(there) => {
            let Some(theirs) = there.content.as_ref().ok().filter(|text| may_write(install, text)) else {
                plan.problems.push(Problem::NotOurs(file.clone()));
                return None;
            };
            if has_same_value(&bytes, theirs) {
                return kept;
            }
            if is_of_istio(theirs) {
                // A copy of the file allows uninstall to restore istio-cni's network.
                plan.changes.extend(set_aside(observed, file));
            }
            (NewAccess::Like(file.clone(), there.access), Some(theirs.clone()))
        }
    };
    plan.changes.push(Change::Write { file: file.clone(), bytes, access, instead_of });
    kept
}

fn has_same_value(ours: &[u8], theirs: &[u8]) -> bool {
    Entry::parse(ours).is_ok_and(|entry| entry.has_same_value(theirs))
}

fn may_write(install: &Install, text: &[u8]) -> bool {
    let ambient = json::parse(text).is_ok_and(|tree| {
        tree.member("ambient_enabled").map(|node| &node.kind) == Some(&JsonKind::Bool(true))
    });
    let of_istio = is_of_istio(text) && install.take_over == TakeOver::Now && !ambient;
    is_network_of(text, install.entry.plugin()) || of_istio
}
