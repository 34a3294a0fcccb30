//! Removes our entry from conf files, and restores each file as it was.

use super::originals;
use super::programs::InstalledIstio;
use super::{Plan, standalone};
use crate::host::change::{Change, NewAccess};
use crate::host::conflist::entry::Entry;
use crate::host::conflist::{ConflistError, ISTIO, IstioEntry, PluginChain, convert};
use crate::host::desired::PutBack;
use crate::host::observe::{ConfFile, FileKind, FileName, Hash, ORIGINAL, ObservedState};
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
    /// Plans the removal from every file that is not `kept`. Links and set-aside originals are never changed.
    pub(super) fn plan_every_file_except(&self, kept: impl Fn(&FileName) -> bool, plan: &mut Plan) {
        for (name, file) in &self.observed.conf.files {
            let is_kept = file.kind == FileKind::Link || name.ends_in(ORIGINAL) || kept(name);
            let (false, Ok(bytes)) = (is_kept, &file.content) else { continue };
            if standalone::is_ours(bytes, self.plugin) {
                self.plan_for_own_network((name, file, bytes), plan);
            } else if let Ok(chain) = PluginChain::read(bytes)
                && chain.entry(self.plugin).is_some()
            {
                self.plan_for_list(&ListedEntry { name, file, bytes, chain }, plan);
            }
        }
    }

    /// Removes a network that is ours alone, or restores istio-cni's in its place.
    fn plan_for_own_network(&self, (name, file, bytes): (&FileName, &ConfFile, &Vec<u8>), plan: &mut Plan) {
        let change = match self.istio_original(name, standalone::is_of_istio, plan) {
            None => Change::Remove { file: name.clone(), bytes: bytes.clone() },
            Some(theirs) => Change::Write {
                file: name.clone(),
                bytes: theirs.clone(),
                access: NewAccess::Like(name.clone(), file.access),
                instead_of: Some(bytes.clone()),
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
            originals::of(self.observed, name).filter(|original| original.is_trusted(self.observed))?;
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
        let unlisted = convert::unlisted(held.bytes, self.plugin);
        let singles = originals::singles_of(held.name);
        let original = originals::of_list(self.observed, held.name);
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
