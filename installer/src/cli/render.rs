//! `gybe render`: the rules a wish asks for, as a script. Touches no namespace.

use super::answer::{Answer, Exit, Failure};
use super::namespace::FamiliesArg;
use super::wish::{Asked, InitArg, Place, Wish, WishArgs};
use crate::pod::families::Families;
use crate::pod::manifest::printable;
use clap::{Args, ValueEnum};
use gybe_netfilter::compile::compile;
use gybe_netfilter::show::show;
use serde_json::{Value, json};

/// Print the rules a policy or a pod asks for, as a script that `nft -f` reads.
///
/// No namespace is at hand, so IPv6 is redirected only when the wish says so (enable_ipv6,
/// ISTIO_DUAL_STACK) or --families does. Of a manifest with several pods each has its script;
/// when one of them is refused, the others are printed, it is named, and the exit code is 2.
#[derive(Debug, Args)]
pub(super) struct RenderArgs {
    #[command(flatten)]
    wish: WishArgs,
    #[command(flatten)]
    families: FamiliesArg,
    #[command(flatten)]
    init: InitArg,
    /// Whose language the script is written in
    #[arg(long, value_name = "BACKEND", default_value = "nft")]
    backend: Language,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Language {
    Nft,
}

impl RenderArgs {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let Language::Nft = self.backend;
        let place = Place::of(None, self.families.families());
        let wishes = self.wish.all()?;
        let asked = |wish: &Wish| wish.asked(&place, self.init.gate());
        if let [one] = wishes.as_slice() {
            return Ok(answer(&[(one.origin(), Ok(asked(one)?))]));
        }
        let all: Vec<_> = wishes.iter().map(|wish| (wish.origin(), asked(wish))).collect();
        Ok(answer(&all))
    }
}

/// What can be rendered is: one refused pod of a file must not hide the scripts of the others.
fn answer(asked: &[(&str, Result<Asked, Failure>)]) -> Answer {
    let refused = asked.iter().filter_map(|(_, asked)| asked.as_ref().err());
    let notes: Vec<String> = refused.map(|why| format!("gybe: {why}")).collect();
    Answer {
        text: asked.iter().map(|(origin, asked)| script(origin, asked)).collect(),
        json: asked.iter().map(|(origin, asked)| object(origin, asked)).collect(),
        exit: if notes.is_empty() { Exit::Yes } else { Exit::Failed },
        notes,
    }
}

/// Also what is left alone or refused is a script: a comment.
fn script(origin: &str, asked: &Result<Asked, Failure>) -> String {
    match asked {
        Ok(Asked::Redirect(policy)) => format!("# {origin}\n{}", show(&compile(policy))),
        Ok(Asked::LeaveAlone(reason)) => format!("# {origin} is left alone: {reason}\n"),
        Err(why) => format!("# {origin} is refused: {}\n", printable(&why.to_string())),
    }
}

fn object(origin: &str, asked: &Result<Asked, Failure>) -> Value {
    match asked {
        Ok(Asked::Redirect(policy)) => json!({
            "name": origin,
            "redirected": true,
            "families": match policy.families { Families::V4Only => "v4", Families::V4AndV6 => "dual" },
            "backend": "nft",
            "script": show(&compile(policy)),
        }),
        Ok(Asked::LeaveAlone(reason)) => json!({ "name": origin, "redirected": false, "reason": reason }),
        Err(why) => json!({ "name": origin, "redirected": false, "refused": why.to_string() }),
    }
}
