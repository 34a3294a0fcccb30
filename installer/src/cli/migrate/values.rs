//! `gybe migrate values`: the values of istio-cni's chart as values of Gybe's.

use crate::cli::input;
use crate::cli::output::{CommandError, CommandOutput, Exit};
use crate::cli::style::examples;
use crate::diagnosis::chart_values::{ChartValues, Outcome, Translation};
use crate::pod::manifest::printable;
use clap::Args;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::PathBuf;

/// Translate the values of istio-cni's chart to those of Gybe's
///
/// Prints a file of values for Gybe's chart. Its comments say what becomes of each value of FILE: its name in Gybe's
/// chart, or why it has no effect, or why it cannot be applied. Gybe's chart accepts the values of istio-cni's under
/// their own names, too, with the same meaning, and refuses the same ones.
///
/// Exit code 0: every value has its meaning in Gybe's chart, or no effect. 1: a value cannot be applied. 2: the command
/// failed.
#[derive(Debug, Args)]
#[command(after_help = examples(&[
    "helm get values istio-cni -n istio-system -o yaml | gybe migrate values -",
    "gybe migrate values istio-cni.yaml > gybe.yaml && helm install gybe manifests/chart -n gybe-system -f gybe.yaml",
]))]
pub(super) struct ValuesArgs {
    /// Values of istio-cni's chart, as for `helm install --values`, in YAML or JSON; - is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl ValuesArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        let cannot = || format!("cannot use the values in {}", self.file.display());
        let read =
            input::text(&self.file).map_err(|why| CommandError::because("cannot use the values", why))?;
        // `helm get values` prints null where none is set.
        let given: Option<Map<String, Value>> =
            serde_saphyr::from_str(&read).map_err(|why| CommandError::because(cannot(), why))?;
        let table = ChartValues::read()
            .map_err(|why| CommandError::new(format!("the table of this program cannot be read: {why}")))?;
        Ok(output(&table.translate(&given.unwrap_or_default())))
    }
}

fn output(Translation { values, outcomes }: &Translation) -> CommandOutput {
    let mut text = String::new();
    for (path, outcome) in outcomes {
        let becomes = match outcome {
            Outcome::Set { to, .. } if to == path => "has the same name".to_owned(),
            Outcome::Set { to, .. } => to.clone(),
            Outcome::Ignored(why) => format!("no effect: {why}"),
            Outcome::Refused(why) => format!("CANNOT BE APPLIED: {why}"),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# {}: {}", printable(path), printable(&becomes));
    }
    write_yaml(values, 0, &mut text);
    if values.is_empty() {
        text += "{}\n";
    }
    let complete = !outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Refused(_)));
    let outcomes: Vec<Value> = outcomes.iter().map(|(path, outcome)| as_json(path, outcome)).collect();
    let json = json!({ "complete": complete, "values": values, "outcomes": outcomes });
    CommandOutput { text, json, exit: if complete { Exit::Yes } else { Exit::No }, notes: Vec::new() }
}

/// Writes nested maps as blocks, and other values as JSON, which YAML contains.
fn write_yaml(values: &Map<String, Value>, depth: usize, text: &mut String) {
    for (name, value) in values {
        // YAML 1.1, which helm reads, has further words for booleans.
        let is_word = name.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
        let plain = is_word
            && !["y", "n", "yes", "no", "on", "off", "true", "false", "null"]
                .contains(&name.to_ascii_lowercase().as_str());
        let name = if plain { name.clone() } else { Value::from(name.as_str()).to_string() };
        let _ = write!(text, "{:1$}{name}:", "", depth * 2);
        match value {
            Value::Object(below) if !below.is_empty() => {
                text.push('\n');
                write_yaml(below, depth + 1, text);
            }
            other => {
                let _ = writeln!(text, " {other}");
            }
        }
    }
}

fn as_json(path: &str, outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Set { to, value } => json!({ "key": path, "to": to, "value": value }),
        Outcome::Ignored(why) => json!({ "key": path, "ignored": why }),
        Outcome::Refused(why) => json!({ "key": path, "refused": why }),
    }
}
