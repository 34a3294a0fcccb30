//! What happens to running pods that should be redirected and are not, and to which of them.

use super::reader::{RawSetting, SettingsReader, is_name, is_qualified_name};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The mode, and what the modes `delete` and `label` need.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RepairOptions {
    pub mode: RepairMode,
    /// The label of the mode `label`.
    pub label: PodLabel,
    /// Further label and field selectors of the pods, as the API server accepts them; empty for all.
    pub label_selector: String,
    pub field_selector: String,
    /// The init container that must have failed before; none if that is not required.
    pub failed_init: Option<FailedInit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RepairMode {
    /// Their rules are written.
    #[default]
    Repair,
    /// They are deleted.
    Delete,
    /// They get a label.
    Label,
    /// Nothing.
    Off,
}

/// A label of a pod, with a valid key and value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodLabel {
    pub key: String,
    pub value: String,
}

/// An init container that ended with an exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedInit {
    /// Its name; empty for any.
    pub container: String,
    /// The code; 0 for any other than 0.
    pub exit_code: u8,
}

impl Default for PodLabel {
    /// The incumbent's.
    fn default() -> Self {
        Self { key: "cni.istio.io/uninitialized".to_owned(), value: "true".to_owned() }
    }
}

impl fmt::Display for PodLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

const MODES: [(&str, RepairMode); 4] = [
    ("repair", RepairMode::Repair),
    ("delete", RepairMode::Delete),
    ("label", RepairMode::Label),
    ("off", RepairMode::Off),
];
/// Istio's, which ends with 126 in a pod that is not redirected.
const VALIDATION: &str = "istio-validation";
/// Longer than any selector; it is part of a URL.
const MAX_SELECTOR: usize = 1024;

pub(super) fn read(reader: &mut SettingsReader<'_>) -> RepairOptions {
    let mode = mode(reader);
    RepairOptions {
        mode,
        label: label(reader),
        label_selector: selector(reader, "repair_label_selector", "REPAIR_LABEL_SELECTORS", mode),
        field_selector: selector(reader, "repair_field_selector", "REPAIR_FIELD_SELECTORS", mode),
        failed_init: failed_init(reader),
    }
}

/// Without the key: the first of the incumbent's variables that is true, in its order, and `repair` if none is set.
fn mode(reader: &mut SettingsReader<'_>) -> RepairMode {
    let [enabled, repairs, deletes, labels] =
        ["REPAIR_ENABLED", "REPAIR_REPAIR_PODS", "REPAIR_DELETE_PODS", "REPAIR_LABEL_PODS"]
            .map(|name| reader.yes_or_no(reader.variable(name)));
    if let Some(setting) = reader.key("repair") {
        return reader.word(Some(setting), &MODES);
    }
    match (enabled, repairs, deletes, labels) {
        (Some(false), ..) => RepairMode::Off,
        (_, Some(true), ..) => RepairMode::Repair,
        (_, _, Some(true), _) => RepairMode::Delete,
        (_, _, _, Some(true)) => RepairMode::Label,
        (_, Some(false), ..) => RepairMode::Off,
        _ => RepairMode::Repair,
    }
}

fn label(reader: &mut SettingsReader<'_>) -> PodLabel {
    let default = PodLabel::default();
    let parsed = |key: &str, value: &str| {
        let is_label = is_qualified_name(key) && (value.is_empty() || is_name(value));
        is_label.then(|| PodLabel { key: key.to_owned(), value: value.to_owned() })
    };
    let (setting, label) = match reader.key("repair_label") {
        Some(setting) => {
            let (key, value) = setting.text.split_once('=').unwrap_or_default();
            (Some(setting), parsed(key, value))
        }
        None => {
            let key = reader.variable("REPAIR_BROKEN_POD_LABEL_KEY");
            let value = reader.variable("REPAIR_BROKEN_POD_LABEL_VALUE");
            let text = |setting: Option<_>, default| setting.map_or(default, |it: RawSetting<'_>| it.text);
            (key.or(value), parsed(text(key, &default.key), text(value, &default.value)))
        }
    };
    if let (Some(setting), None) = (setting, &label) {
        reader.refuse(setting, "must be a label of Kubernetes: KEY=VALUE");
    }
    label.unwrap_or(default)
}

/// The process that repairs in the mode `repair` has no access to the API server, which alone evaluates selectors.
fn selector(
    reader: &mut SettingsReader<'_>,
    key: &'static str,
    variable: &'static str,
    mode: RepairMode,
) -> String {
    let Some(setting) = reader.either(key, variable) else { return String::new() };
    if setting.text.len() > MAX_SELECTOR || setting.text.chars().any(char::is_control) {
        reader.refuse(setting, "must be a selector of at most 1,024 bytes on one line");
    } else if mode == RepairMode::Repair {
        let why = "selects pods only for `repair: delete` and `repair: label`; in the mode `repair` every pod of the \
                   node that should be redirected and is not is redirected; unset it, or set another mode";
        reader.refuse(setting, why);
    }
    setting.text.to_owned()
}

fn failed_init(reader: &mut SettingsReader<'_>) -> Option<FailedInit> {
    let container = reader.either("repair_init_container", "REPAIR_INIT_CONTAINER_NAME");
    let container = container.map_or(VALIDATION, |setting| setting.text);
    let setting = reader.either("repair_exit_code", "REPAIR_INIT_CONTAINER_EXIT_CODE")?;
    let exit_code = setting.text.parse().ok();
    if exit_code.is_none() {
        reader.refuse(setting, "must be an exit code: 0 to 255");
    }
    Some(FailedInit { container: container.to_owned(), exit_code: exit_code? })
}
