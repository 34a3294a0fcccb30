//! The plugin's log level, from our key or the incumbent's variables.

use super::reader::{RawSetting, SettingsReader};

/// The plugin's level. `LOG_OUTPUT_LEVEL` is Istio's: levels of scopes, and the plugin's scope is `cni-plugin`
/// (docs/ISTIO.md, section 5).
pub(super) fn level<'a>(reader: &mut SettingsReader<'a>) -> Option<RawSetting<'a>> {
    let setting = reader.either("log_level", "LOG_LEVEL");
    let scoped = reader.variable("LOG_OUTPUT_LEVEL").and_then(scoped);
    // `fatal` is Istio's highest level, for messages that end the process. Gybe has none.
    let fatal = |setting: RawSetting<'a>| {
        if setting.text == "fatal" { RawSetting { text: "error", ..setting } } else { setting }
    };
    setting.or(scoped.map(fatal))
}

/// Parses `default:info,cni-plugin:debug`, or `info` alone.
fn scoped(setting: RawSetting<'_>) -> Option<RawSetting<'_>> {
    let level = |scope: &str| {
        setting.text.split(',').map(str::trim).rev().find_map(|pair| match pair.split_once(':') {
            Some((of, level)) if of == scope => Some(level),
            None if scope == "default" => Some(pair),
            _ => None,
        })
    };
    let text = ["cni-plugin", "all", "default"].into_iter().find_map(level)?;
    Some(RawSetting { text, ..setting })
}
