//! Gybe's entries in a conf directory: where they are, and the plugin's configuration in them.

use super::conflist::{PluginChain, is_network_of};
use super::desired::DesiredState;
use super::image::PLUGIN;
use super::observe::{ConfDirectory, DROP_IN, FileName, ORIGINAL, conf_directory};
use gybe_plugin::conf::{ConfError, PluginConf};
use gybe_plugin::network_conf::POD_ANNOTATIONS;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

/// Gybe's entries by the kind of file: in a plugin list, as a standalone network, as a network's drop-in.
#[derive(Debug, Default)]
pub(crate) struct OurEntries<'a> {
    pub(crate) listed: Vec<(&'a FileName, &'a [u8])>,
    pub(crate) standalone: Vec<(&'a FileName, &'a [u8])>,
    pub(crate) drop_ins: Vec<(&'a FileName, &'a [u8])>,
}

impl<'a> OurEntries<'a> {
    pub(crate) fn find(conf: &'a ConfDirectory) -> Self {
        let mut ours = Self::default();
        let files = conf.files.iter().filter(|(name, _)| !name.ends_in(ORIGINAL));
        for (name, bytes) in files.filter_map(|(name, file)| Some((name, file.content.as_ref().ok()?))) {
            match PluginChain::read(bytes) {
                Ok(chain) => ours.listed.extend(chain.entry(PLUGIN).map(|entry| (name, entry))),
                Err(_) if is_network_of(bytes, PLUGIN) => ours.standalone.push((name, bytes)),
                Err(_) => {}
            }
        }
        for (network, files) in &conf.networks {
            let drop_in = files.get(OsStr::new(DROP_IN)).and_then(|file| file.content.as_ref().ok());
            ours.drop_ins.extend(drop_in.map(|bytes| (network, bytes.as_slice())));
        }
        ours
    }

    /// The plugin's configuration in the first entry, if the plugin can parse it.
    pub(crate) fn plugin_conf(&self) -> Option<PluginConf> {
        PluginConf::read(&members(self.entries().next()?.1)?).ok()
    }

    pub(crate) fn is_anywhere(&self) -> bool {
        self.entries().next().is_some()
    }

    /// Every entry with the name of its file or network.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a FileName, &'a [u8])> + '_ {
        [&self.listed, &self.standalone, &self.drop_ins].into_iter().flatten().copied()
    }
}

/// The plugin's configuration in the desired entry; none without one.
pub(crate) fn desired_conf(desired: &DesiredState) -> Option<PluginConf> {
    let DesiredState::Installed(install) = desired else { return None };
    PluginConf::read(&members(install.entry.text())?).ok()
}

/// Reads the plugin's configuration in the conf directory's first entry; none without an entry that can be parsed.
pub(crate) fn written_conf(directory: &Path) -> Option<PluginConf> {
    OurEntries::find(&conf_directory(directory, &BTreeSet::new())).plugin_conf()
}

/// The keys and values of an entry; none if it is not a JSON object.
pub(crate) fn members(entry: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice::<Value>(entry).ok()?.as_object().cloned()
}

/// Reports whether an entry requests the pods' annotations from the runtime. Without them the plugin needs facts even
/// about pods outside the mesh.
pub(crate) fn requests_annotations(entry: &Map<String, Value>) -> bool {
    entry.get("capabilities").and_then(|all| all.get(POD_ANNOTATIONS)) == Some(&Value::Bool(true))
}

/// Returns the keys that decide about pods and differ between the written and the desired entry; none while the desired
/// entry is unknown.
///
/// # Errors
/// When the plugin refuses an entry. With the written one it refuses every call.
pub(crate) fn deciding_differences(
    written: &[u8],
    desired: Option<&[u8]>,
) -> Result<Vec<&'static str>, ConfError> {
    let written = members(written).unwrap_or_default();
    let conf = PluginConf::read(&written)?;
    let Some(desired) = desired.and_then(members) else { return Ok(Vec::new()) };
    let has_other_capabilities = requests_annotations(&written) != requests_annotations(&desired);
    let keys = conf.deciding_differences(&PluginConf::read(&desired)?);
    Ok(keys.into_iter().chain(has_other_capabilities.then_some("capabilities")).collect())
}
