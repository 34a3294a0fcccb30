//! How much the plugin tells, from our key or from what the incumbent was told with.

use super::reader::{RawSetting, SettingsReader};

/// The plugin's level. `LOG_OUTPUT_LEVEL` is Istio's: levels of scopes, and the plugin's scope is
/// `cni-plugin` (docs/ISTIO.md, section 5).
pub(super) fn level<'a>(reader: &mut SettingsReader<'a>) -> Option<RawSetting<'a>> {
    let said = reader.either("log_level", "LOG_LEVEL");
    let scoped = reader.variable("LOG_OUTPUT_LEVEL").and_then(scoped);
    // Istio's highest: what would end the process. Nothing of ours does.
    let fatal =
        |said: RawSetting<'a>| if said.text == "fatal" { RawSetting { text: "error", ..said } } else { said };
    said.or(scoped.map(fatal))
}

/// `default:info,cni-plugin:debug`, or `info` alone.
fn scoped(said: RawSetting<'_>) -> Option<RawSetting<'_>> {
    let level = |scope: &str| {
        said.text.split(',').map(str::trim).rev().find_map(|pair| match pair.split_once(':') {
            Some((of, level)) if of == scope => Some(level),
            None if scope == "default" => Some(pair),
            _ => None,
        })
    };
    let text = ["cni-plugin", "all", "default"].into_iter().find_map(level)?;
    Some(RawSetting { text, ..said })
}
