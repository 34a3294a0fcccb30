//! Plans our entry for each shape: in the primary's chain, in a network of our own, or as a drop-in.

use std::ffi::OsStr;

use super::{Kept, Plan};
use crate::host::change::{Change, NewAccess};
use crate::host::conflist::entry::{Entry, EntryLayout};
use crate::host::conflist::{
    self, ConflistError, ISTIO, IstioEntry, NETWORK, PluginChain, as_list, is_network_of,
};
use crate::host::desired::{Install, Shape, TakeOver};
use crate::host::json::{self, JsonKind};
use crate::host::judge::{EntrySite, EntryTarget};
use crate::host::observe::{ConfFile, DROP_IN, FileFormat, FileKind, FileName, ORIGINAL, ObservedState};
use crate::host::problem::Problem;

/// Plans the entry, and returns where it then is; none while the right file for it is unknown.
pub(super) fn put(
    observed: &ObservedState,
    install: &Install,
    shape: &Shape,
    site: &EntrySite<'_>,
    plan: &mut Plan,
) -> Option<Kept> {
    match shape {
        Shape::Chained { pinned } => put_in_chain(observed, install, pinned.as_ref(), site, plan),
        Shape::Standalone { file } => put_network(observed, install, file, plan),
        Shape::DropIn => put_drop_in(observed, install, site, plan),
    }
}

/// `shape: chained`: our entry as the last one of the primary plugin's chain. Returns none if there is no file for the
/// entry, or if it may not be written now: a chain that names a program which the runtime does not find fails every pod.
fn put_in_chain(
    observed: &ObservedState,
    install: &Install,
    pinned: Option<&FileName>,
    site: &EntrySite<'_>,
    plan: &mut Plan,
) -> Option<Kept> {
    let target = match target(install, pinned, site)? {
        Ok(target) => target,
        Err(problem) => {
            plan.problems.push(problem);
            return None;
        }
    };
    let chaining = Chaining { observed, install, is_pinned: pinned.is_some(), target };
    if !chaining.has(install.entry.plugin()) && site.is_unconfirmed {
        return None;
    }
    match chaining.steps() {
        Ok((list, steps)) => {
            plan.changes.extend(steps);
            Some(Kept { files: vec![list, chaining.target.name], ..Kept::default() })
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
    is_pinned: bool,
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
        let usable = |list: &FileName| self.is_free(list) && (self.is_pinned || !self.is_overtaken(list));
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

    fn in_place(&self, bytes: Vec<u8>) -> Vec<Change> {
        let mut steps = Vec::new();
        if bytes == self.target.bytes {
            return steps;
        }
        if self.has(ISTIO) {
            // A copy of the file allows uninstall to restore istio-cni's entry.
            steps.extend(set_aside(self.observed, &self.target.name, self.target.file));
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
                let is_set_aside = self.observed.conf.files.contains_key(&self.target.name.with(ORIGINAL));
                PluginChain::read(bytes).is_ok_and(|chain| {
                    chain.unlisted(plugin).is_some() || (is_set_aside && chain.entry(plugin).is_some())
                })
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

/// Returns the file for our entry, or the problem that prevents a write now; none without a primary or pinned file.
fn target<'a>(
    install: &Install,
    pinned: Option<&FileName>,
    site: &EntrySite<'a>,
) -> Option<Result<EntryFile<'a>, Problem>> {
    let waiting_for = |file: &FileName| Problem::WaitingFor { file: file.clone(), by: install.pinned_by };
    let Some(EntryTarget { name, file, format }) = &site.target else {
        return pinned.map(|pinned| Err(waiting_for(pinned)));
    };
    Some(match (file.kind, file.content.as_ref(), *format) {
        (FileKind::Link, ..) => Err(Problem::Link(name.clone())),
        (_, Ok(bytes), Some(form)) => Ok(EntryFile { name: name.clone(), file, bytes, form }),
        _ => Err(waiting_for(name)),
    })
}

/// Copies `name` aside before other content is written to it.
fn set_aside(observed: &ObservedState, name: &FileName, file: &ConfFile) -> Option<Change> {
    let (aside, bytes) = (name.with(ORIGINAL), file.content.clone().ok()?);
    let instead_of = observed.conf.files.get(&aside).and_then(|there| there.content.clone().ok());
    let access = NewAccess::Like(name.clone(), file.access);
    (instead_of.as_ref() != Some(&bytes)).then_some(Change::Write { file: aside, bytes, access, instead_of })
}

/// `shape: dropin`: our plugin in the directory that libcni reads for the primary's network. The primary's file stays
/// unchanged.
fn put_drop_in(
    observed: &ObservedState,
    install: &Install,
    site: &EntrySite<'_>,
    plan: &mut Plan,
) -> Option<Kept> {
    let primary = site.network.as_ref()?;
    let Some(network) = primary.network.own_directory() else {
        plan.problems.push(Problem::NoDropIns(primary.file.clone()));
        return None;
    };
    let there = observed.conf.networks.get(&network).and_then(|files| files.get(OsStr::new(DROP_IN)));
    if there.is_none() && site.is_unconfirmed {
        return None;
    }
    let right = there
        .and_then(|file| file.content.as_ref().ok())
        .is_some_and(|text| install.entry.has_same_value(text));
    if !right {
        let mut bytes = install.entry.print(&EntryLayout::plain());
        bytes.push(b'\n');
        plan.changes.push(Change::WriteDropIn { network: network.clone(), bytes, mode: install.mode });
    }
    Some(Kept { network: Some(network), replaced: Some(primary.file.clone()), ..Kept::default() })
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
    let mut bytes = install.entry.print_network(VERSION, NETWORK, &EntryLayout::plain());
    bytes.push(b'\n');
    let kept = Some(Kept { files: vec![file.clone()], ..Kept::default() });
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
            if is_network_of(theirs, ISTIO) {
                // A copy of the file allows uninstall to restore istio-cni's network.
                plan.changes.extend(set_aside(observed, file, there));
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
    let of_istio = is_network_of(text, ISTIO)
        && install.take_over == TakeOver::Now
        && (!ambient || install.entry.serves_ambient());
    is_network_of(text, install.entry.plugin()) || of_istio
}
