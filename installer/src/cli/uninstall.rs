//! `gybe uninstall`: removes Gybe from this node's chain, and the programs once nothing can call them.

use super::input::DirectoriesArg;
use super::install::image;
use super::output::{CommandError, CommandOutput, Exit};
use super::pass;
use super::style::{bad, doubtful, examples, good};
use crate::diagnosis::doctor::observe::{AgentContact, query_agent, runtimes_of};
use crate::error::chain;
use crate::host::desired::{PutBack, Uninstall};
use crate::host::observe::{FileName, NodeDirectories};
use crate::host::settings::FACTS_SOCKET;
use crate::host::uninstall::{self, KeptProgram, KeptReason, OtherDirectories, UninstallReport};
use crate::sandboxes::probe_exemption::{self, REMOVAL};
use clap::Args;
use gybe_plugin::probe_cache::DIRECTORY;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Remove gybe-cni from this node's chain of CNI plugins, then the programs
///
/// First removes Gybe's entry from every conf file and leaves every other byte as it was; then, when nothing
/// can call them any more, removes the programs. The plugin stays and answers DEL as long as a running sandbox
/// may call it, and for at least five minutes after a change of the conf directory; gybe stays with it. Run
/// the command again until it reports that it is finished.
///
/// Refused while the node agent runs and is not in mode: leave, because the agent would restore its entry within a
/// second. Exit code 0: no conf file names gybe-cni. 1: a problem prevents it, and is printed. 2: refused, or the
/// command failed.
#[derive(Debug, Args)]
#[command(after_help = examples(&["gybe uninstall --dry-run", "gybe uninstall", "gybe uninstall --put-back-istio"]))]
pub(super) struct UninstallArgs {
    #[command(flatten)]
    directories: DirectoriesArg,
    /// The --conf-name that was given to install [default: every conf file is searched]
    #[arg(long, value_name = "NAME")]
    conf_name: Option<String>,
    /// Restore the istio-cni entry that Gybe replaced, if istio-cni's program still exists
    #[arg(long)]
    put_back_istio: bool,
    /// The directory of Gybe's sockets and of the probe's findings
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    run_dir: PathBuf,
    /// Uninstall although the node agent runs; it then restores its entry unless it is in mode: leave
    #[arg(long)]
    force: bool,
    /// Print the plan and the problems that block it (exit code 1); change nothing
    #[arg(long)]
    dry_run: bool,
}

impl UninstallArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        let directories = self.directories.node_directories();
        let uninstall = self.desired_uninstall(&directories)?;
        let (root, mut notes) = (self.directories.root(), Vec::new());
        let agent = query_agent(&self.run_dir.join(FACTS_SOCKET));
        if agent.is_running() && !agent.leaves() {
            if !self.dry_run && !self.force {
                return Err(refusal(&agent));
            }
            notes.push(format!(
                "note: {}, and restores its entry within a second: {PREREQUISITE}",
                running(&agent)
            ));
        }
        let runtimes = runtimes_of(root, &directories);
        if self.dry_run {
            notes.extend(OtherDirectories::than(&directories, root).note());
            let plan = UninstallReport::planned(&directories, &uninstall, runtimes);
            return Ok(pass::dry_run(&plan).with_notes(notes));
        }
        let report = UninstallReport::now(&directories, &uninstall, &runtimes, root)
            .map_err(|why| CommandError::hinted("cannot uninstall", why))?;
        if report.is_finished()
            && let Err(why) = probe_exemption::uninstall(root, &self.run_dir)
        {
            notes.push(format!("note: the kubelet's probes may stay exempt: {}; {REMOVAL}", chain(&why)));
        }
        let not_removed = match report.is_out() {
            true => uninstall::forget_run_directory(&self.run_dir, report.is_finished()),
            false => Vec::new(),
        };
        notes.extend(not_removed.iter().map(|(path, why)| format!("note: {} stays: {why}", path.display())));
        notes.extend(report.elsewhere.note());
        let exit = if report.is_out() { Exit::Yes } else { Exit::No };
        Ok(CommandOutput { text: text(&report), json: as_json(&report), exit, notes })
    }

    fn desired_uninstall(&self, directories: &NodeDirectories) -> Result<Uninstall, CommandError> {
        let conf_name = self.conf_name.as_ref().map(|name| FileName::new(name.as_str())).transpose();
        let pinned = conf_name.map_err(|why| CommandError::because("cannot use --conf-name", why))?;
        let put_back = if self.put_back_istio { PutBack::Istio } else { PutBack::Nothing };
        // A closure: the image is read only if the installed plugin cannot be.
        Ok(uninstall::desired_uninstall(directories, || image(None).ok(), pinned, put_back))
    }
}

/// What an operator has to do before `gybe uninstall`.
const PREREQUISITE: &str = "set mode: leave in the ConfigMap gybe-config, or delete the DaemonSet gybe-node";

/// The reason that an agent prevents the uninstall.
fn running(agent: &AgentContact) -> String {
    format!("the node agent runs and answers at {}", agent.socket.display())
}

fn refusal(agent: &AgentContact) -> CommandError {
    let what = format!("cannot uninstall: {}, and would restore its entry within a second", running(agent));
    CommandError::new(what).with_hint(format!(
        "{PREREQUISITE}; if that is done and the agent still runs, use gybe uninstall --force"
    ))
}

fn text(report: &UninstallReport) -> String {
    let passes: String = report.passes.iter().map(pass::text).filter(|text| text != pass::NOTHING).collect();
    let stays =
        report.stays.iter().map(|KeptProgram { program, until }| format!("{program} stays {until}\n"));
    let end = match (report.is_finished(), report.is_out()) {
        (true, _) => format!("{}: nothing of gybe is left\n", good("finished")),
        (false, true) if report.stays.is_empty() => {
            format!("{}: something of gybe is in other directories\n", doubtful("not finished"))
        }
        (false, true) => {
            format!(
                "no conf file names gybe-cni; to finish, run gybe uninstall again {}\n",
                when(&report.stays)
            )
        }
        (false, false) => format!("{}: a conf file still names gybe-cni\n", bad("not uninstalled")),
    };
    passes + &stays.collect::<String>() + &end
}

/// When the next `gybe uninstall` may remove the programs that stay.
fn when(stays: &[KeptProgram]) -> String {
    let seconds = stays.iter().filter_map(|kept| match kept.until {
        KeptReason::GracePeriod { seconds } => Some(seconds),
        _ => None,
    });
    if stays.iter().any(|kept| kept.until == KeptReason::Named) {
        return "when these sandboxes have ended".to_owned();
    }
    match seconds.max() {
        Some(seconds) => format!("in {seconds} s"),
        None => "once that has changed".to_owned(),
    }
}

fn as_json(report: &UninstallReport) -> Value {
    let stays = report.stays.iter().map(
        |KeptProgram { program, until }| json!({ "program": program.to_string(), "until": until.to_string() }),
    );
    json!({
        "out": report.is_out(),
        "finished": report.is_finished(),
        "elsewhere": { "conf": report.elsewhere.conf, "programs": report.elsewhere.programs },
        "stays": stays.collect::<Vec<_>>(),
        "passes": report.passes.iter().map(pass::json).collect::<Vec<_>>(),
    })
}
