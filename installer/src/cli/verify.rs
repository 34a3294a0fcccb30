//! `gybe verify`: are the connections of a namespace redirected as a policy or a pod asks?

use super::answer::{Answer, Exit, Failure};
use super::backend::BackendArg;
use super::namespace::NetnsArg;
use super::wish::{Asked, Place, WishArgs};
use crate::verdict::judge;
use clap::Args;
use gybe_netfilter::verdict::{self, Desired, Verdict};
use gybe_plugin::gates::InitContainer;
use serde_json::json;

/// Say whether a pod's connections are redirected as a policy or a pod asks.
///
/// Exit code 0: they are, and our rules are exactly those asked for. 1: they are not, or it cannot be
/// known, with the reasons. 2: it could not be found out. A pod that is left alone asks for no rule of ours.
#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    netns: NetnsArg,
    #[command(flatten)]
    wish: WishArgs,
    #[command(flatten)]
    backend: BackendArg,
}

impl VerifyArgs {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let wish = self.wish.one()?;
        let there = self.netns.open()?;
        let only = self.backend.reads_only();
        let judged = |desired| {
            let verdict = there.inside(|| judge(desired, only))?;
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
}

fn answer(verdict: &Verdict, origin: &str) -> Answer {
    let holds = verdict.holds();
    let word = match verdict.answer {
        verdict::Answer::NotRedirected => "NOT REDIRECTED: ",
        verdict::Answer::ByOthers => "redirected by others: ",
        verdict::Answer::Unknown => "unknown: ",
        verdict::Answer::Redirected | verdict::Answer::NotMeshed => "",
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
