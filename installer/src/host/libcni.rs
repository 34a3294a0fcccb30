//! How a runtime reads the conf files: libcni's rules for their bytes, and which file each runtime uses: the first by
//! name, as it handles broken files. `observe` reads the files.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::json::{self, JsonError, JsonKind, JsonValue};
use super::observe::runtimes::{DropIns, Runtime};
use super::observe::{ConfDirectory, FileFormat, FileName, Unreadable};

/// The newest CNI version that libcni knows; higher ones in `cniVersions` are ignored.
const NEWEST: [u32; 3] = [1, 1, 0];

/// A network that a runtime can use for pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedNetwork {
    /// Empty in a `.conf` without a name.
    pub name: String,
    /// The CNI version that libcni uses with the plugins; empty if the file has none.
    pub version: String,
    /// The types of the plugins, in the order in which they run.
    pub plugins: Vec<String>,
    /// The further programs that these plugins certainly run.
    pub delegates: BTreeSet<String>,
    /// Whether `<dir>/<name>/*.conf` belong to the chain.
    pub drop_ins: DropIns,
}

/// Why a file is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("it is {0}")]
    NotJson(JsonError),
    #[error("it is not a JSON object")]
    NotAnObject,
    #[error("it has no name")]
    NoName,
    #[error("its \"{0}\" has the wrong type")]
    Wrong(&'static str),
    #[error("it has no plugins")]
    NoPlugins,
    #[error("its plugin {0} has no type")]
    NoType(usize),
    #[error("in its plugin {0}, \"{1}\" has the wrong type")]
    WrongInPlugin(usize, &'static str),
    /// A file in the network's own directory is broken, and breaks the network.
    #[error("a drop-in in its network's directory is broken")]
    DropIn(#[source] Box<Self>),
}

/// A file with which a runtime can start pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenNetwork {
    pub file: FileName,
    pub network: LoadedNetwork,
}

/// A file that no runtime can load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file} cannot be loaded")]
pub struct BrokenFile {
    pub file: FileName,
    #[source]
    pub why: BrokenReason,
}

/// Why a runtime does not load a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokenReason {
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// Its network's own directory, or a file in it, cannot be read.
    #[error("{0} in its network's directory: {1}")]
    UnreadableDropIn(FileName, Unreadable),
    /// libcni refuses its content.
    #[error(transparent)]
    LoadError(#[from] LoadError),
}

/// Why no network is chosen: the runtime has none, or it is unknown which one it uses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoChoice {
    /// No file, or none that it can load.
    #[error("there is no conf file to load")]
    Nothing,
    /// A broken file stops the runtime.
    #[error("a broken file sorts before every other")]
    Stopped(#[source] BrokenFile),
    /// A file that cannot be read here sorts before every other. The runtime may be able to read it: it runs as
    /// the host's root, and sees a link's target.
    #[error("a file that cannot be read here sorts before every other")]
    Unknown(#[source] BrokenFile),
}

impl BrokenFile {
    /// Reports whether its content is unknown, so that a runtime may use it.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        matches!(self.why, BrokenReason::Unreadable(_) | BrokenReason::UnreadableDropIn(..))
    }
}

/// Returns the file that `runtime` uses. `drop_ins`: whether it reads the networks' own directories.
pub fn choose(conf: &ConfDirectory, runtime: Runtime, drop_ins: DropIns) -> Result<ChosenNetwork, NoChoice> {
    for candidate in candidates(conf, drop_ins) {
        match (candidate, runtime) {
            (Ok(choice), _) => return Ok(choice),
            (Err(broken), _) if broken.is_unread() => return Err(NoChoice::Unknown(broken)),
            (Err(broken), Runtime::Containerd) => return Err(NoChoice::Stopped(broken)),
            (Err(_), Runtime::CriO) => {}
        }
    }
    Err(NoChoice::Nothing)
}

/// Returns the file that CRI-O uses if its configuration names a network (`cni_default_network`): the first with a
/// network of this name. ocicni skips every other file.
pub fn choose_by_name(
    conf: &ConfDirectory,
    name: &str,
    drop_ins: DropIns,
) -> Result<ChosenNetwork, NoChoice> {
    for candidate in candidates(conf, drop_ins) {
        match candidate {
            Ok(choice) if choice.network_name() == name => return Ok(choice),
            Err(broken) if broken.is_unread() => return Err(NoChoice::Unknown(broken)),
            _ => {}
        }
    }
    Err(NoChoice::Nothing)
}

impl ChosenNetwork {
    /// The network's name; ocicni uses the file's name for a network without one.
    #[must_use]
    pub fn network_name(&self) -> Cow<'_, str> {
        match self.network.name.as_str() {
            "" => self.file.as_os_str().to_string_lossy(),
            name => name.into(),
        }
    }
}

impl LoadedNetwork {
    /// The directory of its drop-ins in the conf directory; none where libcni reads none for it.
    #[must_use]
    pub fn own_directory(&self) -> Option<FileName> {
        let name = Some(self.name.as_str()).filter(|name| is_network_name(name));
        name.filter(|_| self.drop_ins == DropIns::Loaded).and_then(|name| FileName::new(name).ok())
    }
}

/// libcni's rule for network names: a letter or digit, then those and `_`, `.`, `-`.
fn is_network_name(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_.-".contains(letter))
}

/// Returns every file that a runtime reads, in the runtime's order, with the result of loading it.
pub fn candidates(
    conf: &ConfDirectory,
    drop_ins: DropIns,
) -> impl Iterator<Item = Result<ChosenNetwork, BrokenFile>> + '_ {
    let named = conf
        .files
        .iter()
        .filter_map(|(file, observed)| Some((file, observed, FileFormat::of(file.as_os_str())?)));
    named.map(move |(file, observed, format)| {
        let network = match &observed.content {
            Ok(bytes) if drop_ins == DropIns::Loaded => load(conf, format, bytes),
            Ok(bytes) => network(format, bytes, &[]).map_err(BrokenReason::from),
            Err(why) => Err(BrokenReason::Unreadable(why.clone())),
        };
        let file = file.clone();
        match network {
            Ok(network) => Ok(ChosenNetwork { file, network }),
            Err(why) => Err(BrokenFile { file, why }),
        }
    })
}

fn load(conf: &ConfDirectory, format: FileFormat, bytes: &[u8]) -> Result<LoadedNetwork, BrokenReason> {
    let own =
        list_name(bytes).filter(|_| format == FileFormat::List).and_then(|name| FileName::new(name).ok());
    let mut drop_ins: Vec<&[u8]> = Vec::new();
    let alone = network(format, bytes, &[]);
    if let Some(own) = own.filter(|_| !matches!(&alone, Ok(it) if it.drop_ins == DropIns::Ignored)) {
        if let Some(why) = conf.unread_networks.get(&own) {
            return Err(BrokenReason::UnreadableDropIn(own, why.clone()));
        }
        for (name, observed) in conf.networks.get(&own).into_iter().flatten() {
            // Only `.conf` files in a network's own directory are loaded.
            if name.ends_in(".conf") {
                let read = observed.content.as_ref();
                drop_ins.push(read.map_err(|why| BrokenReason::UnreadableDropIn(name.clone(), why.clone()))?);
            }
        }
    }
    if drop_ins.is_empty() { Ok(alone?) } else { Ok(network(format, bytes, &drop_ins)?) }
}

/// Parses a file. `drop_ins` are the `.conf` files of the network's own directory, in order.
pub fn network(form: FileFormat, bytes: &[u8], drop_ins: &[&[u8]]) -> Result<LoadedNetwork, LoadError> {
    let tree = json::parse(bytes).map_err(LoadError::NotJson)?;
    if !tree.is_object() {
        return Err(LoadError::NotAnObject);
    }
    match form {
        FileFormat::List => list(&tree, drop_ins),
        FileFormat::Single => {
            let kind = plugin(0, &tree)?;
            Ok(LoadedNetwork {
                delegates: delegates_of(&kind, &tree),
                name: text_field(&tree, "name")?,
                version: text_field(&tree, "cniVersion")?,
                plugins: vec![kind],
                drop_ins: DropIns::Ignored,
            })
        }
    }
}

/// The name of a list, with which its directory is found before the whole list is parsed.
fn list_name(bytes: &[u8]) -> Option<String> {
    json::parse(bytes).ok()?.member("name")?.as_text().map(str::to_owned)
}

fn list(tree: &JsonValue, drop_ins: &[&[u8]]) -> Result<LoadedNetwork, LoadError> {
    let name = tree.member("name").ok_or(LoadError::NoName)?;
    let name = name.as_text().ok_or(LoadError::Wrong("name"))?.to_owned();
    let version = version(tree)?;
    switch(tree, "disableCheck")?;
    switch(tree, "disableGC")?;
    let inlined_only = switch(tree, "loadOnlyInlinedPlugins")?;
    let (mut plugins, mut delegates) = match tree.member("plugins") {
        None => (Vec::new(), BTreeSet::new()),
        Some(plugins) => inlined(plugins)?,
    };
    if !inlined_only {
        for bytes in drop_ins {
            let one =
                network(FileFormat::Single, bytes, &[]).map_err(|why| LoadError::DropIn(Box::new(why)))?;
            plugins.extend(one.plugins);
            delegates.extend(one.delegates);
        }
    }
    if plugins.is_empty() {
        return Err(LoadError::NoPlugins);
    }
    let drop_ins = if inlined_only { DropIns::Ignored } else { DropIns::Loaded };
    Ok(LoadedNetwork { name, version, plugins, delegates, drop_ins })
}

/// The types of the plugins, and the programs that these run.
fn inlined(plugins: &JsonValue) -> Result<(Vec<String>, BTreeSet<String>), LoadError> {
    let plugins = plugins.as_array().ok_or(LoadError::Wrong("plugins"))?;
    if plugins.is_empty() {
        return Err(LoadError::NoPlugins);
    }
    let kinds = plugins.iter().enumerate().map(|(position, node)| plugin(position, node));
    let kinds = kinds.collect::<Result<Vec<_>, _>>()?;
    let delegates = kinds.iter().zip(plugins).flat_map(|(kind, node)| delegates_of(kind, node)).collect();
    Ok((kinds, delegates))
}

/// The plugins that run the program of `ipam.type` (containernetworking/plugins v1.6, plugins/main; Calico v3.29,
/// cni-plugin/pkg/plugin).
const WITH_IPAM: [&str; 9] =
    ["bridge", "calico", "dummy", "host-device", "ipvlan", "macvlan", "ptp", "tap", "vlan"];
const FLANNEL: &str = "flannel";

/// The programs that a plugin certainly runs itself, from the same directories: those of IPAM, and of flannel's delegate.
/// Other plugins have IPAM types without a program (`azure-cns`), or run them elsewhere (Antrea's agent).
fn delegates_of(plugin: &str, conf: &JsonValue) -> BTreeSet<String> {
    let kind = |member: &str| {
        let kind = conf.field(member)?.field("type")?.as_text()?;
        Some(kind.to_owned()).filter(|kind| !kind.is_empty())
    };
    match plugin {
        // flannel-io/cni-plugin v1.6, flannel_linux.go: the defaults of what it delegates to.
        FLANNEL => {
            let delegate = kind("delegate").unwrap_or_else(|| "bridge".to_owned());
            let ipam = kind("ipam").unwrap_or_else(|| "host-local".to_owned());
            let ipam = Some(ipam).filter(|_| WITH_IPAM.contains(&delegate.as_str()));
            ipam.into_iter().chain([delegate]).collect()
        }
        _ if WITH_IPAM.contains(&plugin) => kind("ipam").into_iter().collect(),
        _ => BTreeSet::new(),
    }
}

/// The types that libcni's structs `PluginConf` and `GCAttachment` require of their members
/// (pkg/types/types.go, v1.3.0).
#[derive(Debug, Clone, Copy)]
enum GoType {
    Text,
    Bool,
    Any,
    List(&'static GoType),
    Map(&'static GoType),
    Struct(&'static [(&'static str, GoType)]),
}

const TEXTS: GoType = GoType::List(&GoType::Text);
const DNS: [(&str, GoType); 4] =
    [("nameservers", TEXTS), ("domain", GoType::Text), ("search", TEXTS), ("options", TEXTS)];
const ATTACHMENT: GoType = GoType::Struct(&[("containerID", GoType::Text), ("ifname", GoType::Text)]);
const PLUGIN: [(&str, GoType); 8] = [
    ("cniVersion", GoType::Text),
    ("name", GoType::Text),
    ("type", GoType::Text),
    ("capabilities", GoType::Map(&GoType::Bool)),
    ("ipam", GoType::Struct(&[("type", GoType::Text)])),
    ("dns", GoType::Struct(&DNS)),
    ("prevResult", GoType::Map(&GoType::Any)),
    ("cni.dev/valid-attachments", GoType::List(&ATTACHMENT)),
];

impl GoType {
    /// Reports whether Go's decoder accepts the value. It accepts null for every type, and checks each of duplicate
    /// members.
    fn accepts(self, node: &JsonValue) -> bool {
        match (self, &node.kind) {
            (_, JsonKind::Null)
            | (Self::Any, _)
            | (Self::Text, JsonKind::Text(_))
            | (Self::Bool, JsonKind::Bool(_)) => true,
            (Self::List(of), JsonKind::Array(elements)) => elements.iter().all(|element| of.accepts(element)),
            (Self::Map(of), JsonKind::Object(members)) => {
                members.iter().all(|member| of.accepts(&member.value))
            }
            (Self::Struct(fields), JsonKind::Object(_)) => {
                fields.iter().all(|(name, kind)| node.fields(name).all(|value| kind.accepts(value)))
            }
            _ => false,
        }
    }
}

/// The type of the plugin at this position, if its members have the types that libcni's struct requires.
fn plugin(position: usize, node: &JsonValue) -> Result<String, LoadError> {
    let is_wrong = |(name, kind): &&(&str, GoType)| !node.fields(name).all(|value| kind.accepts(value));
    match text_field(node, "type") {
        Ok(kind) if !kind.is_empty() => match PLUGIN.iter().find(is_wrong) {
            Some((name, _)) => Err(LoadError::WrongInPlugin(position, name)),
            None => Ok(kind),
        },
        _ => Err(LoadError::NoType(position)),
    }
}

/// Reads a string as Go does: absent and null are empty.
fn text_field(node: &JsonValue, key: &'static str) -> Result<String, LoadError> {
    match node.field(key).map(|node| &node.kind) {
        None => Ok(String::new()),
        Some(JsonKind::Text(text)) => Ok(text.clone()),
        Some(_) => Err(LoadError::Wrong(key)),
    }
}

/// Reads a boolean, which may be written as a string.
fn switch(tree: &JsonValue, key: &'static str) -> Result<bool, LoadError> {
    match tree.member(key).map(|node| &node.kind) {
        None => Ok(false),
        Some(JsonKind::Bool(on)) => Ok(*on),
        Some(JsonKind::Text(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(JsonKind::Text(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(_) => Err(LoadError::Wrong(key)),
    }
}

/// The highest of `cniVersion` and `cniVersions` that libcni knows.
fn version(tree: &JsonValue) -> Result<String, LoadError> {
    let single = match tree.member("cniVersion") {
        None => String::new(),
        Some(node) => node.as_text().ok_or(LoadError::Wrong("cniVersion"))?.to_owned(),
    };
    let Some(several) = tree.member("cniVersions") else { return Ok(single) };
    let several = several.as_array().ok_or(LoadError::Wrong("cniVersions"))?;
    let mut known = Vec::new();
    for node in several {
        let text = node.as_text().ok_or(LoadError::Wrong("cniVersions"))?;
        known.push((numbers(text).ok_or(LoadError::Wrong("cniVersions"))?, text.to_owned()));
    }
    if !single.is_empty() {
        known.push((numbers(&single).ok_or(LoadError::Wrong("cniVersion"))?, single.clone()));
    }
    known.retain(|(numbers, _)| *numbers <= NEWEST);
    Ok(known.into_iter().max().map_or(single, |(_, text)| text))
}

fn numbers(version: &str) -> Option<[u32; 3]> {
    let mut parts = version.split('.').map(str::parse::<u32>);
    let numbers =
        [parts.next()?.ok()?, parts.next().unwrap_or(Ok(0)).ok()?, parts.next().unwrap_or(Ok(0)).ok()?];
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_that_a_plugin_runs_itself_are_found_where_they_are_certain() {
        for (conf, programs) in [
            (r#"{"type":"bridge","ipam":{"type":"host-local"}}"#, &["host-local"][..]),
            (r#"{"type":"calico","ipam":{"type":"calico-ipam"}}"#, &["calico-ipam"]),
            (r#"{"type":"bridge","ipam":{}}"#, &[]),
            (r#"{"type":"bridge","ipam":{"type":""}}"#, &[]),
            (r#"{"type":"azure-vnet","ipam":{"type":"azure-cns"}}"#, &[]),
            (r#"{"type":"antrea","ipam":{"type":"host-local"}}"#, &[]),
            (r#"{"type":"portmap"}"#, &[]),
            (r#"{"type":"flannel","delegate":{"hairpinMode":true}}"#, &["bridge", "host-local"]),
            (r#"{"type":"flannel","delegate":{"type":"ptp"},"ipam":{"type":"dhcp"}}"#, &["dhcp", "ptp"]),
            (r#"{"type":"flannel","delegate":{"type":"other"}}"#, &["other"]),
        ] {
            let tree = json::parse(conf.as_bytes()).unwrap();
            let plugin = tree.field("type").and_then(JsonValue::as_text).unwrap();
            let found: Vec<_> = delegates_of(plugin, &tree).into_iter().collect();
            assert_eq!(found, programs, "{conf}");
        }
    }
}
