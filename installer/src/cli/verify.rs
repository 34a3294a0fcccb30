//! `gybe verify`: does a namespace hold exactly the rules a wish asks for?

use super::answer::{Answer, Exit, Failure};
use super::backend::{self, BackendArg, Reader};
use super::namespace::{NetnsArg, Opened};
use super::wish::{Asked, Place, WishArgs};
use clap::Args;
use gybe_netfilter::backend::Inventory;
use gybe_netfilter::policy::RedirectPolicy;
use gybe_plugin::gates::InitContainer;
use serde_json::json;

/// Say whether a network namespace holds exactly the rules a policy or a pod asks for.
///
/// Exit code 0: exactly these. 1: it differs, and the differences are printed. 2: it could not be
/// found out. A pod that is left alone asks for no rule of ours.
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
        let tools = self.backend.readers(&there)?;
        let place = Place::Namespace(there.addresses()?);
        let (differences, notes) = match wish.asked(&place, InitContainer::Counts)? {
            Asked::Redirect(policy) => (differences(&there, &tools, &policy)?, place.notes(&wish, &policy)),
            Asked::LeaveAlone(reason) => {
                let note = format!("note: {} is left alone: {reason}", wish.origin());
                (leftovers(&there, &tools)?, vec![note])
            }
        };
        let beside = backend::notes(&backend::presence(&there)?.beside);
        Ok(answer(&differences, wish.origin()).noting([notes, beside].concat()))
    }
}

/// By the first of them: what others have written beside it is among the differences.
fn differences(
    there: &Opened<'_>,
    tools: &[Reader],
    policy: &RedirectPolicy,
) -> Result<Vec<String>, Failure> {
    let Some(tool) = tools.first() else { return Ok(Vec::new()) };
    let found = there.inside(|| tool.written(policy)?.differences(&*tool.backend))?;
    let found = found.map_err(|why| Failure::hinted(cannot_read(there), why))?;
    Ok(found.iter().map(ToString::to_string).collect())
}

fn leftovers(there: &Opened<'_>, tools: &[Reader]) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    for tool in tools {
        let found = there.inside(|| tool.backend.inspect())?;
        let found = found.map_err(|why| Failure::hinted(cannot_read(there), why))?;
        all.extend(Inventory::default().differences(&found).iter().map(ToString::to_string));
    }
    Ok(all)
}

fn cannot_read(there: &Opened<'_>) -> String {
    format!("cannot read the rules in {}", there.path())
}

fn answer(differences: &[String], origin: &str) -> Answer {
    let holds = differences.is_empty();
    let text = match holds {
        true => format!("exactly as {origin} asks\n"),
        false => differences.iter().map(|line| format!("{line}\n")).collect(),
    };
    let exit = if holds { Exit::Yes } else { Exit::No };
    Answer { text, json: json!({ "holds": holds, "differences": differences }), exit, notes: Vec::new() }
}
