//! Converts a `.conf` (one plugin) to a list of that plugin and ours, and back to the original bytes.

use super::{ConflistError, PluginChain};
use crate::host::conflist::entry::{Entry, Layout, layout_of};
use crate::host::json::{self, JsonValue};
use crate::host::observe::FileName;

/// Returns the list that a runtime would make of the one plugin, followed by `entry`: the network's name and version as
/// they were, and the plugin's own text unchanged.
pub fn listed(single: &[u8], entry: &Entry) -> Result<Vec<u8>, ConflistError> {
    let tree = json::parse(single)?;
    let layout = outer_layout(single, &tree);
    let printed = entry.print(&deeper(&layout));
    wrapped(single, &tree, &printed)
}

/// Returns the names that a single file can have as a list. Each sorts after the name of the single file, so a runtime
/// loads the single file for as long as it exists, also if its owner writes it again.
#[must_use]
pub fn as_list(name: &FileName) -> Vec<FileName> {
    let appended = name.with(".conflist");
    match name.ended(".conf", ".conflist") {
        Some(list) => vec![list, appended],
        None if name.ends_in(".json") || name.as_os_str() == ".json" => vec![appended],
        None => Vec::new(),
    }
}

/// Returns the original file of a list that `listed` made; none if the list has been changed since.
#[must_use]
pub fn unlisted(list: &[u8], plugin: &str) -> Option<Vec<u8>> {
    let tree = json::parse(list).ok()?;
    let [single, ours] = tree.member("plugins")?.as_array()? else { return None };
    let ours_text = PluginChain::read(list).ok()?.entry(plugin)?;
    if json::text(list, &ours.span) != ours_text {
        return None;
    }
    let mut original = json::text(list, &(0..tree.span.start)).to_vec();
    original.extend_from_slice(json::text(list, &single.span));
    original.extend_from_slice(json::text(list, &(tree.span.end..list.len())));
    let again = json::parse(&original).ok()?;
    let same = wrapped(&original, &again, ours_text).ok()?;
    (same == list).then_some(original)
}

/// Makes the list. White space around the single plugin's object stays around the list.
fn wrapped(single: &[u8], tree: &JsonValue, entry: &[u8]) -> Result<Vec<u8>, ConflistError> {
    if !tree.is_object() {
        return Err(ConflistError::NoPlugins);
    }
    let name = tree.member("name").filter(|name| name.as_text().is_some_and(|name| !name.is_empty()));
    let name = name.ok_or(ConflistError::NoName)?;
    let version = tree.member("cniVersion").filter(|version| version.as_text().is_some());
    let layout = outer_layout(single, tree);
    let mut out = json::text(single, &(0..tree.span.start)).to_vec();
    out.push(b'{');
    for (key, node) in [("\"cniVersion\": ", version), ("\"name\": ", Some(name))] {
        let Some(node) = node else { continue };
        layout.line(1, &mut out);
        out.extend_from_slice(key.as_bytes());
        out.extend_from_slice(json::text(single, &node.span));
        out.push(b',');
    }
    layout.line(1, &mut out);
    out.extend_from_slice(b"\"plugins\": [");
    layout.line(2, &mut out);
    out.extend_from_slice(json::text(single, &tree.span));
    out.push(b',');
    layout.line(2, &mut out);
    out.extend_from_slice(entry);
    layout.line(1, &mut out);
    out.push(b']');
    layout.line(0, &mut out);
    out.push(b'}');
    out.extend_from_slice(json::text(single, &(tree.span.end..single.len())));
    Ok(out)
}

fn outer_layout(single: &[u8], tree: &JsonValue) -> Layout {
    match layout_of(single, &tree.span) {
        Layout::Lines { newline, unit, .. } => Layout::Lines { newline, base: Vec::new(), unit },
        Layout::OneLine => Layout::OneLine,
    }
}

fn deeper(layout: &Layout) -> Layout {
    match layout {
        Layout::Lines { newline, unit, .. } => {
            Layout::Lines { newline: newline.clone(), base: unit.repeat(2), unit: unit.clone() }
        }
        Layout::OneLine => Layout::OneLine,
    }
}
