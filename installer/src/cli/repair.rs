//! `gybe repair`: redirects running pods of this node that should be redirected and are not.

use super::input::complete;
use super::output::{CommandError, CommandOutput, Exit};
use super::pods::{OnNodeArgs, POD, as_json};
use super::style::{bad, doubtful, examples, good, titles};
use crate::lead::process::stop_signal;
use crate::log::Log;
use crate::pod::manifest::printable;
use crate::probe::host_mounts::{HOST_MOUNTS, HostMounts};
use crate::sandboxes::repair::{Action, AmbientOutcome, Occasion, RepairPass, RepairReport, watch};
use crate::sandboxes::{PolicySources, SandboxList};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Redirect running pods of this node that should be redirected and are not
///
/// Such pods started before gybe-cni was in the runtime's chain, or lost their rules. Judges every pod sandbox as
/// `gybe verify --all` does, and writes the rules of those that should be redirected, whose ADD has ended and whose
/// namespace has no rules of Gybe. Leaves alone and reports every sandbox about which anything is unclear, those that
/// istio-cni or istio-init redirects, and those whose rules of Gybe differ from their policy. TCP connections that are
/// open keep their path, past the proxy; new ones are redirected. In ambient mode it also replaces istio-cni's rules of
/// ambient pods, whose connections go on.
///
/// The node needs an entry of gybe-cni in its conf file: it names the sources of the pods' policies. Exit code 0: no
/// sandbox is left that should be redirected and is not, or that ztunnel does not serve. 1: there is one, or a verdict
/// is not known. 2: the command failed.
#[derive(Debug, Args)]
#[command(after_help = examples(&["gybe repair --dry-run", "gybe repair", "gybe repair --json"]))]
pub(super) struct RepairArgs {
    /// Print what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Keep running: make a pass whenever an ADD has ended, and every minute
    #[arg(long, conflicts_with = "dry_run")]
    watch: bool,
    /// Run in the host's mount namespace: with its programs, directories and sockets
    #[arg(long)]
    pub(super) host: bool,
    /// The file of the host's mount namespace
    #[arg(long, value_name = "PATH", default_value = HOST_MOUNTS, requires = "host")]
    mount_namespace: PathBuf,
    #[command(flatten)]
    on_node: OnNodeArgs,
}

impl RepairArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        if !self.host {
            return self.run_in_current_mounts();
        }
        let cannot = |why| CommandError::hinted("cannot repair pods", why);
        HostMounts::open(&self.mount_namespace)
            .map_err(cannot)?
            .run(|| self.run_in_current_mounts())
            .map_err(cannot)?
    }

    /// Runs in the mount namespace of the calling thread.
    fn run_in_current_mounts(&self) -> Result<CommandOutput, CommandError> {
        let node = self.on_node.node();
        if self.watch {
            let stop = stop_signal().map_err(|why| CommandError::because("cannot wait for signals", why))?;
            watch(&node, Occasion::Always, stop.as_fd(), &Log::default());
            return Ok(CommandOutput::done("", json!({ "stopped": true })));
        }
        let Some(conf) = node.conf() else {
            return Err(CommandError::new(NO_ENTRY).with_hint(INSTALL));
        };
        let SandboxList { sandboxes, unreadable } = complete(node.sandboxes())?;
        let sources = PolicySources::of(conf.clone());
        let is_in_force = || node.conf().as_ref() == Some(&conf);
        let in_force = (!self.dry_run).then_some(&is_in_force as &(dyn Fn() -> bool + Sync));
        let pass = RepairPass { conf: &conf, sources: &sources, in_force };
        Ok(self.output(&pass.run(sandboxes), &unreadable))
    }

    fn output(&self, reports: &[RepairReport], unreadable: &[String]) -> CommandOutput {
        let names: Vec<String> =
            reports.iter().map(|report| printable(&report.before.sandbox.to_string())).collect();
        let widest = names.iter().map(String::len).chain([POD.len()]).max().unwrap_or(0);
        let mut text = String::new();
        if !reports.is_empty() {
            text += &titles(&format!("{POD:<widest$}  RESULT"));
            text.push('\n');
        }
        for (name, report) in names.iter().zip(reports) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name:<widest$}  {}", self.line(report));
        }
        let _ = writeln!(text, "{}", self.summary(reports));
        let holds = unreadable.is_empty() && reports.iter().all(|it| it.is_well() && is_served(it));
        let json = json!({
            "holds": holds,
            "dry_run": self.dry_run,
            "sandboxes": reports.iter().map(report_as_json).collect::<Vec<_>>(),
            "unreadable": unreadable,
        });
        let notes = unreadable.iter().map(|what| format!("note: sandboxes may be missing: {what}")).collect();
        CommandOutput { text, json, exit: if holds { Exit::Yes } else { Exit::No }, notes }
    }

    fn line(&self, report: &RepairReport) -> String {
        let reason = printable(&report.decision.reason);
        match &report.ambient {
            Some(Ok(AmbientOutcome::Enrolled(_))) => {
                return format!("{}: ztunnel serves it", good("enrolled"));
            }
            Some(Ok(AmbientOutcome::Restarted(ports))) => {
                let before = if ports.is_empty() { "nothing to do" } else { "served again" };
                return format!("{}: ztunnel listens in it", good(before));
            }
            Some(Ok(AmbientOutcome::NotServed)) => {
                return format!("{}: {NOT_SERVED}", doubtful("not served"));
            }
            Some(Ok(AmbientOutcome::Draining { open, .. })) => {
                let open = open.map_or_else(|| "too many".to_owned(), |open| open.to_string());
                let open = format!("{open} captured TCP connections are open; {RUN_AGAIN}");
                return format!("{}: {open}", doubtful("leaves ambient mode"));
            }
            Some(Ok(AmbientOutcome::Left)) => return format!("{}: {reason}", good("left ambient mode")),
            Some(Err(why)) => return format!("{}: {}", bad("NOT CHANGED"), printable(why)),
            None => {}
        }
        match (&report.repair, report.decision.action) {
            (Some(Ok(repaired)), _) => {
                let open = match repaired.open_connections {
                    0 => String::new(),
                    1 => "; 1 TCP connection was open and bypasses the proxy".to_owned(),
                    many => format!("; {many} TCP connections were open and bypass the proxy"),
                };
                format!("{}: {} wrote its rules{open}", good("repaired"), repaired.backend)
            }
            (Some(Err(why)), _) => format!("{}: {}", bad("NOT REPAIRED"), printable(why)),
            (None, Action::None) if !report.is_well() => format!("{}: {reason}", doubtful("not yet")),
            (None, Action::None) => format!("{}: {reason}", good("nothing to do")),
            (None, Action::Repair) => format!("{}: {reason}", doubtful("would be repaired")),
            (None, Action::Enrol) => format!("{}: {reason}", doubtful("would be enrolled")),
            (None, Action::Restart) => format!("{}: {reason}", doubtful("would be served again")),
            (None, Action::Leave) => format!("{}: {reason}", doubtful("would leave ambient mode")),
            (None, Action::Report) => {
                let verdict = printable(&report.before.line());
                format!("{}: {reason} ({verdict})", bad("left alone"))
            }
        }
    }

    fn summary(&self, reports: &[RepairReport]) -> String {
        let count = |is_counted: fn(&RepairReport) -> bool| {
            reports.iter().filter(|report| is_counted(report)).count()
        };
        let repaired = count(|report| matches!(report.repair, Some(Ok(_))));
        let failed = count(|report| matches!(report.repair, Some(Err(_))));
        let to_be_repaired = count(RepairReport::is_to_be_repaired);
        let left_alone = count(|report| report.decision.action == Action::Report);
        let waiting = count(|report| {
            report.repair.is_none() && report.decision.action == Action::None && !report.is_well()
        });
        let unchanged = count(|report| !is_served(report) || matches!(report.ambient, Some(Err(_))));
        let changed = count(|report| report.ambient.is_some()) - unchanged;
        let to_be_changed = count(|report| {
            let action = report.decision.action;
            report.ambient.is_none() && matches!(action, Action::Enrol | Action::Restart | Action::Leave)
        });
        let parts = [
            (to_be_repaired, "would be repaired"),
            (repaired, "repaired"),
            (failed, "not repaired"),
            (to_be_changed, "would be enrolled, served again or taken out of ambient mode"),
            (changed, "enrolled, served again or taken out of ambient mode"),
            (unchanged, "not changed"),
            (left_alone, "left alone"),
            (waiting, "not yet redirected"),
        ];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, outcome)| format!("{count} {outcome}"))
            .collect();
        let parts = if parts.is_empty() { "nothing to repair".to_owned() } else { parts.join(", ") };
        match reports.len() {
            0 => "no pod sandbox on this node".to_owned(),
            1 => format!("1 sandbox: {parts}"),
            many => format!("{many} sandboxes: {parts}"),
        }
    }
}

const NO_ENTRY: &str =
    "this node's conf file has no entry of gybe-cni, so the policies of its pods are not known";
const INSTALL: &str = "install Gybe on this node first; gybe doctor reports what is missing";

/// What ends ambient mode of a pod that leaves.
const RUN_AGAIN: &str =
    "run it again when they have ended, and 15 s after the agent has removed the pod's annotation";

/// The line and the error of a sandbox that is not served.
const NOT_SERVED: &str = "ztunnel does not listen in it; see the agent's /readyz";

/// Reports whether no request to ztunnel has failed because it is away or slow.
fn is_served(report: &RepairReport) -> bool {
    !matches!(report.ambient, Some(Ok(AmbientOutcome::NotServed)))
}

fn report_as_json(report: &RepairReport) -> Value {
    let mut json = as_json(&report.before);
    let (repaired, error) = match (&report.repair, &report.ambient) {
        (Some(Ok(repaired)), _) | (_, Some(Ok(AmbientOutcome::Enrolled(Some(repaired))))) => {
            (Some(repaired), None)
        }
        (Some(Err(why)), _) | (_, Some(Err(why))) => (None, Some(why.as_str())),
        _ if !is_served(report) => (None, Some(NOT_SERVED)),
        _ => (None, None),
    };
    let more = json!({
        "action": report.decision.action.name(),
        "reason": report.decision.reason,
        "repaired": repaired.is_some(),
        "backend": repaired.map(|repaired| repaired.backend),
        "open_connections": repaired.map(|repaired| repaired.open_connections),
        "error": error,
    });
    if let (Some(json), Value::Object(more)) = (json.as_object_mut(), more) {
        json.extend(more);
    }
    json
}
