//! Predicts the observed state after a plan's changes, as far as `judge` needs it.

use std::ffi::OsStr;

use crate::host::change::{Change, NewAccess};
use crate::host::observe::{
    Access, ConfFile, DROP_IN, FileKind, FileName, NamedFile, ObservedState, ProgramFile,
};

pub(super) fn after(observed: &ObservedState, changes: &[Change]) -> ObservedState {
    let mut after = observed.clone();
    let of_us = |mode| Access { mode, uid: observed.us, gid: observed.us };
    for change in changes {
        let (files, programs) = (&mut after.conf.files, &mut after.programs);
        match change {
            Change::PlaceProgram { program } => {
                programs.names.insert(program.name.clone(), NamedFile::Executable);
                let there = ProgramFile { hash: Ok(program.hash), access: of_us(0o755) };
                programs.files.insert(program.name.clone(), there);
            }
            Change::RemoveProgram(name) => {
                programs.names.remove(name);
                programs.files.remove(name);
            }
            Change::Write { file, bytes, access, .. } => {
                let access = match access {
                    NewAccess::Like(_, access) => *access,
                    NewAccess::Ours(mode) => of_us(*mode),
                };
                files.insert(file.clone(), regular(bytes, access));
            }
            Change::Move { from, to, bytes } => {
                let access = files.remove(from).map_or(of_us(0o600), |file| file.access);
                files.insert(to.clone(), regular(bytes, access));
            }
            Change::Remove { file, .. } => drop(files.remove(file)),
            Change::WriteDropIn { network, bytes, mode } => {
                let own = after.conf.networks.entry(network.clone()).or_default();
                own.extend(FileName::new(DROP_IN).map(|name| (name, regular(bytes, of_us(*mode)))));
            }
            Change::RemoveDropIn { network } => {
                let own = after.conf.networks.get_mut(network);
                drop(own.and_then(|files| files.remove(OsStr::new(DROP_IN))));
            }
            Change::Sweep(_) | Change::RemoveLock => {}
        }
    }
    after
}

fn regular(bytes: &[u8], access: Access) -> ConfFile {
    ConfFile { content: Ok(bytes.to_vec()), access, kind: FileKind::Regular }
}
