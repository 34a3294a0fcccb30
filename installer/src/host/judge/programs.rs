//! The programs that a pod needs: our own, which the runtime has to find first and be able to run, and those of other
//! owners.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use super::{JudgeInput, unconfirmed};
use crate::host::desired::Confirmed;
use crate::host::libcni::ChosenNetwork;
use crate::host::observe::runtimes::{ConfiguredDirectory, Runtime, SearchedDirectory};
use crate::host::observe::{DirectoryState, NamedFile};
use crate::host::problem::{OtherProgramFault, Problem, ProgramFault};

/// The plugin that containerd runs for each pod besides its networks (containerd/go-cni, `WithLoNetwork`). CRI-O sets up
/// `lo` itself (ocicni, util_linux.go).
const LOOPBACK: &str = "loopback";

/// Whether another owner's program can be run where that is not visible: a link that leads out of the mounted directory,
/// or a directory that was not listed. It counts as executable, because the runtime sees the host's root and this process
/// does not: otherwise a healthy node with such links would never be ready.
const EXECUTABLE_IF_NOT_VISIBLE: Option<bool> = Some(true);

impl JudgeInput<'_> {
    /// Why the runtime cannot run our own program, or runs another one of its name.
    pub(super) fn own_program(&self) -> Vec<Problem> {
        let paths = &self.runtimes.search_paths;
        let is_noexec = || {
            self.programs.is_noexec
                || paths.iter().flatten().any(|directory| directory.is_ours && directory.is_noexec)
        };
        let fault = self.fault.or_else(|| is_noexec().then_some(ProgramFault::NoExec));
        let fault = fault.filter(|_| self.programs.state == DirectoryState::Present);
        let plugin = self.plugin.to_owned();
        let earlier = paths.iter().flat_map(|path| path.iter().take_while(|directory| !directory.is_ours));
        let mut earlier = earlier.filter(|directory| {
            directory.programs.as_ref().is_some_and(|programs| programs.contains_key(self.plugin))
        });
        let earlier = earlier.next().map(|directory| directory.path.clone());
        let fault = fault.map(|why| Problem::Program { plugin: plugin.clone(), why });
        fault
            .into_iter()
            .chain(earlier.map(|directory| Problem::EarlierProgram { plugin, directory }))
            .collect()
    }

    /// The programs of other owners that a pod of this network needs, and that the runtime does not find or cannot run.
    pub(super) fn other_programs(&self, choice: &ChosenNetwork, runtime: Runtime) -> Vec<Problem> {
        let paths = &self.runtimes.search_paths;
        let is_found_elsewhere = match self.runtimes.plugin_directory {
            ConfiguredDirectory::Named => false,
            // The operator knows where the runtime looks. But CRI-O skips the network, and may use another one.
            _ if self.confirmed == Confirmed::Yes => {
                self.runtimes.possible.iter().any(|possible| possible.runtime != Runtime::CriO)
            }
            ConfiguredDirectory::Others(_) => true,
            _ => unconfirmed(self, choice).is_some(),
        };
        if self.conf.is_of_multus || is_found_elsewhere || self.programs.state != DirectoryState::Present {
            return Vec::new();
        }
        let network = &choice.network;
        let has_lo = runtime == Runtime::CriO || self.runtimes.has_internal_loopback;
        let loopback = (!has_lo).then_some(LOOPBACK);
        let mut needed: BTreeSet<&str> = network.plugins.iter().map(String::as_str).collect();
        needed.extend(network.delegates.iter().map(String::as_str).chain(loopback));
        needed.remove(self.plugin);
        let fault = |program: &&str| match paths.as_slice() {
            [] => self.fault_of(program, &[]),
            paths => paths.iter().find_map(|path| self.fault_of(program, path)),
        };
        let problem = |program: &str, why| Problem::OtherProgram {
            file: choice.file.clone(),
            program: program.to_owned(),
            why,
        };
        needed.iter().filter_map(|program| Some(problem(program, fault(program)?))).collect()
    }

    /// Why a runtime with this search path cannot run another owner's program. libcni takes the first file of that name
    /// (libcni, pkg/invoke/find.go).
    fn fault_of(&self, program: &str, path: &[SearchedDirectory]) -> Option<OtherProgramFault> {
        let here = |listed: Option<bool>| match self.programs.names.get(OsStr::new(program)) {
            Some(NamedFile::Executable) => Some(true),
            Some(NamedFile::NotExecutable) => Some(false),
            Some(NamedFile::Elsewhere) => listed,
            None => None,
        };
        let is_executable = match path {
            [] => here(EXECUTABLE_IF_NOT_VISIBLE),
            path => path.iter().find_map(|directory| {
                let listed = directory
                    .programs
                    .as_ref()
                    .map_or(EXECUTABLE_IF_NOT_VISIBLE, |it| it.get(program).copied());
                let found = if directory.is_ours { here(listed) } else { listed };
                // That nothing in our own directory can be run is another problem.
                found.map(|is_executable| is_executable && (directory.is_ours || !directory.is_noexec))
            }),
        };
        match is_executable {
            Some(true) => None,
            Some(false) => Some(OtherProgramFault::NotExecutable),
            None if path.is_empty() => Some(OtherProgramFault::NotHere),
            None => Some(OtherProgramFault::Missing),
        }
    }
}
