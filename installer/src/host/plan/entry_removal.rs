//! Removes our entry from conf files, and restores each file as it was.
//!
//! Originals are files that Gybe set aside so that uninstall can restore them, as `<name>.gybe-original` in the same
//! directory. They survive a reboot, stay with the directory, and no runtime loads a file with this suffix.

use std::ffi::OsStr;

use super::{InstalledIstio, Kept, Plan};
use crate::host::change::{Change, NewAccess};
use crate::host::conflist::entry::Entry;
use crate::host::conflist::{
    ConflistError, FileWithEntry, ISTIO, IstioEntry, PluginChain, as_list, is_network_of,
};
use crate::host::desired::PutBack;
use crate::host::observe::{ConfFile, DROP_IN, FileKind, FileName, Hash, ORIGINAL, ObservedState};
use crate::host::problem::Problem;

/// Removes the entry of `plugin` from conf files.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryRemoval<'a> {
    pub(super) observed: &'a ObservedState,
    pub(super) plugin: &'a str,
    pub(super) put_back: PutBack,
    /// The hash of our program under istio-cni's name, if there is one.
    pub(super) stand_in: Option<Hash>,
}

/// Our entry in a file's chain.
struct ListedEntry<'a> {
    name: &'a FileName,
    file: &'a ConfFile,
    bytes: &'a [u8],
    chain: PluginChain<'a>,
}

impl ListedEntry<'_> {
    fn remove(&self) -> Change {
        Change::Remove { file: self.name.clone(), bytes: self.bytes.to_vec() }
    }
}

impl EntryRemoval<'_> {
    /// Plans the removal from every file and network that is not `kept`. Links and set-aside originals are never
    /// changed.
    pub(super) fn plan_all_except(&self, kept: &Kept, plan: &mut Plan) {
        for (name, file) in &self.observed.conf.files {
            let is_kept = file.kind == FileKind::Link || name.ends_in(ORIGINAL) || kept.files.contains(name);
            let (false, Ok(bytes)) = (is_kept, &file.content) else { continue };
            match FileWithEntry::read(bytes, self.plugin) {
                Some(FileWithEntry::OwnNetwork) => self.plan_for_own_network(name, file, bytes, plan),
                Some(FileWithEntry::List(chain)) => {
                    self.plan_for_list(&ListedEntry { name, file, bytes, chain }, plan);
                }
                None => {}
            }
        }
        remove_drop_ins(self.observed, kept.network.as_ref(), plan);
    }

    /// Removes a network that is ours alone, or restores istio-cni's in its place.
    fn plan_for_own_network(&self, name: &FileName, file: &ConfFile, bytes: &[u8], plan: &mut Plan) {
        let change = match self.istio_original(name, |bytes| is_network_of(bytes, ISTIO), plan) {
            None => Change::Remove { file: name.clone(), bytes: bytes.to_vec() },
            Some(theirs) => Change::Write {
                file: name.clone(),
                bytes: theirs.clone(),
                access: NewAccess::Like(name.clone(), file.access),
                instead_of: Some(bytes.to_vec()),
            },
        };
        plan.changes.push(change);
    }

    /// The original from before Gybe replaced istio-cni's entry, where it should and can be restored.
    fn istio_original(
        &self,
        name: &FileName,
        has_istio: impl Fn(&[u8]) -> bool,
        plan: &mut Plan,
    ) -> Option<&Vec<u8>> {
        let original =
            original_of(self.observed, name).filter(|original| original.is_trusted(self.observed))?;
        let before = original.file.content.as_ref().ok()?;
        if self.put_back != PutBack::Istio || !has_istio(before) {
            return None;
        }
        if !self.has_istio_program() {
            plan.problems.push(Problem::IstioGone(name.clone()));
            return None;
        }
        Some(before)
    }

    fn plan_for_list(&self, held: &ListedEntry<'_>, plan: &mut Plan) {
        let unlisted = held.chain.unlisted(self.plugin);
        let singles = singles_of(held.name);
        let original = original_of_list(self.observed, held.name);
        let single_is_back = singles.iter().any(|single| self.observed.conf.files.contains_key(single));
        match original {
            // The primary wrote its single file again, so no other program needs the list.
            _ if single_is_back && (unlisted.is_some() || original.is_some()) => {
                plan.changes.push(held.remove());
            }
            // The single file is restored first: at every moment one of the two loads.
            Some(original) if original.is_inside(held.file) => {
                plan.changes.extend(original.bring_back());
                plan.changes.push(held.remove());
            }
            _ => {
                let without = match unlisted.filter(|_| singles.is_empty()) {
                    Some(single) => Ok(single),
                    None => self.without_entry(held, plan),
                };
                rewrite(held, without, plan);
            }
        }
    }

    /// The file without our entry, and with istio-cni's again where that should and can be restored.
    fn without_entry(&self, held: &ListedEntry<'_>, plan: &mut Plan) -> Result<Vec<u8>, ConflistError> {
        let without = held.chain.without(self.plugin);
        let Some(bytes) = self.istio_original(held.name, |bytes| entry_of_istio(bytes).is_some(), plan)
        else {
            return without;
        };
        if without == PluginChain::read(bytes)?.without(ISTIO) {
            return Ok(bytes.clone());
        }
        let Some(entry) = entry_of_istio(bytes) else { return without };
        PluginChain::read(&held.chain.with(&entry, IstioEntry::Keep)?)?.without(self.plugin)
    }

    fn has_istio_program(&self) -> bool {
        matches!(InstalledIstio::find(self.observed, self.stand_in), Some(InstalledIstio::Own))
    }

    /// Reports files that name our plugin and that no change corrects.
    pub(super) fn report_still_named(&self, plan: &mut Plan) {
        let quoted = format!("\"{}\"", self.plugin);
        for (name, file) in &self.observed.conf.files {
            let changed = plan.changes.iter().any(|change| match change {
                Change::Write { file, .. } | Change::Remove { file, .. } => file == name,
                _ => false,
            });
            let Ok(bytes) = &file.content else { continue };
            let named = bytes.windows(quoted.len()).any(|window| window == quoted.as_bytes());
            if named && !changed && !name.ends_in(ORIGINAL) {
                plan.problems.push(Problem::StillNamed(name.clone(), self.plugin.to_owned()));
            }
        }
        let handlers = self.observed.runtimes.handlers_with_entry.iter().cloned();
        let still_names = |(handler, directory)| Problem::HandlerStillNames { handler, directory };
        plan.problems.extend(handlers.map(still_names));
    }
}

fn entry_of_istio(bytes: &[u8]) -> Option<Entry> {
    Entry::parse(PluginChain::read(bytes).ok()?.entry(ISTIO)?).ok()
}

fn rewrite(held: &ListedEntry<'_>, without: Result<Vec<u8>, ConflistError>, plan: &mut Plan) {
    match without {
        Ok(without) => plan.changes.push(Change::Write {
            file: held.name.clone(),
            bytes: without,
            access: NewAccess::Like(held.name.clone(), held.file.access),
            instead_of: Some(held.bytes.to_vec()),
        }),
        Err(why) => plan.problems.push(Problem::Unchangeable { file: held.name.clone(), why }),
    }
}

/// Removes our file from every network's directory except that of `kept`.
fn remove_drop_ins(observed: &ObservedState, kept: Option<&FileName>, plan: &mut Plan) {
    for (network, files) in &observed.conf.networks {
        if Some(network) != kept && files.contains_key(OsStr::new(DROP_IN)) {
            plan.changes.push(Change::RemoveDropIn { network: network.clone() });
        }
    }
}

/// A file that was set aside.
#[derive(Debug, Clone)]
struct Original<'a> {
    /// Its current name.
    aside: FileName,
    /// The name under which it is restored.
    name: FileName,
    file: &'a ConfFile,
}

/// Returns the names of the single files that can have been converted to a list of this name.
fn singles_of(list: &FileName) -> Vec<FileName> {
    let singles = ["", ".conf"].iter().filter_map(|ending| list.ended(".conflist", ending));
    singles.filter(|single| as_list(single).contains(list)).collect()
}

/// The original of `name`.
fn original_of<'a>(observed: &'a ObservedState, name: &FileName) -> Option<Original<'a>> {
    let aside = name.with(ORIGINAL);
    let file = observed.conf.files.get(&aside)?;
    Some(Original { aside, name: name.clone(), file })
}

/// The original of the single file that `list` was made from.
fn original_of_list<'a>(observed: &'a ObservedState, list: &FileName) -> Option<Original<'a>> {
    let originals = observed.conf.files.iter().filter_map(|(aside, file)| {
        let name = aside.without(ORIGINAL).filter(|name| as_list(name).contains(list))?;
        Some(Original { aside: aside.clone(), name, file })
    });
    // `10-a.conf` and `10-a.conf.conf` can become the same list: prefer the one whose content matches.
    let mut originals: Vec<_> = originals.collect();
    originals
        .sort_by_key(|original| !observed.conf.files.get(list).is_some_and(|list| original.is_inside(list)));
    originals.into_iter().next()
}

impl Original<'_> {
    /// Reports whether `list` without our entry has the original's bytes.
    fn is_inside(&self, list: &ConfFile) -> bool {
        let (Ok(list), Ok(original)) = (&list.content, &self.file.content) else { return false };
        let Ok(chain) = PluginChain::read(list) else { return false };
        let is_without = |ours: &str| {
            chain.unlisted(ours).as_ref() == Some(original) || chain.without(ours).as_ref() == Ok(original)
        };
        self.file.kind == FileKind::Regular && chain.plugins().last().is_some_and(|ours| is_without(ours))
    }

    /// Renames it back.
    fn bring_back(&self) -> Option<Change> {
        let bytes = self.file.content.clone().ok()?;
        Some(Change::Move { from: self.aside.clone(), to: self.name.clone(), bytes })
    }

    /// Reports whether only this process's user can have written it.
    fn is_trusted(&self, observed: &ObservedState) -> bool {
        self.file.kind == FileKind::Regular && self.file.access.is_only_of(observed.us)
    }
}

/// Removes originals whose file no longer contains our entry.
pub(super) fn remove_unneeded_originals(observed: &ObservedState, kept: &Kept, plan: &mut Plan) {
    let is_kept = |name: &FileName| kept.files.contains(name);
    for (aside, file) in &observed.conf.files {
        let Some(name) = aside.without(ORIGINAL) else { continue };
        let is_planned = plan.changes.iter().any(|change| match change {
            Change::Move { from, to, .. } => from == aside || to == aside,
            Change::Write { file, .. } | Change::Remove { file, .. } => file == aside,
            _ => false,
        });
        if is_planned
            || is_kept(&name)
            || kept.replaced.as_ref() == Some(&name)
            || as_list(&name).iter().any(is_kept)
        {
            continue;
        }
        if let Ok(bytes) = &file.content {
            plan.changes.push(Change::Remove { file: aside.clone(), bytes: bytes.clone() });
        }
    }
}
