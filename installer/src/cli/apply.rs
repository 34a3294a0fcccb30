//! `gybe apply`: writes a policy's rules into a namespace.

use super::backend::{self, BackendArg};
use super::directories::DirectoriesArg;
use super::namespace::{NAMESPACE, NamespaceArgs};
use super::output::{CommandError, CommandOutput};
use super::policy_source::{PolicyArgs, Requested, Target};
use super::style::examples;
use clap::Args;
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
        let backend = &*writer.backend;
        let rules = redirection.rules.rules().count();
        let applied = namespace.inside(|| redirection.apply(backend))?;
        let applied = applied
            .map_err(|why| CommandError::hinted(format!("cannot redirect {}", namespace.path()), why))?;
        let (origin, path, name) = (source.origin(), namespace.path(), backend.name());
        let text = format!("applied {origin} to {path}: wrote {rules} rules with {name}\n");
        let json = json!({ "applied": true, "backend": name, "rules": rules });
        let others = backend::notes(&applied.other_nat);
        Ok(CommandOutput::done(text, json)
            .with_notes([target.notes(&source, &policy), notes, others].concat()))
    }
}
