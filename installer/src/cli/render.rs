//! `gybe render`: prints a policy's rules as an nft script. Opens no namespace.

use super::namespace::FamiliesArg;
use super::output::{CommandError, CommandOutput, Exit};
use super::policy_source::{IgnoreInitArg, PolicyArgs, PolicySource, Requested, Target};
use super::style::examples;
use crate::pod::manifest::printable;
use crate::pod::policy_file::Families;
use clap::{Args, ValueEnum};
use gybe_netfilter::compile::compile_any;
use gybe_netfilter::inspect::show::show;
use serde_json::{Value, json};

/// Print the rules of a policy or a pod as a script for `nft -f`
///
/// No namespace is opened, so IPv6 is redirected only if the policy enables it (enable_ipv6, ISTIO_DUAL_STACK) or
/// --families requests it. A manifest with several pods gives a script for each; if one of them is refused, the
/// others are printed, the refused one is named and the exit code is 2.
#[derive(Debug, Args)]
#[command(after_help = examples(&[
    "gybe render --policy policy.json",
    "kubectl get pod cart-0 -n shop -o yaml | gybe render --pod -",
    "gybe render --pod deployment.yaml --name cart | nft -c -f -",
]))]
pub(super) struct RenderArgs {
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    families: FamiliesArg,
    #[command(flatten)]
    init: IgnoreInitArg,
    /// The language of the script: nft
    #[arg(long, value_name = "BACKEND", default_value = "nft", hide_possible_values = true)]
    backend: Language,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Language {
    Nft,
}

/// The policy of one pod, or why it has none.
struct Rendered<'a> {
    origin: &'a str,
    requested: Result<Requested, CommandError>,
}

impl RenderArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        let Language::Nft = self.backend;
        let target = Target::of(None, self.families.families());
        let sources = self.policy.all()?;
        let render = |source: &PolicySource| source.requested(&target, self.init.gate());
        if let [one] = sources.as_slice() {
            return Ok(output(&[Rendered { origin: one.origin(), requested: Ok(render(one)?) }]));
        }
        let all = sources.iter().map(|one| Rendered { origin: one.origin(), requested: render(one) });
        Ok(output(&all.collect::<Vec<_>>()))
    }
}

/// One refused pod of a file must not hide the scripts of the others.
fn output(all: &[Rendered<'_>]) -> CommandOutput {
    let refused: Vec<String> =
        all.iter().filter_map(|one| one.requested.as_ref().err()).map(|why| format!("gybe: {why}")).collect();
    let exit = if refused.is_empty() { Exit::Yes } else { Exit::Failed };
    let hints = all.iter().filter_map(|one| match &one.requested {
        Ok(Requested::LeaveAlone { hint, .. }) => hint.clone(),
        _ => None,
    });
    CommandOutput {
        text: all.iter().map(Rendered::script).collect(),
        json: all.iter().map(Rendered::json).collect(),
        exit,
        notes: refused.into_iter().chain(hints).collect(),
    }
}

impl Rendered<'_> {
    /// A pod that is left alone or refused becomes a comment, which nft accepts too.
    fn script(&self) -> String {
        let origin = self.origin;
        match &self.requested {
            Ok(Requested::Redirect(policy)) => format!("# {origin}\n{}", show(&compile_any(policy))),
            Ok(Requested::LeaveAlone { reason, .. }) => format!("# {origin} is left alone: {reason}\n"),
            Err(why) => format!("# {origin} is refused: {}\n", printable(&why.to_string())),
        }
    }

    fn json(&self) -> Value {
        let origin = self.origin;
        match &self.requested {
            Ok(Requested::Redirect(policy)) => json!({
                "name": origin,
                "redirected": true,
                "families": match policy.families() { Families::V4Only => "v4", Families::V4AndV6 => "dual" },
                "backend": "nft",
                "script": show(&compile_any(policy)),
            }),
            Ok(Requested::LeaveAlone { reason, .. }) => {
                json!({ "name": origin, "redirected": false, "reason": reason })
            }
            Err(why) => json!({ "name": origin, "redirected": false, "refused": why.to_string() }),
        }
    }
}
