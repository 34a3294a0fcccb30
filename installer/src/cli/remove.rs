//! `gybe remove`: removes everything of Gybe from a namespace.

use super::backend::BackendArg;
use super::namespace::PodNamespaceArgs;
use super::output::{CommandError, CommandOutput};
use super::style::examples;
use clap::Args;
use gybe_netfilter::apply::redirection;
use serde_json::json;

/// Remove Gybe's rules, routes and addresses from a network namespace
///
/// Removes what any backend has written, or only what --backend names. Succeeds if nothing is there. Other
/// programs' rules are not touched.
#[derive(Debug, Args)]
#[command(after_help = examples(&["gybe remove --netns /run/netns/shop"]))]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    namespace: PodNamespaceArgs,
    #[command(flatten)]
    backend: BackendArg,
}

impl RemoveArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        let namespace = self.namespace.open()?.not_a_nodes()?;
        let backends = self.backend.readers(&namespace)?;
        let removed = namespace.inside(|| match self.backend.setting.named() {
            Some(_) => redirection::remove_by(backends.iter().map(|backend| &**backend)),
            None => redirection::remove_all(),
        })?;
        removed.map_err(|why| CommandError::hinted(format!("cannot clean up {}", namespace.path()), why))?;
        let names: Vec<&str> = backends.iter().map(|backend| backend.name()).collect();
        let text = format!("no rules of Gybe are left in {}\n", namespace.path());
        Ok(CommandOutput::done(text, json!({ "removed": true, "backends": names })))
    }
}
