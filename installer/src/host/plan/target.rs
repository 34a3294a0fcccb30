//! Selects the file for our entry with `shape: chained`.

use super::Plan;
use crate::host::conflist::PluginChain;
use crate::host::desired::Install;
use crate::host::json::{self, JsonValue};
use crate::host::judge;
use crate::host::libcni::FileFormat;
use crate::host::observe::{ConfFile, FileKind, FileName, ObservedState};
use crate::host::problem::Problem;

use super::originals;

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
        Some(pinned) => match pinned_file(observed, pinned) {
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
    match file.content.as_ref().map(|bytes| (bytes, form(&name, bytes))) {
        Ok((bytes, Some(form))) => Some(Target { name, file, bytes, form }),
        _ => {
            plan.problems.push(Problem::WaitingFor { file: name, by: install.pinned_by });
            None
        }
    }
}

/// Finds the pinned file. As with istio-cni, a name that ends in `.conf` also selects the `.conflist` if only that
/// exists, and the reverse.
fn pinned_file(observed: &ObservedState, pinned: &FileName) -> Option<FileName> {
    let single = pinned.ended(".conflist", ".conf");
    let names = [pinned.clone()].into_iter().chain(originals::as_list(pinned)).chain(single);
    names.into_iter().find(|name| observed.conf.files.contains_key(name))
}

/// A pinned file may have any name, so its content decides; none if it contains no network.
fn form(name: &FileName, bytes: &[u8]) -> Option<FileFormat> {
    let tree = json::parse(bytes).ok()?;
    let is_single = tree.field("type").and_then(JsonValue::as_text).is_some();
    match FileFormat::of(name.as_os_str()) {
        Some(FileFormat::List) => Some(FileFormat::List),
        Some(FileFormat::Single) if is_single => Some(FileFormat::Single),
        _ if PluginChain::read(bytes).is_ok() => Some(FileFormat::List),
        _ if is_single => Some(FileFormat::Single),
        _ => None,
    }
}
