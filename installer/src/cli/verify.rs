//! `gybe verify`: compares a namespace's rules with a policy or a pod.

use super::backend::BackendArg;
use super::namespace::{NAMESPACE, NamespaceArgs};
use super::output::{CommandError, CommandOutput, Exit};
use super::pods::{OnNodeArgs, coloured};
use super::policy_source::{PolicyArgs, Requested, Target};
use super::style::{examples, good};
use crate::pod::cgroups::Cgroups;
use crate::sandboxes::state_name;
use crate::sandboxes::verdict::judge;
use clap::Args;
use gybe_netfilter::inspect::verdict::{Desired, NamespaceVerdict, RedirectionState};
use gybe_plugin::gates::InitContainer;
use serde_json::json;

/// Report whether a pod's connections are redirected as a policy or a pod requests
///
/// Exit code 0: they are, and Gybe's rules are exactly the requested ones. 1: they are not, or it cannot be
/// determined; the reasons are printed. 2: the command failed. A pod that is left alone requests no rules.
///
/// --pod NAMESPACE/NAME, or a manifest without a namespace, finds the pod's sandbox on this node. --all prints every
/// pod sandbox of this node on a line of its own: redirected, not meshed, NOT REDIRECTED, redirected by another's
/// rules, or unknown. Exit code 1: a sandbox is NOT REDIRECTED or unknown, or its rules differ from its policy. The
/// policy of a pod comes from the sources that the plugin uses: the runtime's annotations, and those that the
/// node's entry names.
#[derive(Debug, Args)]
#[command(mut_group("source", |group| group.required(true)))]
#[command(mut_arg("facts", |facts| facts.conflicts_with(NAMESPACE)))]
#[command(after_help = examples(&[
    "gybe verify --all",
    "gybe verify --pod shop/cart-0",
    "gybe verify --netns /run/netns/shop --policy policy.json",
]))]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Verify every pod sandbox of this node
    #[arg(long, group = "source", conflicts_with = NAMESPACE)]
    all: bool,
    #[command(flatten)]
    on_node: OnNodeArgs,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    backend: BackendArg,
}

impl VerifyArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        if !self.namespace.is_given() {
            return self.on_this_node();
        }
        let source = self.policy.one()?;
        let namespace = self.namespace.open(self.on_node.directories())?;
        let only = self.backend.setting.named();
        let judged = |desired| {
            let verdict = namespace.inside(|| judge(desired, only, &Cgroups::of_this_namespace()))?;
            verdict.map_err(|why| {
                CommandError::hinted(format!("cannot read the rules in {}", namespace.path()), why)
            })
        };
        let target = Target::Namespace(namespace.addresses()?);
        let (verdict, notes) = match source.requested(&target, InitContainer::Counts)? {
            Requested::Redirect(policy) => (judged(Desired::from(&policy))?, target.notes(&source, &policy)),
            Requested::LeaveAlone { reason, hint } => {
                let note = format!("note: {} is left alone: {reason}", source.origin());
                (judged(Desired::LeftAlone)?, [note].into_iter().chain(hint).collect())
            }
        };
        let others = verdict.notes.iter().map(|note| format!("note: {note}")).collect();
        Ok(output(&verdict, source.origin()).with_notes([notes, others].concat()))
    }

    fn on_this_node(&self) -> Result<CommandOutput, CommandError> {
        let conf = self.policy.pods().plugin_conf()?;
        if self.all {
            return self.on_node.judge_all(conf);
        }
        match self.policy.pods().named_pod() {
            Some(pod) => self.on_node.judge_pod(pod, conf),
            None => self.on_node.judge_pod_of_manifest(self.policy.one()?.facts()?, conf),
        }
    }
}

fn output(verdict: &NamespaceVerdict, origin: &str) -> CommandOutput {
    let holds = verdict.holds();
    let prefix = match verdict.state {
        RedirectionState::Redirected | RedirectionState::NotMeshed => String::new(),
        state => format!("{}: ", coloured(state, state_name(state))),
    };
    let reasons = verdict.reasons.iter().map(|reason| format!("{prefix}{reason}"));
    let text = match holds {
        true => format!("{} as {origin} requests\n", good("exactly")),
        false => reasons.chain(verdict.differences.iter().cloned()).map(|line| format!("{line}\n")).collect(),
    };
    let differences =
        if verdict.differences.is_empty() && !holds { &verdict.reasons } else { &verdict.differences };
    let json = json!({
        "holds": holds,
        "verdict": verdict.state.name(),
        "reasons": verdict.reasons,
        "differences": differences,
        "notes": verdict.notes,
    });
    CommandOutput { text, json, exit: if holds { Exit::Yes } else { Exit::No }, notes: Vec::new() }
}
