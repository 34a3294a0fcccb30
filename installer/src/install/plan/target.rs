//! Which file our entry belongs into.

use std::ffi::OsStr;

use super::Plan;
use crate::install::change::Problem;
use crate::install::conflist::{Chain, ISTIO};
use crate::install::json::{self, Node};
use crate::install::loads::Form;
use crate::install::loads::choice::{Broken, Choice, Why, candidates};
use crate::install::seen::{FileKind, FileName, SeenFile, Snapshot, Unreadable};

use super::originals;

/// The file, and its bytes.
#[derive(Debug, Clone)]
pub(super) struct Target<'a> {
    pub(super) name: FileName,
    pub(super) file: &'a SeenFile,
    pub(super) bytes: &'a [u8],
    pub(super) form: Form,
}

/// The first file a runtime can load: the one containerd takes once no broken one stands before it,
/// and CRI-O in any case. A network of nothing but a mesh's plugin is nobody's primary.
pub(super) fn primary(seen: &Snapshot, plugin: &str, plan: &mut Plan) -> Option<Choice> {
    for candidate in candidates(&seen.conf) {
        match candidate {
            Ok(choice) if choice.network.plugins.iter().all(|kind| is_of_a_mesh(kind, plugin)) => {}
            Ok(choice) => return Some(choice),
            Err(Broken { file, why: Why::Unreadable(Unreadable::TooLarge(length)) }) => {
                plan.problems.push(Problem::TooLarge { file, length });
                return None;
            }
            Err(broken) => plan.problems.push(Problem::Broken(broken)),
        }
    }
    plan.problems.push(Problem::Waiting);
    None
}

/// Whether it is ours or istio-cni's, which make no network.
fn is_of_a_mesh(kind: &str, plugin: &str) -> bool {
    kind == plugin || kind == ISTIO
}

/// Where none of the primary's plugins is, the runtime does not look for ours either (F37). Nothing is
/// to be seen of a primary that Multus calls, or that has not written its file.
pub(crate) fn alone(seen: &Snapshot, plugin: &str) -> Option<Problem> {
    let theirs = |choice: Choice| {
        let plugins = choice.network.plugins.into_iter().filter(|kind| !is_of_a_mesh(kind, plugin));
        (choice.file, plugins.collect::<Vec<_>>())
    };
    let mut primaries = candidates(&seen.conf).flatten().map(theirs);
    let (file, plugins) = primaries.find(|(_, plugins)| !plugins.is_empty())?;
    let is_there = |kind: &String| seen.programs.names.contains(OsStr::new(kind));
    (!plugins.iter().any(is_there)).then_some(Problem::Alone { file, plugins })
}

/// The runtime's file, or the one that is pinned.
pub(super) fn target<'a>(
    seen: &'a Snapshot,
    plugin: &str,
    pinned: Option<&FileName>,
    plan: &mut Plan,
) -> Option<Target<'a>> {
    let name = match pinned {
        None => primary(seen, plugin, plan)?.file,
        Some(pinned) => match pinned_file(seen, pinned) {
            Some(name) => name,
            None => {
                plan.problems.push(Problem::WaitingFor(pinned.clone()));
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
            plan.problems.push(Problem::WaitingFor(name));
            None
        }
    }
}

/// As the incumbent has it: `.conf` stands for `.conflist` where only that is, and the reverse.
fn pinned_file(seen: &Snapshot, pinned: &FileName) -> Option<FileName> {
    let single = pinned.ended(".conflist", ".conf");
    let names = [pinned.clone()].into_iter().chain(originals::as_list(pinned)).chain(single);
    names.into_iter().find(|name| seen.conf.files.contains_key(name))
}

/// A pinned file may have any name, so what it holds decides; none when it holds no network at all.
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
