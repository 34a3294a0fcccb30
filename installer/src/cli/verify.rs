//! `gybe verify`: are the connections of a namespace redirected as a policy or a pod asks?

use super::answer::{Answer, Exit, Failure};
use super::backend::BackendArg;
use super::namespace::Opened;
use super::pods::OnNodeArgs;
use super::wish::{Asked, Place, WishArgs};
use crate::host::pods_on_node::word;
use crate::pod::cgroups::Cgroups;
use crate::pod::verdict::judge;
use clap::Args;
use gybe_netfilter::verdict::{self, Desired, Verdict};
use gybe_plugin::gates::InitContainer;
use serde_json::json;
use std::path::PathBuf;

/// Say whether a pod's connections are redirected as a policy or a pod asks.
///
/// Exit code 0: they are, and our rules are exactly those asked for. 1: they are not, or it cannot be
/// known, with the reasons. 2: it could not be found out. A pod that is left alone asks for no rule of ours.
/// With --all, every pod sandbox of this node on a line of its own: redirected, not meshed, NOT REDIRECTED,
/// redirected by another's rules, unknown; exit code 1: one is NOT REDIRECTED, unknown, or its rules of ours
/// differ from those it should have. What a pod should have is learned as the plugin learns it: from the
/// runtime's annotations, and the sources that the node's entry names.
#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// The network namespace: a file like /run/netns/NAME or /proc/PID/ns/net; without it --pod finds it
    #[arg(long, value_name = "PATH", required_unless_present_any = ["all", "pod"])]
    netns: Option<PathBuf>,
    /// Every pod sandbox of this node
    #[arg(long, group = "wish", conflicts_with = "netns")]
    all: bool,
    #[command(flatten)]
    on_node: OnNodeArgs,
    #[command(flatten)]
    wish: WishArgs,
    #[command(flatten)]
    backend: BackendArg,
}

impl VerifyArgs {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let Some(netns) = &self.netns else { return self.on_this_node() };
        let wish = self.wish.one()?;
        let there = Opened::at(netns)?;
        let only = self.backend.reads_only();
        let judged = |desired| {
            let verdict = there.inside(|| judge(desired, only, &Cgroups::of_this_namespace()))?;
            verdict.map_err(|why| Failure::hinted(format!("cannot read the rules in {}", there.path()), why))
        };
        let place = Place::Namespace(there.addresses()?);
        let (verdict, notes) = match wish.asked(&place, InitContainer::Counts)? {
            Asked::Redirect(policy) => (judged(Desired::Policy(&policy))?, place.notes(&wish, &policy)),
            Asked::LeaveAlone(reason) => {
                let note = format!("note: {} is left alone: {reason}", wish.origin());
                (judged(Desired::LeftAlone)?, vec![note])
            }
        };
        let beside = verdict.notes.iter().map(|note| format!("note: {note}")).collect();
        Ok(answer(&verdict, wish.origin()).noting([notes, beside].concat()))
    }

    fn on_this_node(&self) -> Result<Answer, Failure> {
        let conf = self.wish.plugin_conf()?;
        if self.all {
            return Ok(self.on_node.all(conf));
        }
        match self.wish.named_pod() {
            Some(pod) => self.on_node.named(pod, conf),
            None => self.on_node.of_manifest(self.wish.one()?.facts()?, conf),
        }
    }
}

fn answer(verdict: &Verdict, origin: &str) -> Answer {
    let holds = verdict.holds();
    let word = match verdict.answer {
        verdict::Answer::Redirected | verdict::Answer::NotMeshed => String::new(),
        answer => format!("{}: ", word(answer)),
    };
    let reasons = verdict.reasons.iter().map(|reason| format!("{word}{reason}"));
    let text = match holds {
        true => format!("exactly as {origin} asks\n"),
        false => reasons.chain(verdict.differences.iter().cloned()).map(|line| format!("{line}\n")).collect(),
    };
    let differences =
        if verdict.differences.is_empty() && !holds { &verdict.reasons } else { &verdict.differences };
    let json = json!({
        "holds": holds,
        "verdict": verdict.answer.name(),
        "reasons": verdict.reasons,
        "differences": differences,
        "notes": verdict.notes,
    });
    Answer { text, json, exit: if holds { Exit::Yes } else { Exit::No }, notes: Vec::new() }
}
