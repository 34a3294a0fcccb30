//! `gybe migrate --dry-run`: the pods of this node that Gybe would treat differently from istio-cni; and `gybe migrate
//! values`, which translates the values of istio-cni's chart.

use super::input::{self, DirectoriesArg};
use super::output::{CommandError, CommandOutput, Exit};
use super::pods::POD;
use super::style::{bad, doubtful, examples, good, titles};
use crate::diagnosis::chart_values::{ChartValues, ValueOutcome, ValuesTranslation};
use crate::diagnosis::migration::{OutcomeChange, SandboxChange, changes};
use crate::pod::enablement::{REDIRECTED, REDIRECTION};
use crate::pod::manifest::{self, printable};
use crate::sandboxes::{Network, PolicySources, SandboxList};
use clap::{Args, Subcommand};
use gybe_plugin::pod::{Ambient, PodFacts};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::path::PathBuf;

/// Report which pods of this node would be treated otherwise by Gybe
///
/// For a node that istio-cni redirects, before Gybe takes its place. Follows every kind of connection of each pod
/// through the rules in its network namespace, and through the rules that Gybe would write for it, and prints where
/// they end otherwise: what happens now, and what Gybe would do instead. Changes nothing. Pods with the init container
/// istio-init keep it, and are not compared.
///
/// A pod with the annotation ambient.istio.io/redirection: enabled is compared as an ambient pod, and what becomes of its
/// rules while it runs is printed, too. This also finds pods that have that annotation and no rules of istio-cni.
///
/// The pods come from --pods; without it, from the annotations that the runtime passed and the sources that the plugin
/// would use. Exit code 0: nothing would change. 1: something would, or that is not known. 2: the command failed.
///
/// `gybe migrate values FILE` translates the values of istio-cni's chart.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = examples(&[
    "kubectl get pods -A -o json --field-selector spec.nodeName=NODE | gybe migrate --dry-run --pods -",
    "gybe migrate --dry-run --pods pods.json --plugin-conf gybe-cni.json",
    "gybe migrate values istio-cni.yaml",
]))]
pub(super) struct MigrateArgs {
    #[command(subcommand)]
    command: Option<MigrateCommand>,
    /// Compare only. The move itself: docs/MIGRATE.md
    #[arg(long, required = true)]
    dry_run: bool,
    /// The pods of the node, as `kubectl get pods -o json` prints them; - is stdin
    #[arg(long, value_name = "FILE")]
    pods: Option<PathBuf>,
    /// The configuration that gybe-cni would have (JSON): its entry, or the list that contains it [default: an entry
    /// without keys]
    #[arg(long, value_name = "FILE")]
    plugin_conf: Option<PathBuf>,
    #[command(flatten)]
    directories: DirectoriesArg,
}

#[derive(Debug, Subcommand)]
enum MigrateCommand {
    Values(ValuesArgs),
}

impl MigrateArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        if let Some(MigrateCommand::Values(args)) = &self.command {
            return args.run();
        }
        let mut conf = self.plugin_conf.as_deref().map(input::plugin_conf).transpose()?.unwrap_or_default();
        let SandboxList { sandboxes, unreadable } = self.directories.sandboxes()?;
        let manifests = self.manifests()?;
        if manifests.iter().any(|pod| matches!(pod.ambient, Ambient::Yes { .. })) {
            conf.ambient.get_or_insert_default();
        }
        let sources = PolicySources::of(conf).with_manifests(manifests);
        Ok(output(&changes(sandboxes, &sources), &unreadable))
    }

    fn manifests(&self) -> Result<Vec<PodFacts>, CommandError> {
        let Some(path) = &self.pods else { return Ok(Vec::new()) };
        let cannot = || format!("cannot use the pods in {}", path.display());
        let text = input::text(path).map_err(|why| CommandError::because("cannot use the pods", why))?;
        let pods = manifest::pods(&text).map_err(|why| CommandError::because(cannot(), why))?;
        let facts = |template: &manifest::PodTemplate| {
            let error = |why| CommandError::because(format!("{}: {}", cannot(), template.origin), why);
            PodFacts::from_manifest(&template.pod).map(with_istios_record).map_err(error)
        };
        pods.iter().map(facts).collect()
    }
}

/// Takes the pod for ambient or not by the annotation in which istio-cni's agent records that.
fn with_istios_record(facts: PodFacts) -> PodFacts {
    let ambient = match facts.annotation(REDIRECTION) {
        Some(REDIRECTED) => {
            Ambient::Yes { service_account: "default".to_owned(), why: REDIRECTION.to_owned() }
        }
        _ => Ambient::No { why: format!("it has no annotation {REDIRECTION}: {REDIRECTED}") },
    };
    PodFacts { ambient, ..facts }
}

fn output(changes: &[SandboxChange], unreadable: &[String]) -> CommandOutput {
    let names: Vec<String> = changes.iter().map(|change| printable(&change.sandbox.to_string())).collect();
    let widest = names.iter().map(String::len).chain([POD.len()]).max().unwrap_or(0);
    let mut text = String::new();
    if !changes.is_empty() {
        text += &titles(&format!("{POD:<widest$}  CHANGE"));
        text.push('\n');
    }
    for (name, SandboxChange { change, .. }) in names.iter().zip(changes) {
        let (state, sentences) = match change {
            OutcomeChange::None(reason) => (good("none"), std::slice::from_ref(reason)),
            OutcomeChange::Otherwise(sentences) => (bad("OTHERWISE"), sentences.as_slice()),
            OutcomeChange::Unknown(reasons) => (doubtful("unknown"), reasons.as_slice()),
        };
        let mut sentences = sentences.iter().map(|sentence| printable(sentence));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<widest$}  {state}: {}", sentences.next().unwrap_or_default());
        for sentence in sentences {
            let _ = writeln!(text, "{:<widest$}    {sentence}", "");
        }
    }
    let count =
        |is_counted: fn(&OutcomeChange) -> bool| changes.iter().filter(|one| is_counted(&one.change)).count();
    let different = count(|change| matches!(change, OutcomeChange::Otherwise(_)));
    let unknown = count(|change| matches!(change, OutcomeChange::Unknown(_)));
    let holds = different + unknown == 0 && unreadable.is_empty();
    let sandboxes = match changes.len() {
        0 => "no pod sandbox on this node".to_owned(),
        1 => "1 sandbox".to_owned(),
        many => format!("{many} sandboxes"),
    };
    let _ = writeln!(text, "{sandboxes}: {different} would be treated otherwise, {unknown} unknown");
    let json = json!({
        "holds": holds,
        "sandboxes": changes.iter().map(change_as_json).collect::<Vec<_>>(),
        "unreadable": unreadable,
    });
    let notes = unreadable.iter().map(|what| format!("note: sandboxes may be missing: {what}")).collect();
    CommandOutput { text, json, exit: if holds { Exit::Yes } else { Exit::No }, notes }
}

fn change_as_json(SandboxChange { sandbox, change }: &SandboxChange) -> Value {
    let (outcome, reasons) = match change {
        OutcomeChange::None(reason) => ("none", std::slice::from_ref(reason)),
        OutcomeChange::Otherwise(sentences) => ("otherwise", sentences.as_slice()),
        OutcomeChange::Unknown(reasons) => ("unknown", reasons.as_slice()),
    };
    let pod = sandbox.pod.as_ref();
    let netns = match &sandbox.network {
        Network::Own(path) => Some(path.display().to_string()),
        Network::OfNode => None,
    };
    json!({
        "namespace": pod.map(|pod| pod.namespace.as_str()),
        "name": pod.map(|pod| pod.name.as_str()),
        "container": sandbox.container,
        "netns": netns,
        "change": outcome,
        "reasons": reasons,
    })
}

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
struct ValuesArgs {
    /// Values of istio-cni's chart, as for `helm install --values`, in YAML or JSON; - is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

impl ValuesArgs {
    fn run(&self) -> Result<CommandOutput, CommandError> {
        let cannot = || format!("cannot use the values in {}", self.file.display());
        let text =
            input::text(&self.file).map_err(|why| CommandError::because("cannot use the values", why))?;
        // `helm get values` prints null if no value is set.
        let given: Option<Map<String, Value>> =
            serde_saphyr::from_str(&text).map_err(|why| CommandError::because(cannot(), why))?;
        let table = ChartValues::read()
            .map_err(|why| CommandError::new(format!("the table of this program cannot be read: {why}")))?;
        Ok(translated(&table.translate(&given.unwrap_or_default())))
    }
}

fn translated(ValuesTranslation { values, outcomes }: &ValuesTranslation) -> CommandOutput {
    let mut text = String::new();
    for (path, outcome) in outcomes {
        let becomes = match outcome {
            ValueOutcome::Set { to, .. } if to == path => "has the same name".to_owned(),
            ValueOutcome::Set { to, .. } => to.clone(),
            ValueOutcome::Ignored(why) => format!("no effect: {why}"),
            ValueOutcome::Refused(why) => format!("CANNOT BE APPLIED: {why}"),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# {}: {}", printable(path), printable(&becomes));
    }
    write_yaml(values, 0, &mut text);
    if values.is_empty() {
        text += "{}\n";
    }
    let complete = !outcomes.iter().any(|(_, outcome)| matches!(outcome, ValueOutcome::Refused(_)));
    let outcomes: Vec<Value> = outcomes.iter().map(|(path, outcome)| outcome_json(path, outcome)).collect();
    let json = json!({ "complete": complete, "values": values, "outcomes": outcomes });
    CommandOutput { text, json, exit: if complete { Exit::Yes } else { Exit::No }, notes: Vec::new() }
}

/// Writes nested maps as blocks, and other values as JSON, which is also YAML.
fn write_yaml(values: &Map<String, Value>, depth: usize, text: &mut String) {
    for (name, value) in values {
        let is_word = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
        // YAML 1.1, which helm reads, also takes `y`, `no` and `on` for booleans.
        let is_plain = is_word
            && !["y", "n", "yes", "no", "on", "off", "true", "false", "null"]
                .contains(&name.to_ascii_lowercase().as_str());
        let name = if is_plain { name.clone() } else { Value::from(name.as_str()).to_string() };
        let _ = write!(text, "{:1$}{name}:", "", depth * 2);
        match value {
            Value::Object(nested) if !nested.is_empty() => {
                text.push('\n');
                write_yaml(nested, depth + 1, text);
            }
            other => {
                let _ = writeln!(text, " {other}");
            }
        }
    }
}

fn outcome_json(path: &str, outcome: &ValueOutcome) -> Value {
    match outcome {
        ValueOutcome::Set { to, value } => json!({ "key": path, "to": to, "value": value }),
        ValueOutcome::Ignored(why) => json!({ "key": path, "ignored": why }),
        ValueOutcome::Refused(why) => json!({ "key": path, "refused": why }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_read_back_whatever_their_keys() {
        let names = ["a_b", "", "on", "Null", "a.b", "x y", "\"", "#", "ä"];
        let inner: Map<String, Value> = names.iter().map(|name| ((*name).to_owned(), json!([1]))).collect();
        let values: Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), json!(inner))).collect();
        let mut text = String::new();
        write_yaml(&values, 0, &mut text);
        let read: Map<String, Value> =
            serde_saphyr::from_str(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
        assert_eq!(read, values);
    }
}
