//! Inserts, replaces and removes one plugin's entry in a conflist; every other byte of the file stays.
//!
//! Converts a `.conf` (one plugin) to a list of that plugin and ours, and back to the original bytes.
//! `plan` decides which file that is, and whether it is written.

pub mod entry;

use std::ops::Range;

use super::json::{self, JsonError, JsonKind, JsonValue};
use super::observe::FileName;
use entry::{Entry, EntryLayout, layout_of};

pub const ISTIO: &str = "istio-cni";
/// The network name that pods request: Istio's injector writes `k8s.v1.cni.cncf.io/networks: default/istio-cni`
/// on pods (docs/ISTIO.md, section 5), and Multus uses the file whose network has that very name (multus-cni,
/// `getCNIConfigFromFile`).
pub const NETWORK: &str = ISTIO;

/// Why a file's chain cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConflistError {
    /// Another owner's broken file, which is never rewritten.
    #[error("the file cannot be parsed")]
    NotJson(#[from] JsonError),
    #[error("the file has no list of plugins")]
    NoPlugins,
    /// Without this entry the list has no plugins, and a list without plugins is no network.
    #[error("\"{0}\" is the only plugin of the list, which cannot be left empty")]
    NothingElse(String),
    /// Without ambient mode of ours, its pods would start without redirection.
    #[error("its istio-cni entry serves ambient mode, which is off in Gybe's settings")]
    Ambient,
    /// A list needs a name, and Gybe does not invent one.
    #[error("the file has no network name")]
    NoName,
}

/// Whether an istio-cni entry is replaced by ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IstioEntry {
    /// It stays unchanged.
    Keep,
    /// Our entry replaces it in the same write.
    Replace,
}

/// The plugins of a list, with their positions in the file.
#[derive(Debug, Clone)]
pub struct PluginChain<'a> {
    bytes: &'a [u8],
    /// The object in the file; white space may surround it.
    span: Range<usize>,
    /// The position after the opening bracket.
    start: usize,
    links: Vec<ChainLink>,
}

#[derive(Debug, Clone)]
struct ChainLink {
    span: Range<usize>,
    plugin: Option<String>,
    ambient: bool,
}

type Edit = (Range<usize>, Vec<u8>);

impl<'a> PluginChain<'a> {
    /// Finds the list of plugins in a file.
    pub fn read(bytes: &'a [u8]) -> Result<Self, ConflistError> {
        Self::of(bytes, &json::parse(bytes)?)
    }

    fn of(bytes: &'a [u8], tree: &JsonValue) -> Result<Self, ConflistError> {
        let plugins = tree.member("plugins").ok_or(ConflistError::NoPlugins)?;
        let elements = plugins.as_array().ok_or(ConflistError::NoPlugins)?;
        let links = elements.iter().map(ChainLink::of).collect();
        Ok(Self { bytes, span: tree.span.clone(), start: plugins.span.start + 1, links })
    }

    /// The types of its plugins, in order.
    #[must_use]
    pub fn plugins(&self) -> Vec<&str> {
        self.links.iter().filter_map(|link| link.plugin.as_deref()).collect()
    }

    /// Reports whether an istio-cni entry in it serves ambient mode.
    #[must_use]
    pub fn is_ambient(&self) -> bool {
        self.links.iter().any(|link| link.is(ISTIO) && link.ambient)
    }

    /// The text of the last entry of that type.
    #[must_use]
    pub fn entry(&self, plugin: &str) -> Option<&'a [u8]> {
        self.entries(plugin).next_back()
    }

    /// The texts of the entries of that type: a runtime runs each.
    pub fn entries(&self, plugin: &str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        self.links.iter().filter(move |link| link.is(plugin)).map(|link| json::text(self.bytes, &link.span))
    }

    /// The file with `entry` exactly once, as the last one of the chain; the same bytes if it is so already.
    pub fn with(&self, entry: &Entry, istio: IstioEntry) -> Result<Vec<u8>, ConflistError> {
        let goes =
            |link: &ChainLink| link.is(entry.plugin()) || (istio == IstioEntry::Replace && link.is(ISTIO));
        if self.links.iter().any(|link| goes(link) && link.is(ISTIO) && link.ambient)
            && !entry.serves_ambient()
        {
            return Err(ConflistError::Ambient);
        }
        let mut gone: Vec<bool> = self.links.iter().map(goes).collect();
        let in_place = self.links.last().filter(|link| goes(link)).map(|link| link.span.clone());
        if let (Some(_), Some(last)) = (&in_place, gone.last_mut()) {
            *last = false;
        }
        let mut edits = self.removals(&gone);
        match in_place {
            Some(span) => edits.extend(self.replacement(entry, span)),
            None => edits.push(self.addition(entry)),
        }
        Ok(self.edited(edits))
    }

    /// The file without any entry of that type; the same bytes if it has none.
    pub fn without(&self, plugin: &str) -> Result<Vec<u8>, ConflistError> {
        let gone: Vec<bool> = self.links.iter().map(|link| link.is(plugin)).collect();
        if !gone.is_empty() && gone.iter().all(|gone| *gone) {
            return Err(ConflistError::NothingElse(plugin.to_owned()));
        }
        Ok(self.edited(self.removals(&gone)))
    }

    /// The original file of a list that [`listed`] made; none if the list has been changed since.
    #[must_use]
    pub fn unlisted(&self, plugin: &str) -> Option<Vec<u8>> {
        let [single, ours] = self.links.as_slice() else { return None };
        let text = |span: Range<usize>| json::text(self.bytes, &span);
        let (before, after) = (text(0..self.span.start), text(self.span.end..self.bytes.len()));
        let original = [before, text(single.span.clone()), after].concat();
        let again = wrapped(&original, |_| text(ours.span.clone()).to_vec()).ok()?;
        (ours.is(plugin) && again == self.bytes).then_some(original)
    }

    /// Computes the removals. An entry is removed with the comma before it; entries before the first one that
    /// stays are removed with the comma after them. So `without` removes exactly the bytes that `with` added.
    fn removals(&self, gone: &[bool]) -> Vec<Edit> {
        let spans: Vec<&Range<usize>> = self.links.iter().map(|link| &link.span).collect();
        let mut edits = Vec::new();
        let mut one_stays = false;
        for (n, (span, gone)) in spans.iter().zip(gone).enumerate() {
            let from = n.checked_sub(1).and_then(|n| spans.get(n)).map_or(span.start, |before| before.end);
            let to = spans.get(n + 1).map_or(span.end, |after| after.start);
            match (gone, one_stays) {
                (true, true) => edits.push((from..span.end, Vec::new())),
                (true, false) => edits.push((span.start..to, Vec::new())),
                (false, _) => one_stays = true,
            }
        }
        edits
    }

    fn replacement(&self, entry: &Entry, span: Range<usize>) -> Option<Edit> {
        if entry.has_same_value(json::text(self.bytes, &span)) {
            return None;
        }
        let text = entry.print(&layout_of(self.bytes, &span));
        Some((span, text))
    }

    fn addition(&self, entry: &Entry) -> Edit {
        let Some(last) = self.links.last() else {
            return (self.start..self.start, entry.print(&EntryLayout::OneLine));
        };
        let before = match self.links.len().checked_sub(2).and_then(|n| self.links.get(n)) {
            Some(previous) => previous.span.end..last.span.start,
            None => self.start..last.span.start,
        };
        // Between two plugins there are a comma and white space; reuse only the white space after the comma.
        let gap = json::text(self.bytes, &before);
        let blanks = gap.rsplit(|byte| *byte == b',').next().unwrap_or_default();
        let mut text = b",".to_vec();
        text.extend_from_slice(blanks);
        text.extend(entry.print(&layout_of(self.bytes, &last.span)));
        (last.span.end..last.span.end, text)
    }

    fn edited(&self, edits: Vec<Edit>) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes.len());
        let mut at = 0;
        for (span, text) in edits {
            out.extend_from_slice(json::text(self.bytes, &(at..span.start)));
            out.extend(text);
            at = span.end;
        }
        out.extend_from_slice(json::text(self.bytes, &(at..self.bytes.len())));
        out
    }
}

impl ChainLink {
    fn of(node: &JsonValue) -> Self {
        let plugin = node.field("type").and_then(JsonValue::as_text).map(str::to_owned);
        let ambient =
            node.member("ambient_enabled").is_some_and(|value| matches!(value.kind, JsonKind::Bool(true)));
        Self { span: node.span.clone(), plugin, ambient }
    }

    fn is(&self, plugin: &str) -> bool {
        self.plugin.as_deref() == Some(plugin)
    }
}

/// Reports whether a file is a network of that one plugin.
#[must_use]
pub fn is_network_of(bytes: &[u8], plugin: &str) -> bool {
    json::parse(bytes).is_ok_and(|tree| tree.field("type").and_then(JsonValue::as_text) == Some(plugin))
}

/// Our entry in a conf file.
#[derive(Debug)]
pub enum FileWithEntry<'a> {
    /// A network of our own, under our network name: only Gybe writes that.
    OwnNetwork,
    /// A list that has our entry.
    List(PluginChain<'a>),
}

impl<'a> FileWithEntry<'a> {
    /// Returns none for a file without an entry of that type.
    #[must_use]
    pub fn read(bytes: &'a [u8], plugin: &str) -> Option<Self> {
        let tree = json::parse(bytes).ok()?;
        let has = |key: &str, text: &str| tree.member(key).and_then(JsonValue::as_text) == Some(text);
        if has("type", plugin) && has("name", NETWORK) {
            return Some(Self::OwnNetwork);
        }
        let chain = PluginChain::of(bytes, &tree).ok()?;
        chain.entry(plugin).is_some().then_some(Self::List(chain))
    }
}

/// Returns the list that a runtime would make of the one plugin, followed by `entry`: the network's name and version as
/// they were, and the plugin's own text unchanged.
pub fn listed(single: &[u8], entry: &Entry) -> Result<Vec<u8>, ConflistError> {
    wrapped(single, |layout| entry.print(layout))
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

/// Makes the list; `entry` prints our entry. White space around the single plugin's object stays around the list.
fn wrapped(single: &[u8], entry: impl FnOnce(&EntryLayout) -> Vec<u8>) -> Result<Vec<u8>, ConflistError> {
    let tree = json::parse(single)?;
    if !tree.is_object() {
        return Err(ConflistError::NoPlugins);
    }
    let name = tree.member("name").filter(|name| name.as_text().is_some_and(|name| !name.is_empty()));
    let name = name.ok_or(ConflistError::NoName)?;
    let version = tree.member("cniVersion").filter(|version| version.as_text().is_some());
    let layout = outer_layout(single, &tree);
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
    out.extend(entry(&deeper(&layout)));
    layout.line(1, &mut out);
    out.push(b']');
    layout.line(0, &mut out);
    out.push(b'}');
    out.extend_from_slice(json::text(single, &(tree.span.end..single.len())));
    Ok(out)
}

fn outer_layout(single: &[u8], tree: &JsonValue) -> EntryLayout {
    match layout_of(single, &tree.span) {
        EntryLayout::Lines { newline, unit, .. } => EntryLayout::Lines { newline, base: Vec::new(), unit },
        EntryLayout::OneLine => EntryLayout::OneLine,
    }
}

fn deeper(layout: &EntryLayout) -> EntryLayout {
    match layout {
        EntryLayout::Lines { newline, unit, .. } => {
            EntryLayout::Lines { newline: newline.clone(), base: unit.repeat(2), unit: unit.clone() }
        }
        EntryLayout::OneLine => EntryLayout::OneLine,
    }
}
