//! `gybe render`: the rules a wish asks for, as a script. Touches no namespace.

use super::answer::{Answer, Failure};
use super::namespace::FamiliesArg;
use super::wish::{Asked, InitArg, Place, WishArgs};
use crate::families::Families;
use clap::{Args, ValueEnum};
use gybe_netfilter::compile::compile;
use gybe_netfilter::show::show;
use serde_json::{Value, json};

/// Print the rules a policy or a pod asks for, as a script that `nft -f` reads.
///
/// No namespace is at hand, so IPv6 is redirected only when the wish says so (enable_ipv6,
/// ISTIO_DUAL_STACK) or --families does. Of a manifest with several pods each has its script.
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
        let mut text = String::new();
        let mut json = Vec::new();
        for wish in self.wish.all()? {
            let asked = wish.asked(&place, self.init.gate())?;
            text.push_str(&script(wish.origin(), &asked));
            json.push(object(wish.origin(), &asked));
        }
        Ok(Answer::yes(text, Value::Array(json)))
    }
}

/// Also what is left alone is a script: a comment.
fn script(origin: &str, asked: &Asked) -> String {
    match asked {
        Asked::Redirect(policy) => format!("# {origin}\n{}", show(&compile(policy))),
        Asked::LeaveAlone(reason) => format!("# {origin} is left alone: {reason}\n"),
    }
}

fn object(origin: &str, asked: &Asked) -> Value {
    match asked {
        Asked::Redirect(policy) => json!({
            "name": origin,
            "redirected": true,
            "families": match policy.families { Families::V4Only => "v4", Families::V4AndV6 => "dual" },
            "backend": "nft",
            "script": show(&compile(policy)),
        }),
        Asked::LeaveAlone(reason) => json!({ "name": origin, "redirected": false, "reason": reason }),
    }
}
