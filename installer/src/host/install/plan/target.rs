//! Selects the file for our entry with `shape: chained`.

use super::Plan;
use crate::host::install::change::Problem;
use crate::host::install::conflist::Chain;
use crate::host::install::json::{self, Node};
use crate::host::install::judge;
use crate::host::install::loads::Form;
use crate::host::install::seen::{FileKind, FileName, SeenFile, Snapshot};
use crate::host::install::wanted::Install;

use super::originals;

#[derive(Debug, Clone)]
pub(super) struct Target<'a> {
    pub(super) name: FileName,
    pub(super) file: &'a SeenFile,
    pub(super) bytes: &'a [u8],
    pub(super) form: Form,
}

/// The pinned file, or the one that the runtime uses.
pub(super) fn target<'a>(
    seen: &'a Snapshot,
    install: &Install,
    pinned: Option<&FileName>,
    plan: &mut Plan,
) -> Option<Target<'a>> {
    let name = match pinned {
        None => judge::primary(&seen.conf, install.entry.plugin(), &seen.runtimes)?.file,
        Some(pinned) => match pinned_file(seen, pinned) {
            Some(name) => name,
            None => {
                plan.problems.push(Problem::WaitingFor { file: pinned.clone(), by: install.pinned_by });
                return None;
            }
        },
    };
    let file = seen.conf.files.get(&name)?;
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

/// As with istio-cni, `.conf` stands for `.conflist` where only that exists, and the reverse.
fn pinned_file(seen: &Snapshot, pinned: &FileName) -> Option<FileName> {
    let single = pinned.ended(".conflist", ".conf");
    let names = [pinned.clone()].into_iter().chain(originals::as_list(pinned)).chain(single);
    names.into_iter().find(|name| seen.conf.files.contains_key(name))
}

/// A pinned file may have any name, so its content decides; none if it holds no network.
fn form(name: &FileName, bytes: &[u8]) -> Option<Form> {
    let tree = json::parse(bytes).ok()?;
    let is_single = tree.field("type").and_then(Node::as_text).is_some();
    match Form::of(name.as_os_str()) {
        Some(Form::List) => Some(Form::List),
        Some(Form::Single) if is_single => Some(Form::Single),
        _ if Chain::read(bytes).is_ok() => Some(Form::List),
        _ if is_single => Some(Form::Single),
        _ => None,
    }
}
