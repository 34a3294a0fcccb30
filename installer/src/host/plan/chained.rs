//! `shape: chained`: our entry as the last one of the primary plugin's chain.

use super::originals;
use super::target::{Target, target};
use super::{Kept, Plan};
use crate::host::change::{Change, NewAccess};
use crate::host::conflist::convert::{self, as_list};
use crate::host::conflist::{ConflistError, ISTIO, IstioEntry, PluginChain};
use crate::host::desired::{Install, TakeOver};
use crate::host::judge::{self, JudgeInput};
use crate::host::libcni::choice::ChosenNetwork;
use crate::host::libcni::{FileFormat, network};
use crate::host::observe::{ConfFile, FileName, ORIGINAL, ObservedState};
use crate::host::problem::Problem;

/// Returns none if there is no file for the entry, or if it may not be written now: a chain that names a
/// program which the runtime does not find fails every pod.
pub(super) fn put(
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
    target: Target<'a>,
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
            FileFormat::Single => convert::listed(self.target.bytes, &self.install.entry),
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
            steps.extend(originals::set_aside(self.observed, &self.target.name));
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
                let set_aside = originals::of(self.observed, &self.target.name).is_some();
                convert::unlisted(bytes, plugin).is_some() || (names_us && set_aside)
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
