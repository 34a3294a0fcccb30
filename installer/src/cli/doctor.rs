//! `gybe doctor`: the state of this node, explained on one page.

use super::answer::{Answer, Exit, Failure};
use super::directories::{DirectoriesArg, of_this_program};
use crate::host::doctor::sight::{Ground, see};
use crate::host::doctor::{Finding, State, examine, is_well};
use crate::host::install::wanted::Confirmed;
use crate::pod::manifest::printable;
use clap::Args;
use gybe_plugin::probe_cache::DIRECTORY;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

/// Explain the state of this node: what is well, what is wrong, and what to do about it.
///
/// Looks at the runtime's directories and the file systems they are on, at which conf file the runtime
/// takes and our entry in it, at the programs, the node agent's sockets, what was found out about
/// backends, who else writes there, and what is left of an earlier life. Changes nothing. Exit code 0:
/// nothing is wrong. 1: something is.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    directories: DirectoriesArg,
    /// Where findings about the node are kept
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    run_dir: PathBuf,
    /// `confirmed`: chain even if it is not known that the runtime looks for plugins in the program directory
    /// [default: what the running agent is set to, else check]
    #[arg(long, value_name = "WORD", value_parser = ["check", "confirmed"])]
    plugin_dir: Option<String>,
}

impl DoctorArgs {
    #[expect(
        clippy::unnecessary_wraps,
        reason = "every command can fail, and this one has nothing to fail at"
    )]
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let places = self.directories.places();
        let installed = places.programs.canonicalize().ok();
        let image = of_this_program().filter(|directory| directory.canonicalize().ok() != installed);
        let root = self.directories.root().to_owned();
        let confirmed = self.plugin_dir.as_ref().map(|word| match word.as_str() {
            "confirmed" => Confirmed::Yes,
            _ => Confirmed::No,
        });
        let found = examine(&see(Ground { places, run: self.run_dir.clone(), root, image, confirmed }));
        let exit = if is_well(&found) { Exit::Yes } else { Exit::No };
        let all: Vec<Value> = found.iter().map(Finding::to_json).collect();
        let json = json!({ "well": exit == Exit::Yes, "findings": all });
        Ok(Answer { text: page(&found), json, exit, notes: Vec::new() })
    }
}

/// A line for each finding, and one behind it for what to do; what it is about is said once.
fn page(found: &[Finding]) -> String {
    let widest = found.iter().map(|finding| finding.about.name().len()).max().unwrap_or(0);
    let mut text = String::new();
    let mut before = "";
    for finding in found {
        let name = finding.about.name();
        let about = if name == before { "" } else { name };
        before = name;
        // Writing to a String cannot fail. What stands in files of others is theirs to choose.
        let _ = writeln!(text, "{about:<widest$}  {:<5}  {}", finding.state.name(), printable(&finding.says));
        if let Some(remedy) = &finding.remedy {
            let _ = writeln!(text, "{:<widest$}  {:<5}    what to do: {}", "", "", printable(remedy));
        }
    }
    let wrong = found.iter().filter(|finding| finding.state == State::Wrong).count();
    text + &match wrong {
        0 => "\nnothing is wrong\n".to_owned(),
        1 => "\none thing is wrong\n".to_owned(),
        many => format!("\n{many} things are wrong\n"),
    }
}
