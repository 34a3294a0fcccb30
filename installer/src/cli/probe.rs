//! `gybe probe`: tries every backend on this node and prints which one is used, and why.

use super::backend::BackendArg;
use super::output::{CommandError, CommandOutput, Exit};
use super::style::{examples, titles};
use crate::lead::process::stop_signal;
use crate::log::Log;
use crate::probe::host_mounts::{HOST_MOUNTS, HostMounts, HostMountsError};
use crate::probe_loop::{self, Keep, untried};
use crate::sandboxes::repair::RepairNode;
use clap::Args;
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::model::Hint;
use gybe_netfilter::probe::choose::{BackendSetting, Choice, NoBackend, choose};
use gybe_netfilter::probe::{Capabilities, Finding, Findings};
use gybe_plugin::probe_cache::{MaxAge, ProbeCache, ProbeReport, findings};
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Try every backend on this node, and print which one writes the rules of its pods
///
/// Each backend writes each kind of policy into a temporary network namespace and reads it back; then connections
/// test the rules. The findings are kept in /run/gybe/probe.json until the next boot. Exit code 0: a backend works.
/// 1: none works, or not the one that --backend names. 2: the command failed. iptables-legacy is tried only
/// if its kernel modules are loaded.
///
/// In a container with the necessary capabilities and the host's /proc, `--host --watch --keep` with
/// `--mount-namespace=/host/proc/1/ns/mnt` keeps the findings up to date for the plugin and the node agent; in an init
/// container `--host --for-agent` keeps them once.
#[derive(Debug, Args)]
#[command(after_help = examples(&["gybe probe", "gybe probe --fresh --backend iptables-nft"]))]
pub(super) struct ProbeArgs {
    #[command(flatten)]
    backend: BackendArg,
    /// Probe again, and ignore the kept findings
    #[arg(long)]
    fresh: bool,
    /// Probe in the host's mount namespace: with its programs, and findings kept in its /run/gybe
    #[arg(long)]
    pub(super) host: bool,
    /// The file of the host's mount namespace
    #[arg(long, value_name = "PATH", default_value = HOST_MOUNTS, requires = "host")]
    mount_namespace: PathBuf,
    /// Fail if the findings cannot be kept
    #[arg(long)]
    keep: bool,
    /// Keep running, and probe again when the kept findings are removed, invalid or another kernel's
    #[arg(long, conflicts_with = "for_agent")]
    watch: bool,
    /// Keep the findings and the report about the node's runtimes for the node agent, and exit with 0 also when nothing
    /// works or nothing can be kept: the agent reports it
    #[arg(long)]
    for_agent: bool,
    /// With --watch: also redirect running pods that should be redirected and are not, unless the agent's setting
    /// `repair` is off
    #[arg(long, requires = "watch")]
    repair: bool,
    /// The root directory of the node whose pods are repaired
    #[arg(long, value_name = "DIR", default_value = "/", requires = "repair")]
    root: PathBuf,
    /// The runtime's directory of network configurations [default: this kind of node's, usually /etc/cni/net.d]
    #[arg(long, value_name = "DIR", requires = "repair")]
    conf_dir: Option<PathBuf>,
}

impl ProbeArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        if self.watch {
            return self.probe_and_watch();
        }
        if self.for_agent {
            return Ok(self.probe_for_agent());
        }
        let age = if self.fresh || self.host { MaxAge::Fresh } else { MaxAge::Recent };
        let report = self.in_mount_namespace(|| ProbeCache::default().get_or_probe(age, untried))?;
        let report = self.check_stored(report.map_err(cannot_probe)?)?;
        Ok(output(&report, self.backend.setting))
    }

    fn probe_for_agent(&self) -> CommandOutput {
        let log = Log::default();
        let kept = self.in_mount_namespace(|| probe_loop::run_once(&log));
        let kept = kept.and_then(|kept| kept.map_err(cannot_probe));
        if let Err(why) = &kept {
            log.error("gybe probe: nothing is kept for the agent", json!({ "why": why.to_string() }));
        }
        CommandOutput::done("", json!({ "kept": kept.is_ok() }))
    }

    fn probe_and_watch(&self) -> Result<CommandOutput, CommandError> {
        let stop = stop_signal().map_err(|why| CommandError::because("cannot wait for signals", why))?;
        let keep = if self.keep { Keep::Required } else { Keep::IfPossible };
        let watched = self.in_mount_namespace(|| {
            let node = self.repair.then(|| RepairNode::of_host(&self.root, self.conf_dir.as_deref()));
            probe_loop::run(&stop, keep, node.as_ref(), &Log::default())
        })?;
        watched.map_err(cannot_probe)?;
        Ok(CommandOutput::done("", json!({ "stopped": true })))
    }

    /// Runs `work`, with --host in the host's mount namespace.
    fn in_mount_namespace<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, CommandError> {
        if self.host { on_host(&self.mount_namespace, work).map_err(cannot_probe) } else { Ok(work()) }
    }

    fn check_stored(&self, report: ProbeReport) -> Result<ProbeReport, CommandError> {
        match report.store_error {
            Some(why) if self.keep => {
                Err(CommandError::because("the findings cannot be kept in /run/gybe", why))
            }
            _ => Ok(report),
        }
    }
}

fn on_host<T: Send>(namespace: &Path, work: impl FnOnce() -> T + Send) -> Result<T, HostMountsError> {
    crate::probe::check()?;
    HostMounts::open(namespace)?.run(work)
}

fn cannot_probe(why: impl Error + Hint + Send + 'static) -> CommandError {
    CommandError::hinted("cannot probe", why)
}

fn output(report: &ProbeReport, setting: BackendSetting) -> CommandOutput {
    let chosen = choose(&report.capabilities, setting);
    let exit = if chosen.is_ok() { Exit::Yes } else { Exit::No };
    let text = listing(&report.capabilities) + &verdict(&chosen);
    let mut json = findings::to_json(&report.node, &report.capabilities);
    if let Some(members) = json.as_object_mut() {
        members.insert("requested".to_owned(), setting.to_string().into());
        members.insert("chosen".to_owned(), as_json(&chosen));
    }
    let untried = report.capabilities.untried.iter().map(|what| format!("note: not tried: {what}"));
    let store_error =
        report.store_error.iter().map(|why| format!("note: the findings cannot be kept in /run/gybe: {why}"));
    CommandOutput { text, json, exit, notes: untried.chain(store_error).collect() }
}

/// One line for each finding: `nft  v4+v6  works`. A backend with the same finding for every kind of policy has
/// one line.
fn listing(found: &Capabilities) -> String {
    let known = BackendKind::ALL.into_iter().filter_map(|kind| Some((kind, found.backends.get(kind)?)));
    let rows = known.flat_map(|(kind, findings)| match all_alike(findings) {
        Some(finding) => vec![(kind.name(), "all", finding)],
        None => findings.iter().map(|(profile, finding)| (kind.name(), profile.name(), finding)).collect(),
    });
    let rows: Vec<(&str, &str, &Finding)> = rows.collect();
    let widest = |column: fn(&(&str, &str, &Finding)) -> usize| rows.iter().map(column).max().unwrap_or(0);
    let first = widest(|row| row.0.len()).max("BACKEND".len());
    let second = widest(|row| row.1.len()).max("POLICY".len());
    let titles = titles(&format!("{:<first$}  {:<second$}  FINDING", "BACKEND", "POLICY"));
    let rows: String = rows
        .iter()
        .map(|(kind, what, finding)| format!("{kind:<first$}  {what:<second$}  {finding}\n"))
        .collect();
    format!("{titles}\n{rows}")
}

fn all_alike(findings: &Findings) -> Option<&Finding> {
    let first = findings.values().next()?;
    findings.values().all(|other| other == first).then_some(first)
}

fn verdict(chosen: &Result<Choice, NoBackend>) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = match chosen {
        Ok(choice) => writeln!(text, "\n{} writes the rules ({})", choice.backend, choice.why),
        Err(none) => {
            writeln!(
                text,
                "\n{none}\n{}",
                none.hint().map(|hint| format!("hint: {hint}")).unwrap_or_default()
            )
        }
    };
    text
}

fn as_json(chosen: &Result<Choice, NoBackend>) -> Value {
    match chosen {
        Ok(Choice { backend, why, missing }) => {
            let missing =
                missing.iter().map(|(profile, what)| (profile.name().to_owned(), json!(what.to_string())));
            json!({ "backend": backend.name(), "why": why, "missing": missing.collect::<serde_json::Map<_, _>>() })
        }
        Err(none) => json!({ "backend": null, "why": none.to_string(), "hint": none.hint() }),
    }
}
