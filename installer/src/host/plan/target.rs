//! Selects the file for our entry with `shape: chained`.

use super::Plan;
use crate::host::desired::Install;
use crate::host::judge;
use crate::host::libcni::FileFormat;
use crate::host::observe::{ConfFile, FileKind, FileName, ObservedState};
use crate::host::problem::Problem;

#[derive(Debug, Clone)]
pub(super) struct Target<'a> {
    pub(super) name: FileName,
    pub(super) file: &'a ConfFile,
    pub(super) bytes: &'a [u8],
    pub(super) form: FileFormat,
}

/// The pinned file, or the one that the runtime uses.
pub(super) fn target<'a>(
    observed: &'a ObservedState,
    install: &Install,
    pinned: Option<&FileName>,
    plan: &mut Plan,
) -> Option<Target<'a>> {
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
        Ok((bytes, Some(form))) => Some(Target { name, file, bytes, form }),
        _ => {
            plan.problems.push(Problem::WaitingFor { file: name, by: install.pinned_by });
            None
        }
    }
}
