//! Originals: files that Gybe set aside so that uninstall can restore them, as `<name>.gybe-original` in the
//! same directory.
//!
//! They survive a reboot, stay with the directory, and no runtime loads a file with this suffix.

use super::Plan;
use crate::host::change::{Change, NewAccess};
use crate::host::conflist::PluginChain;
use crate::host::conflist::convert::{self, as_list};
use crate::host::observe::{ConfFile, FileKind, FileName, ORIGINAL, ObservedState};

/// A file that was set aside.
#[derive(Debug, Clone)]
pub(super) struct Original<'a> {
    /// Its current name.
    pub(super) aside: FileName,
    /// The name under which it is restored.
    pub(super) name: FileName,
    pub(super) file: &'a ConfFile,
}

/// Returns the names of the single files that can have been converted to a list of this name.
pub(super) fn singles_of(list: &FileName) -> Vec<FileName> {
    let singles = ["", ".conf"].iter().filter_map(|ending| list.ended(".conflist", ending));
    singles.filter(|single| as_list(single).contains(list)).collect()
}

/// The original of `name`.
pub(super) fn of<'a>(observed: &'a ObservedState, name: &FileName) -> Option<Original<'a>> {
    let aside = name.with(ORIGINAL);
    let file = observed.conf.files.get(&aside)?;
    Some(Original { aside, name: name.clone(), file })
}

/// The original of the single file that `list` was made from.
pub(super) fn of_list<'a>(observed: &'a ObservedState, list: &FileName) -> Option<Original<'a>> {
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

/// Copies `name` aside before other content is written to it.
pub(super) fn set_aside(observed: &ObservedState, name: &FileName) -> Option<Change> {
    let file = observed.conf.files.get(name)?;
    let (aside, bytes) = (name.with(ORIGINAL), file.content.clone().ok()?);
    let instead_of = observed.conf.files.get(&aside).and_then(|there| there.content.clone().ok());
    let access = NewAccess::Like(name.clone(), file.access);
    (instead_of.as_ref() != Some(&bytes)).then_some(Change::Write { file: aside, bytes, access, instead_of })
}

impl Original<'_> {
    /// Reports whether `list` without our entry has the original's bytes.
    pub(super) fn is_inside(&self, list: &ConfFile) -> bool {
        let (Ok(list), Ok(original)) = (&list.content, &self.file.content) else { return false };
        let ours = |plugin: &str| {
            convert::unlisted(list, plugin).as_ref() == Some(original)
                || PluginChain::read(list).and_then(|chain| chain.without(plugin)).as_ref() == Ok(original)
        };
        let plugins =
            PluginChain::read(list).map(|chain| chain.plugins().last().map(|last| (*last).to_owned()));
        self.file.kind == FileKind::Regular && plugins.ok().flatten().is_some_and(|last| ours(&last))
    }

    /// Renames it back.
    pub(super) fn bring_back(&self) -> Option<Change> {
        let bytes = self.file.content.clone().ok()?;
        Some(Change::Move { from: self.aside.clone(), to: self.name.clone(), bytes })
    }

    /// Reports whether only this process's user can have written it.
    pub(super) fn is_trusted(&self, observed: &ObservedState) -> bool {
        self.file.kind == FileKind::Regular && self.file.access.is_only_of(observed.us)
    }
}

/// Removes originals whose file no longer contains our entry.
pub(super) fn remove_unneeded(observed: &ObservedState, kept: impl Fn(&FileName) -> bool, plan: &mut Plan) {
    for (aside, file) in &observed.conf.files {
        let Some(name) = aside.without(ORIGINAL) else { continue };
        let is_planned = plan.changes.iter().any(|change| match change {
            Change::Move { from, to, .. } => from == aside || to == aside,
            Change::Write { file, .. } | Change::Remove { file, .. } => file == aside,
            _ => false,
        });
        if is_planned || kept(&name) || as_list(&name).iter().any(&kept) {
            continue;
        }
        if let Ok(bytes) = &file.content {
            plan.changes.push(Change::Remove { file: aside.clone(), bytes: bytes.clone() });
        }
    }
}
