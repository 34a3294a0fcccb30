//! `shape: standalone`: a network of our own, which Multus selects by name.

use super::{Kept, Plan, originals};
use crate::host::change::{Change, NewAccess};
use crate::host::conflist::ISTIO;
use crate::host::conflist::entry::{Entry, Layout};
use crate::host::desired::{Install, TakeOver};
use crate::host::json::{self, JsonValue};
use crate::host::observe::{FileKind, FileName, ObservedState};
use crate::host::problem::Problem;

/// The version that istio-cni's standalone network has; such a plugin receives no prevResult.
const VERSION: &str = "0.3.1";

/// The network name that pods request: Istio's injector writes `k8s.v1.cni.cncf.io/networks: default/istio-cni`
/// on pods (docs/ISTIO.md, section 5), and Multus uses the file whose network has that very name (multus-cni,
/// `getCNIConfigFromFile`).
const NETWORK: &str = ISTIO;

pub(super) fn put(
    observed: &ObservedState,
    install: &Install,
    file: &FileName,
    plan: &mut Plan,
) -> Option<Kept> {
    let mut bytes = install.entry.print_network(VERSION, NETWORK, &Layout::plain());
    bytes.push(b'\n');
    let kept = Some(Kept { files: vec![file.clone()], network: None });
    let (access, instead_of) = match observed.conf.files.get(file) {
        None => (NewAccess::Ours(install.mode), None),
        Some(there) if there.kind == FileKind::Link => {
            plan.problems.push(Problem::Link(file.clone()));
            return None;
        }
        Some(there) => {
            let Some(theirs) = there.content.as_ref().ok().filter(|text| may_write(install, text)) else {
                plan.problems.push(Problem::NotOurs(file.clone()));
                return None;
            };
            if has_same_value(&bytes, theirs) {
                return kept;
            }
            if is_of_istio(theirs) {
                // A copy of the file allows uninstall to restore istio-cni's network.
                plan.changes.extend(originals::set_aside(observed, file));
            }
            (NewAccess::Like(file.clone(), there.access), Some(theirs.clone()))
        }
    };
    plan.changes.push(Change::Write { file: file.clone(), bytes, access, instead_of });
    kept
}

fn has_same_value(ours: &[u8], theirs: &[u8]) -> bool {
    Entry::parse(ours).is_ok_and(|entry| entry.has_same_value(theirs))
}

fn may_write(install: &Install, text: &[u8]) -> bool {
    let ambient = json::parse(text).is_ok_and(|tree| {
        tree.member("ambient_enabled").map(|node| &node.kind) == Some(&json::JsonKind::Bool(true))
    });
    let of_istio = is_of_istio(text) && install.take_over == TakeOver::Now && !ambient;
    is_of(text, install.entry.plugin()) || of_istio
}

/// Reports whether a file is a network of istio-cni's plugin alone.
pub(super) fn is_of_istio(text: &[u8]) -> bool {
    is_of(text, ISTIO)
}

fn is_of(text: &[u8], plugin: &str) -> bool {
    json::parse(text).is_ok_and(|tree| tree.field("type").and_then(JsonValue::as_text) == Some(plugin))
}

/// Reports whether a file is a network of that one plugin under our network name: only Gybe writes that.
pub(super) fn is_ours(bytes: &[u8], plugin: &str) -> bool {
    let has =
        |tree: &JsonValue, key: &str, text: &str| tree.member(key).and_then(JsonValue::as_text) == Some(text);
    json::parse(bytes).is_ok_and(|tree| has(&tree, "type", plugin) && has(&tree, "name", NETWORK))
}
