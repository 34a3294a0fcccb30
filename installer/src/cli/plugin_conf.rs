//! The plugin's configuration as an operator hands it over: its entry, or the list that has it. What
//! its keys mean is the plugin's affair.

use super::answer::Failure;
use super::file;
use gybe_plugin::conf::PluginConf;
use serde_json::{Map, Value};
use std::path::Path;

/// What an entry is of when it is the plugin's.
const TYPE: &str = "gybe-cni";

/// Reads it.
pub(super) fn read(path: &Path) -> Result<PluginConf, Failure> {
    let text =
        file::text(path).map_err(|why| Failure::because("cannot use the plugin's configuration", why))?;
    let cannot = || format!("cannot use the plugin's configuration {}", path.display());
    let value: Value = serde_json::from_str(&text).map_err(|why| Failure::because(cannot(), why))?;
    let Some(entry) = entry(&value) else {
        return Err(Failure::new(format!("{}: it has no entry of type {TYPE}", cannot())));
    };
    PluginConf::read(entry).map_err(|why| Failure::because(cannot(), why))
}

/// `type` may be left out of an entry that stands alone, and not be another's.
fn entry(conf: &Value) -> Option<&Map<String, Value>> {
    let is_ours = |entry: &&Map<String, Value>| entry.get("type").is_some_and(|kind| kind == TYPE);
    match conf.get("plugins") {
        Some(list) => list.as_array()?.iter().filter_map(Value::as_object).find(is_ours),
        None => conf.as_object().filter(|entry| !entry.contains_key("type") || is_ours(entry)),
    }
}
