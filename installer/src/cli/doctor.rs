//! `gybe doctor`: prints every finding about this node.

use super::input::{DirectoriesArg, directory_of_this_program};
use super::output::{self, CommandOutput, Exit};
use super::style::{bad, doubtful, examples, good, titles, wrapped};
use crate::diagnosis::doctor::observe::{DoctorOptions, observe};
use crate::diagnosis::doctor::{DoctorFinding, Severity, examine, is_well};
use crate::host::desired::Confirmed;
use crate::pod::manifest::printable;
use clap::Args;
use gybe_plugin::probe_cache::DIRECTORY;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Check this node: print what is well, what is wrong, and what to do about it
///
/// Checks the runtime's directories and their file systems, the conf file that the runtime uses and Gybe's entry in it,
/// the programs, the node agent's sockets, the probe's findings, other programs that write conf files, and leftovers of
/// an earlier installation. Changes nothing. Where an error id or an alert has the same cause, the remedy ends with it:
/// it is a section of docs/TROUBLESHOOTING.md. Exit code 0: nothing is wrong. 1: something is.
#[derive(Debug, Args)]
#[command(after_help = examples(&["gybe doctor", "kubectl exec -n gybe-system ds/gybe-node -- gybe doctor --root /host", "gybe doctor --json"]))]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    directories: DirectoriesArg,
    /// The directory of Gybe's sockets and of the probe's findings
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    run_dir: PathBuf,
    /// confirmed: accept the program directory although it is unknown whether the runtime looks there for plugins
    /// [default: the running agent's setting, else check]
    #[arg(long, value_name = "check|confirmed", value_parser = ["check", "confirmed"], hide_possible_values = true)]
    plugin_dir: Option<String>,
}

impl DoctorArgs {
    pub(super) fn directories(&self) -> &DirectoriesArg {
        &self.directories
    }

    pub(super) fn run_directory(&self) -> &Path {
        &self.run_dir
    }

    pub(super) fn run(&self) -> CommandOutput {
        let directories = self.directories.node_directories();
        let installed = directories.programs.canonicalize().ok();
        let image =
            directory_of_this_program().filter(|directory| directory.canonicalize().ok() != installed);
        let root = self.directories.root().to_owned();
        let confirmed = self.plugin_dir.as_ref().map(|setting| match setting.as_str() {
            "confirmed" => Confirmed::Yes,
            _ => Confirmed::No,
        });
        let found = examine(&observe(DoctorOptions {
            directories,
            run: self.run_dir.clone(),
            root,
            image,
            confirmed,
        }));
        let exit = if is_well(&found) { Exit::Yes } else { Exit::No };
        let all: Vec<Value> = found.iter().map(DoctorFinding::to_json).collect();
        let json = json!({ "well": exit == Exit::Yes, "findings": all });
        CommandOutput { text: table(&found, output::width()), json, exit, notes: Vec::new() }
    }
}

/// Returns a line for each finding and a second one for its remedy, broken at this width. Consecutive findings name
/// their subject once.
fn table(found: &[DoctorFinding], width: Option<usize>) -> String {
    const SUBJECT: &str = "SUBJECT";
    let names = found.iter().map(|finding| finding.about.name().len());
    let widest = names.chain([SUBJECT.len()]).max().unwrap_or(0);
    let mut text = titles(&format!("{SUBJECT:<widest$}  STATE  FINDING")) + "\n";
    let mut before = "";
    for finding in found {
        let name = finding.about.name();
        let about = if name == before { "" } else { name };
        before = name;
        let state = state(finding.severity);
        // Writing to a String cannot fail. Findings quote other programs' files, so they are escaped.
        let indent = widest + 2 + STATE + 2;
        let _ = writeln!(
            text,
            "{about:<widest$}  {state}  {}",
            wrapped(&printable(&finding.text), indent, width)
        );
        if let Some(remedy) = &finding.remedy {
            let section = finding.section.map_or(String::new(), |section| format!(" ({})", section.name()));
            let remedy = format!("what to do: {}{section}", printable(&remedy.to_string()));
            let _ = writeln!(text, "{:indent$}  {}", "", wrapped(&remedy, indent + 2, width));
        }
    }
    let wrong = found.iter().filter(|finding| finding.severity == Severity::Wrong).count();
    text + &match wrong {
        0 => format!("\n{}\n", good("nothing is wrong")),
        1 => format!("\n{}\n", bad("one thing is wrong")),
        many => format!("\n{}\n", bad(&format!("{many} things are wrong"))),
    }
}

/// The length of the longest name of a state.
const STATE: usize = 5;

fn state(state: Severity) -> String {
    let name = format!("{:<STATE$}", state.name());
    match state {
        Severity::Ok => good(&name),
        Severity::Wrong => bad(&name),
        _ => doubtful(&name),
    }
}
