//! `gybe remove`: nothing of ours is left in a namespace.

use super::answer::{Answer, Failure};
use super::backend::BackendArg;
use super::namespace::{self, NetnsArg};
use clap::Args;
use gybe_netfilter::redirection;
use serde_json::json;

/// Take everything of ours out of a network namespace: rules, routes, addresses.
///
/// Nothing there already is success. What others wrote is not touched.
#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    netns: NetnsArg,
    #[command(flatten)]
    backend: BackendArg,
}

impl RemoveArgs {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let backend = self.backend.choose()?;
        let netns = self.netns.open_to_change()?;
        let path = self.netns.path();
        let removed = namespace::inside(&netns, path, || redirection::remove(&*backend))?;
        removed.map_err(|why| {
            let hint = why.hint();
            Failure::because(format!("cannot clean up {}", path.display()), why).hinting(hint)
        })?;
        let text = format!("nothing of ours is left in {}\n", path.display());
        Ok(Answer::yes(text, json!({ "removed": true, "backend": backend.name() })))
    }
}
