//! `gybe probe`: what works on this node, what writes the rules, and why.

use super::answer::{Answer, Exit, Failure};
use super::backend::BackendArg;
use crate::agent::probe_loop::{self, untried};
use crate::agent::stop_signal;
use crate::log::Log;
use crate::probe::host_mounts::{HOST_MOUNTS, HostMounts, HostMountsError};
use clap::Args;
use gybe_netfilter::backend::BackendKind;
use gybe_netfilter::choose::{BackendSetting, Choice, NoBackend, choose};
use gybe_netfilter::hint::Hint;
use gybe_netfilter::probe::{Capabilities, Finding, Findings};
use gybe_plugin::probe_cache::{Age, Learnt, ProbeCache};
use gybe_plugin::probed;
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Find out what works on this node, what writes the rules of its pods, and why.
///
/// Every kind of policy is written by every backend into a network namespace made for it, read back,
/// and put to use with connections. What was found out is kept in /run/gybe/probe.json until the next
/// boot. Exit code 0: a backend works. 1: none does, or not the one that was named. 2: it could not be
/// found out. iptables-legacy is tried only where its part of the kernel is loaded.
///
/// In a container that has capabilities and the host's /proc, `--host --watch --keep` with
/// `--mount-namespace=/host/proc/1/ns/mnt` finds out for the plugin and the node agent, and goes on doing so.
#[derive(Debug, Args)]
pub(super) struct ProbeArgs {
    #[command(flatten)]
    backend: BackendArg,
    /// Try it all again, whatever is known
    #[arg(long)]
    fresh: bool,
    /// Try it all in the host's mount namespace: with its programs, kept in its /run/gybe
    #[arg(long)]
    host: bool,
    /// Where the host's mount namespace is found
    #[arg(long, value_name = "PATH", default_value = HOST_MOUNTS, requires = "host")]
    mount_namespace: PathBuf,
    /// Fail when what was found out cannot be kept
    #[arg(long)]
    keep: bool,
    /// Stay, and try again when what was kept is forgotten, doubtful or another kernel's
    #[arg(long)]
    watch: bool,
}

impl ProbeArgs {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        if self.watch {
            return self.stay();
        }
        let age = if self.fresh || self.host { Age::Fresh } else { Age::Recent };
        let learnt = self.there(|| ProbeCache::default().learn(age, untried))?;
        let learnt = self.kept(learnt.map_err(cannot_probe)?)?;
        Ok(answer(&learnt, self.backend.setting))
    }

    /// The first trial has to succeed: what it lacks would be lacking for ever.
    fn stay(&self) -> Result<Answer, Failure> {
        let stop = stop_signal().map_err(|why| Failure::because("cannot wait for signals", why))?;
        let learnt = self.there(probe_loop::probe_all)?;
        let learnt = self.kept(learnt.map_err(cannot_probe)?)?;
        self.there(|| probe_loop::watch(&learnt, &stop, &Log::default()))?;
        Ok(Answer::yes("", json!({ "stopped": true })))
    }

    /// Does `work` where it is to be done.
    fn there<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Failure> {
        if self.host { on_host(&self.mount_namespace, work).map_err(cannot_probe) } else { Ok(work()) }
    }

    fn kept(&self, learnt: Learnt) -> Result<Learnt, Failure> {
        match learnt.not_kept {
            Some(why) if self.keep => {
                Err(Failure::because("what was found out cannot be kept in /run/gybe", why))
            }
            _ => Ok(learnt),
        }
    }
}

fn on_host<T: Send>(namespace: &Path, work: impl FnOnce() -> T + Send) -> Result<T, HostMountsError> {
    crate::probe::check()?;
    HostMounts::open(namespace)?.run(work)
}

fn cannot_probe(why: impl Error + Hint + 'static) -> Failure {
    Failure::hinted("cannot probe", why)
}

fn answer(learnt: &Learnt, setting: BackendSetting) -> Answer {
    let chosen = choose(&learnt.capabilities, setting);
    let exit = if chosen.is_ok() { Exit::Yes } else { Exit::No };
    let text = listing(&learnt.capabilities) + &verdict(&chosen);
    let mut json = probed::to_json(&learnt.node, &learnt.capabilities);
    if let Some(members) = json.as_object_mut() {
        members.insert("requested".to_owned(), setting.to_string().into());
        members.insert("chosen".to_owned(), as_json(&chosen));
    }
    let untried = learnt.capabilities.untried.iter().map(|what| format!("note: not tried: {what}"));
    let not_kept = learnt.not_kept.iter().map(|why| format!("note: this cannot be kept in /run/gybe: {why}"));
    Answer { text, json, exit, notes: untried.chain(not_kept).collect() }
}

/// One line for each finding, in columns: `nft  v4+v6  works`.
fn listing(found: &Capabilities) -> String {
    let known = BackendKind::ALL.into_iter().filter_map(|kind| Some((kind, found.backends.get(kind)?)));
    let rows = known.flat_map(|(kind, findings)| match all_alike(findings) {
        Some(finding) => vec![(kind.name(), "all", finding)],
        None => findings.iter().map(|(profile, finding)| (kind.name(), profile.name(), finding)).collect(),
    });
    let rows: Vec<(&str, &str, &Finding)> = rows.collect();
    let widest = |column: fn(&(&str, &str, &Finding)) -> usize| rows.iter().map(column).max().unwrap_or(0);
    let (first, second) = (widest(|row| row.0.len()), widest(|row| row.1.len()));
    rows.iter().map(|(kind, what, finding)| format!("{kind:<first$}  {what:<second$}  {finding}\n")).collect()
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
            let missing = missing.iter().map(|(profile, what)| (profile.name().to_owned(), json!(what)));
            json!({ "backend": backend.name(), "why": why, "missing": missing.collect::<serde_json::Map<_, _>>() })
        }
        Err(none) => json!({ "backend": null, "why": none.to_string(), "hint": none.hint() }),
    }
}
