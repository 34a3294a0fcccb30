//! `gybe apply` and `gybe remove`: write a policy's rules into a namespace, and remove everything of Gybe from it.

use super::backend::{self, BackendArg};
use super::input::DirectoriesArg;
use super::namespace::{NAMESPACE, NamespaceArgs, OpenNamespace, PodNamespaceArgs};
use super::output::{CommandError, CommandOutput, Exit};
use super::policy_source::{PolicyArgs, Requested, Target};
use super::style::examples;
use crate::error::chain;
use crate::pod::manifest::printable;
use crate::sandboxes::{HandBack, Network, SandboxList, hand_back};
use clap::Args;
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::apply::redirection;
use gybe_plugin::gates::InitContainer;
use serde_json::json;

/// Write the rules of a policy or a pod into a network namespace
///
/// Replaces Gybe's own rules and leaves other programs' rules alone. Applying the same policy again
/// changes nothing. For a pod that is left alone no rule is written and none is removed.
#[derive(Debug, Args)]
#[command(mut_group(NAMESPACE, |group| group.required(true)))]
#[command(after_help = examples(&[
    "gybe apply --netns /run/netns/shop --policy policy.json",
    "gybe apply --pid 4711 --pod pod.yaml",
]))]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    directories: DirectoriesArg,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    backend: BackendArg,
}

impl ApplyArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        let source = self.policy.one()?;
        let namespace = self.namespace.open(&self.directories)?.not_a_nodes()?;
        let target = Target::Namespace(namespace.addresses()?);
        let policy = match source.requested(&target, InitContainer::Counts)? {
            Requested::Redirect(policy) => policy,
            Requested::LeaveAlone { reason, hint } => {
                let text = format!("{} is left alone: {reason}\n", source.origin());
                let json = json!({ "applied": false, "left_alone": reason });
                return Ok(CommandOutput::done(text, json).with_notes(hint.into_iter().collect()));
            }
        };
        // Chosen last, because the choice may probe the node.
        let writer = self.backend.writer()?;
        let (redirection, notes) = backend::redirection(&writer, &policy)?;
        let chosen = &*writer.backend;
        let rules = redirection.rules.rules().count();
        let applied = namespace.inside(|| redirection.apply(chosen))?;
        let applied = applied
            .map_err(|why| CommandError::hinted(format!("cannot redirect {}", namespace.path()), why))?;
        let (origin, path, name) = (source.origin(), namespace.path(), chosen.name());
        let text = format!("applied {origin} to {path}: wrote {rules} rules with {name}\n");
        let json = json!({ "applied": true, "backend": name, "rules": rules });
        let other_nat = backend::notes(&applied.other_nat);
        Ok(CommandOutput::done(text, json)
            .with_notes([target.notes(&source, &policy), notes, other_nat].concat()))
    }
}

/// Remove Gybe's rules, routes and addresses from a network namespace
///
/// Removes what any backend has written, or only what --backend names. Succeeds if nothing is there. Other
/// programs' rules are not touched. With --handed-back a pod keeps Gybe's rules unless istio-cni's beside them lead each
/// connection to ztunnel as well; exit code 1: some pods keep both, or cannot be read.
#[derive(Debug, Args)]
#[command(
    after_help = examples(&["gybe remove --netns /run/netns/shop", "gybe remove --handed-back"]),
    // In one line it would be too long.
    override_usage = "gybe remove [OPTIONS] <--netns <PATH>|--pid <PID>|--container-id <ID>|--pod <NS/NAME>>\n       \
                      gybe remove --handed-back [OPTIONS]"
)]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    namespace: PodNamespaceArgs,
    /// Removes Gybe's rules from every ambient pod of this node that istio-cni redirects again
    #[arg(long, group = NAMESPACE, conflicts_with = "backend")]
    handed_back: bool,
    #[command(flatten)]
    backend: BackendArg,
}

impl RemoveArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        if self.handed_back {
            return self.remove_handed_back();
        }
        let namespace = self.namespace.open()?.not_a_nodes()?;
        let (kinds, removed) = match self.backend.setting.named() {
            Some(kind) => {
                let backend = backend::named(kind)?;
                (vec![kind], namespace.inside(|| redirection::remove_by([&*backend]))?)
            }
            None => (backend::presence(&namespace)?.ours, namespace.inside(redirection::remove_all)?),
        };
        removed.map_err(|why| CommandError::hinted(format!("cannot clean up {}", namespace.path()), why))?;
        let names: Vec<&str> = kinds.into_iter().map(BackendKind::name).collect();
        let text = format!("no rules of Gybe are left in {}\n", namespace.path());
        Ok(CommandOutput::done(text, json!({ "removed": true, "backends": names })))
    }

    fn remove_handed_back(&self) -> Result<CommandOutput, CommandError> {
        let SandboxList { sandboxes, unreadable } = self.namespace.directories().sandboxes()?;
        let (mut removed, mut left, mut unknown) = (0_usize, Vec::new(), unreadable);
        for sandbox in &sandboxes {
            let Network::Own(path) = &sandbox.network else { continue };
            let done = OpenNamespace::at(path.clone())
                .and_then(OpenNamespace::not_a_nodes)
                .and_then(|namespace| namespace.inside(hand_back));
            match done {
                Ok(Ok(HandBack::NoRules)) => {}
                Ok(Ok(HandBack::Removed)) => removed += 1,
                Ok(Ok(HandBack::Needed)) => left.push(format!(
                    "{sandbox}: istio-cni's rules do not lead each of its connections to ztunnel, so Gybe's stay"
                )),
                Ok(Err(why)) => unknown.push(format!("{sandbox}: {}", chain(&why))),
                Err(why) => unknown.push(format!("{sandbox}: {why}")),
            }
        }
        let mut text: String = left.iter().chain(&unknown).map(|what| printable(what) + "\n").collect();
        text += &format!(
            "{removed} ambient pods have istio-cni's rules alone now, {} keep Gybe's, {} could not be judged\n",
            left.len(),
            unknown.len()
        );
        let exit = if left.is_empty() && unknown.is_empty() { Exit::Yes } else { Exit::No };
        let json = json!({ "removed": removed, "left": left, "unknown": unknown });
        Ok(CommandOutput { text, json, exit, notes: Vec::new() })
    }
}
